from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F

from coda_agent.operators import HalfTile, Tile, operator


class Outputs(NamedTuple):
    z: Tile | None
    y: HalfTile


@operator
def swiglu(acc: Tile) -> Outputs:
    """SwiGLU over interleaved columns: y = silu(even columns) * odd columns.

    acc (M, N); z = acc (M, N), the pre-activation that the backward needs; y (M, N/2).
    """
    gate, up = acc[:, 0::2], acc[:, 1::2]
    y = F.silu(gate) * up
    return Outputs(acc, y)
