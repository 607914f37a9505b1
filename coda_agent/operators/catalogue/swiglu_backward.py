from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from coda_agent.operators import ColVector, PairTile, Reduced, Tile, operator


class Outputs(NamedTuple):
    dz: PairTile
    zdz: Reduced[ColVector, "sum"]
    y: Tile


@operator
def swiglu_backward(acc: Tile, z: PairTile) -> Outputs:
    """Backward of SwiGLU, from the gradient acc of its output: dz, its row sum zdz with z, and y recomputed.

    acc (M, N); saved pre-activation z (M, 2N), pairs (g, u); y = silu(g) * u (M, N); dz (M, 2N), pairs
    (dg, du) with dg = acc * u * silu'(g) and du = acc * silu(g); zdz = sum of z * dz (M,).
    """
    g, u = z[:, 0::2], z[:, 1::2]
    sigma = torch.sigmoid(g)
    silu = F.silu(g)
    dg = acc * u * (sigma + silu * (1 - sigma))
    du = acc * silu
    dz = torch.stack((dg, du), dim=-1).flatten(-2)
    zdz = (g * dg + u * du).sum(dim=1)
    return Outputs(dz, zdz, silu * u)
