from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import HalfTile, RowVector, Scalar, Tile, operator


class Outputs(NamedTuple):
    z: Tile | None
    y: HalfTile


@operator
def quick_geglu(acc: Tile, b: RowVector, alpha: Scalar = 1.702) -> Outputs:
    """Gated activation of acc + b over interleaved columns: gate * sigmoid(alpha * gate) * up."""
    z = acc + b
    gate, up = z[:, 0::2], z[:, 1::2]
    return Outputs(z, gate * torch.sigmoid(alpha * gate) * up)
