# ruff: noqa: UP037 - strings in Reduced[...] name a combination; they are no forward references
from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import PairTile, Reduced, RowVector, Tile, operator


class Outputs(NamedTuple):
    dz: PairTile
    y: Tile
    db: Reduced[RowVector, "sum"]


@operator
def reglu_backward(acc: Tile, z: PairTile) -> Outputs:
    """Backward of y = relu(g) * u, from the gradient acc of y and the saved pairs (g, u) of z; db sums du over rows."""
    g, u = z[:, 0::2], z[:, 1::2]
    dg = torch.where(g > 0, acc * u, 0.0)
    du = acc * torch.relu(g)
    dz = torch.stack((dg, du), dim=-1).flatten(-2)
    return Outputs(dz, torch.relu(g) * u, du.sum(dim=0))
