from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import HalfTile, Tile, operator


class Outputs(NamedTuple):
    z: Tile | None
    y: Tile


@operator
def rope(acc: Tile, cos: HalfTile, sin: HalfTile) -> Outputs:
    """Rotary embedding of interleaved column pairs (a, b): (a * cos + b * sin, b * cos - a * sin).

    acc (M, N); cos and sin (M, N/2), one angle a pair; z = acc (M, N), before the rotation; y (M, N).
    """
    a, b = acc[:, 0::2], acc[:, 1::2]
    y = torch.stack((a * cos + b * sin, b * cos - a * sin), dim=-1).flatten(-2)
    return Outputs(acc, y)
