from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import ColVector, HalfTile, Tile, operator


class Outputs(NamedTuple):
    z: Tile | None
    y: Tile


@operator
def rmsnorm_rope(acc: Tile, r: ColVector, cos: HalfTile, sin: HalfTile) -> Outputs:
    """The second half of RMSNorm, then rotary embedding: z = acc * r, y = rope(z).

    acc (M, N); reciprocal RMS r (M,); cos and sin (M, N/2), one angle a pair; z (M, N), before the
    rotation; y (M, N), each interleaved pair (a, b) of z turned to (a * cos + b * sin, b * cos - a * sin).
    """
    z = acc * r[:, None]
    a, b = z[:, 0::2], z[:, 1::2]
    y = torch.stack((a * cos + b * sin, b * cos - a * sin), dim=-1).flatten(-2)
    return Outputs(z, y)
