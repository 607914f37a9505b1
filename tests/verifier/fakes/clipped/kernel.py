"""A stand-in for a generated kernel, y = acc + b with row sums, that forgets the bias beyond its first 32 columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from kernel_library.runtime import Config, Kernel, Operand, Output


class Clipped(Kernel):
    def __init__(self) -> None:
        self.name = "clipped"
        self.operands = (Operand("b", "RowVector"),)
        self.outputs = (Output("y", "Tile"), Output("s", "ColVector", "sum"))

    def evaluate(
        self, a: Tensor, w: Tensor, operands: Mapping[str, Any], *, include: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        y = a.float() @ w.float().T + operands["b"].float()
        return {"y": y.to(a.dtype), "s": y.sum(1)}

    def run(
        self,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        *,
        config: Config | None = None,
        include: Collection[str] | None = None,
        out: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        y = a.float() @ w.float().T
        s = (y + operands["b"].float()).sum(1)
        y[:, :32] += operands["b"].float()[:32]
        target = (out or {}).get("y")
        if target is None:
            return {"y": y.to(a.dtype), "s": s}
        target.copy_(y)
        return {"y": target, "s": s}


kernel = Clipped()
