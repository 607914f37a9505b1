from __future__ import annotations

import torch.nn.functional as F

from coda_agent.operators import HalfTile, Tile, operator


@operator
def geglu(acc: Tile) -> HalfTile:
    """GEGLU over interleaved columns: y = gelu(even columns) * odd columns.

    acc (M, N); y (M, N/2).
    """
    gate, up = acc[:, 0::2], acc[:, 1::2]
    return F.gelu(gate) * up
