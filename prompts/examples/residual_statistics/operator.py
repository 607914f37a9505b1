# ruff: noqa: F821, UP037 - strings in Reduced[...] name a combination; they are no forward references
from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import ColVector, Reduced, RowVector, Tile, operator


class Outputs(NamedTuple):
    x: Tile
    spread: Reduced[ColVector, "sum"]
    chosen: Reduced[ColVector, "sum"]
    peak: Reduced[ColVector, "max"]
    lse: Reduced[ColVector, "logsumexp"]
    mass: Reduced[RowVector, "sum"]


@operator
def residual_statistics(acc: Tile, c: Tile, r: ColVector, b: RowVector, index: ColVector[int]) -> Outputs:
    """x = acc * r + c + b, with statistics of its rows and columns; indices are in [0, N)."""
    x = acc * r[:, None] + c + b
    spread = (x * x).sum(dim=1)
    chosen = x.gather(1, index[:, None])[:, 0]
    peak = x.amax(dim=1)
    lse = torch.logsumexp(x, dim=1)
    mass = torch.sigmoid(x).sum(dim=0)
    return Outputs(x, spread, chosen, peak, lse, mass)
