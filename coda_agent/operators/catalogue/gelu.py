from __future__ import annotations

import torch.nn.functional as F

from coda_agent.operators import RowVector, Tile, operator


@operator
def gelu(acc: Tile, b: RowVector) -> Tile:
    """Add a bias, then GELU: y = gelu(acc + b).

    acc (M, N); b (N,); y (M, N).
    """
    return F.gelu(acc + b)
