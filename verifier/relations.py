"""Metamorphic relations: what a second launch on related inputs must give, told from the first one.

Rows and columns in another order, rows in two batches: where the fp64 reference commutes with the rearrangement (which
is tested, case by case), so must the kernel. An element keeps its arithmetic wherever it lies, so that tiles must agree
bitwise; sums combine in another order or with other fusions and are held to the element-wise bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .cases import Case, Inputs, Tiling, is_tile, rearrange

#: The property that stands for each relation.
PROPERTY = {
    "repeat": "determinism",
    "pointers": "tma_and_pointer_agree",
    "tiling": "configurations_agree",
    "rows": "rows_commute",
    "columns": "columns_commute",
    "batches": "batches_agree",
}


def launches(case: Case) -> Iterator[Case]:
    """The further launches that the relation of ``case`` asks for."""
    plain = replace(case, relation="", other=None, border=case.step)
    tiling = case.tiling
    if case.relation == "repeat":
        yield from (plain, plain)
    elif case.relation == "pointers":
        yield replace(plain, tiling=replace(tiling, tma=False, load_tma=False, store_tma=False))
    elif case.relation == "tiling":
        yield replace(plain, tiling=case.other or Tiling())
    elif case.relation in ("rows", "columns"):
        yield replace(plain, order=case.relation)
    elif case.relation == "batches":
        first = split(case.m)
        yield replace(plain, m=first, window=(0, case.m))
        yield replace(plain, m=case.m - first, window=(first, case.m))


def split(m: int) -> int:
    """Rows of the first of two batches: both multiples of 16 where ``m`` is one of 32, else neither where possible."""
    if m % 32 == 0:
        return m // 32 * 16
    odd = (r for r in range(m // 2, 1, -1) if r % 16 and (m - r) % 16)
    return next(odd, m // 2)


@dataclass(frozen=True)
class Rearranged:
    """A launch on rearranged inputs: how full tensors of the first launch correspond to those of this one."""

    case: Case

    def __call__(self, values: Tensor, extent: str) -> Tensor:
        return rearrange(values, extent, self.case)

    def bitwise(self, output: Any) -> bool:
        """Whether an output must have the very bits of the first launch."""
        if self.case.window is not None and self.case.a_layout == "column":
            # The stride of such an a is its number of rows: TMA may take one batch and not the other, and products may
            # then be summed in another order.
            return False
        if is_tile(output.extent):
            return True
        # Sums differ by position: a compiler may fuse a product into the addition in one place and not in another.
        return bool(output.reduction == "max")

    def partial(self, output: Any) -> bool:
        """Whether the launch gives only its batch's part of an output, a reduction over the rows."""
        return self.case.window is not None and output.extent == "RowVector"


def commutes(operator: Any, inputs: Inputs, values: Mapping[str, Tensor], moved: Rearranged) -> bool:
    """Whether the fp64 reference of rearranged inputs is the rearranged reference. Not so where indices matter."""
    a, w, operands = inputs.a.double(), inputs.w.double(), inputs.operands
    with torch.no_grad(), torch.device(a.device):
        acc = moved(a, "ColVector") @ moved(w.t(), "RowVector")
        arguments = []
        for operand in operator.operands:
            given = operands[operand.name]
            if isinstance(given, Tensor):
                value = moved(given, operand.extent)
                arguments.append(value.double() if value.is_floating_point() else value.clone())
            else:
                arguments.append(torch.tensor(given, dtype=torch.int64 if operand.element == "int" else torch.float64))
        found = operator(acc, *arguments)
    for output, value in zip(operator.outputs, found, strict=True):
        if moved.partial(output):
            continue
        expected = moved(values[output.name], output.extent)
        finite = expected[torch.isfinite(expected)].abs()
        size = float(finite.max()) if finite.numel() else 0.0
        if not torch.allclose(value.double(), expected, rtol=1e-9, atol=1e-9 * size, equal_nan=True):
            return False
    return True


def combine(parts: Sequence[Tensor], reduction: str) -> Tensor:
    """A reduction over all rows from those over batches of them, in fp64."""
    stacked = torch.stack([part.double() for part in parts])
    if reduction == "sum":
        return stacked.sum(0)
    return stacked.amax(0) if reduction == "max" else torch.logsumexp(stacked, 0)
