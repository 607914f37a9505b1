"""Evaluate an epilogue in PyTorch, in the precision of the accumulator it is given.

With fp64 inputs this is the meaning of the program, free of rounding that matters: the yardstick of tests, error
analysis and mutant equivalence. It reads the same table as the compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from kernel_library.runtime import ops

from .ir import Epilogue, Value
from .primitives import MAP, PRIMITIVES
from .types import SCALAR


@functools.cache
def _meaning(name: str) -> Callable[..., Any]:
    """The torch meaning of a primitive as a function of its arguments and of the accumulator ``like``."""
    primitive = PRIMITIVES[name]
    arguments = [f"a{i}" for i in range(primitive.arity)]
    body = primitive.torch.format(*arguments, like="like")
    # The text is the table's own, never a program's.
    return eval(f"lambda {', '.join([*arguments, 'like'])}: {body}", {"torch": torch, "F": F, "ops": ops})  # type: ignore[no-any-return]


def evaluate(
    epilogue: Epilogue,
    acc: torch.Tensor,
    operands: Mapping[str, torch.Tensor | float | int],
    *,
    size: tuple[int, int] | None = None,
) -> dict[str, torch.Tensor]:
    """Run ``epilogue`` on the whole accumulator, or on one that is padded beyond a problem of ``size`` (M, N).

    ``acc`` is (M, N); ``operands`` are tensors of their declared extents, scalars as numbers or 0-d tensors, in the
    dtype the evaluation should have. Returns every output in full: tiles, and reductions over the whole axis.
    """
    m, n = acc.shape
    known: dict[int, Any] = {}
    for value in epilogue.values():
        known[id(value)] = _evaluate(value, known, acc, operands, size or (m, n))
    results = {}
    for name, value in epilogue.stores.items():
        extent = epilogue.signature.outputs[name].extent
        result = torch.as_tensor(known[id(value)], dtype=acc.dtype, device=acc.device)
        shape = [m] * extent.rows + ([n * extent.columns // 2] if extent.columns else [])
        results[name] = result.expand(shape) if result.dim() <= len(shape) else result
    return results


def _evaluate(
    value: Value, known: Mapping[int, Any], acc: torch.Tensor, operands: Mapping[str, Any], size: tuple[int, int]
) -> Any:
    if value.op == "acc":
        return acc
    if value.op == "literal":
        return _scalar(value, value.payload, acc)
    if value.op == "operand":
        operand = operands[str(value.payload)]
        return _scalar(value, operand, acc) if value.type.extent == SCALAR else operand
    arguments = [known[id(argument)] for argument in value.args]
    if value.op == "item":
        return arguments[0][value.payload]
    primitive = PRIMITIVES[value.op]
    if primitive.family == MAP and value.type.element == "float":
        # Integers widen to the precision of the evaluation, not to PyTorch's default.
        arguments = [
            argument.to(acc.dtype) if of.type.element == "int" else argument
            for argument, of in zip(arguments, value.args, strict=True)
        ]
    # Indices run over what is there, bounds are those of the problem.
    bounds = {"num_rows": size[0], "num_cols": size[1]}
    result = bounds[value.op] if value.op in bounds else _meaning(value.op)(*arguments, acc)
    return _scalar(value, result, acc) if isinstance(result, int) else result


def _scalar(value: Value, number: Any, like: torch.Tensor) -> torch.Tensor:
    """A number as a 0-d tensor, so that every primitive applies to it and nothing falls to a lower precision."""
    dtype = like.dtype if value.type.element == "float" else torch.int64
    return torch.as_tensor(number, dtype=dtype, device=like.device)
