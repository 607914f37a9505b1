"""Random inputs of a benchmark: never zeros or constants, which multiply faster and hide errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operators import Operator


@dataclass(frozen=True)
class Inputs:
    """One problem on one device: a (M, K), w (N, K), operands by name (scalars as numbers)."""

    a: Tensor
    w: Tensor
    operands: dict[str, Any]

    def tensors(self) -> tuple[Tensor, ...]:
        """Operands as the reference takes them: scalars as 0-d tensors."""
        return tuple(
            value if isinstance(value, Tensor) else torch.tensor(value, device=self.a.device)
            for value in self.operands.values()
        )


def random_inputs(
    operator: Operator,
    m: int,
    n: int,
    k: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    seed: int = 0,
) -> Inputs:
    """Standard-normal activations and unit-variance products; statistics in (0.5, 1.5); targets over all columns."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, generator=generator)

    operands: dict[str, Any] = {}
    for operand in operator.operands:
        if operand.extent == "Scalar":
            operands[operand.name] = operand.default if operand.default is not None else 1.0
        elif operand.element == "int":
            size = (m,) if operand.extent == "ColVector" else (n,)
            operands[operand.name] = torch.randint(n, size, device=device, generator=generator)
        elif operand.extent == "ColVector":
            operands[operand.name] = torch.rand(m, device=device, generator=generator) + 0.5
        elif operand.extent == "RowVector":
            operands[operand.name] = normal(n)
        else:
            operands[operand.name] = normal(m, {"HalfTile": n // 2, "Tile": n, "PairTile": 2 * n}[operand.extent])
    return Inputs(normal(m, k), normal(n, k) / k**0.5, operands)
