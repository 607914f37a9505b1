"""Does a reference keep its declaration? One small run in fp64 tells, before anything is built on it."""

from __future__ import annotations

import math
from typing import Any

import torch

from .declare import Operand, Operator, OperatorError
from .loading import at_line

#: Distinct sizes, so that every axis of a result can be told from its length: M, N, N/2 and 2N all differ.
_ROWS, _COLUMNS = 5, 12

_DIMS = {
    "Tile": ("M", "N"),
    "HalfTile": ("M", "N/2"),
    "PairTile": ("M", "2N"),
    "RowVector": ("N",),
    "ColVector": ("M",),
    "Scalar": (),
}


def shape_of(extent: str, m: int, n: int) -> tuple[int, ...]:
    """The shape of an operand or output of this extent beside an (m, n) accumulator."""
    sizes = {"M": m, "N": n, "N/2": n // 2, "2N": 2 * n}
    return tuple(sizes[dim] for dim in _DIMS[extent])


def sample_operand(
    operand: Operand,
    m: int,
    n: int,
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """A random operand of its declared shape, made on the CPU from ``generator`` and moved to ``device``.

    Floating-point tiles and vectors are standard normal; integer ones uniform in [0, n). A scalar is its default
    if it has one, else uniform in [0.5, 2] (in [0, n) for integers).
    """
    shape = shape_of(operand.extent, m, n)
    if operand.element == "int":
        if operand.default is not None:
            return torch.tensor(operand.default, dtype=torch.int64, device=device)
        return torch.randint(0, max(n, 1), shape, generator=generator).to(device)
    if operand.extent == "Scalar":
        value = (
            operand.default if operand.default is not None else 0.5 + 1.5 * torch.rand((), generator=generator).item()
        )
        return torch.tensor(value, dtype=dtype, device=device)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def sample_operands(
    operator: Operator,
    m: int,
    n: int,
    *,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Random operands by name, in the operator's order. See :func:`sample_operand`."""
    return {
        operand.name: sample_operand(operand, m, n, dtype=dtype, generator=generator, device=device)
        for operand in operator.operands
    }


def check(operator: Operator) -> None:
    """Run the reference once and compare what it returns with what it declares. Raises :class:`OperatorError`.

    Compared are the number of results, their shapes, that they are floating point, and that the inputs are left as
    they were.
    """
    m, n = _ROWS, _COLUMNS
    generator = torch.Generator().manual_seed(0)
    acc = torch.randn(m, n, generator=generator, dtype=torch.float64)
    operands = sample_operands(operator, m, n, dtype=torch.float64, generator=generator)
    inputs = {"acc": acc, **operands}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    results = _run(operator, list(inputs.values()))
    if not isinstance(results, tuple):
        results = (results,)
    if len(results) != len(operator.outputs):
        names = ", ".join(output.name for output in operator.outputs)
        raise OperatorError(
            f"{operator.name}: {len(operator.outputs)} outputs are declared ({names}) but the reference returned {len(results)}"
        )
    for output, result in zip(operator.outputs, results, strict=True):
        dims = _DIMS[output.extent]
        declared = f'Reduced[{output.extent}, "{output.reduction}"]' if output.reduction else output.extent
        what = (
            f"{operator.name}: output '{output.name}' is declared {declared} {_dims(dims)} but the reference returned"
        )
        if not isinstance(result, torch.Tensor):
            raise OperatorError(f"{what} a {type(result).__name__}; return a tensor")
        if tuple(result.shape) != shape_of(output.extent, m, n):
            raise OperatorError(f"{what} {_describe(tuple(result.shape), m, n)}")
        if not result.is_floating_point():
            raise OperatorError(f"{what} {result.dtype} elements; outputs are floating point")
    for name, tensor in inputs.items():
        if not torch.equal(tensor, before[name]):
            raise OperatorError(
                f"{operator.name}: the reference changes its input '{name}' in place; write to a clone, as in {name}.clone()"
            )


def _run(operator: Operator, arguments: list[torch.Tensor]) -> Any:
    try:
        return operator.reference(*arguments)
    except Exception as error:
        code = getattr(operator.reference, "__code__", None)
        where = at_line(error, code.co_filename) if code else ""
        file = f" ({operator.origin}{where})" if where else ""
        raise OperatorError(f"{operator.name}: the reference raised {type(error).__name__}: {error}{file}") from error


def _dims(dims: tuple[str, ...]) -> str:
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _describe(shape: tuple[int, ...], m: int, n: int) -> str:
    """A shape in terms of M and N where its lengths tell, as in ``(M, N/2)``."""
    names = {m: "M", n: "N", n // 2: "N/2", 2 * n: "2N"}
    if math.prod(shape) == 0 or not all(size in names or size == 1 for size in shape):
        return f"{_dims(tuple(map(str, shape)))} for M={m}, N={n}"
    return _dims(tuple(names.get(size, str(size)) for size in shape))
