from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F

from coda_agent.operators import ColVector, HalfTile, Tile, operator


class Outputs(NamedTuple):
    z: Tile | None
    y: HalfTile


@operator
def rmsnorm_swiglu(acc: Tile, r: ColVector) -> Outputs:
    """The second half of RMSNorm, then SwiGLU: z = acc * r, y = silu(even z) * odd z.

    acc (M, N); reciprocal RMS r (M,); z (M, N), the pre-activation that the backward needs; y (M, N/2).
    """
    z = acc * r[:, None]
    gate, up = z[:, 0::2], z[:, 1::2]
    y = F.silu(gate) * up
    return Outputs(z, y)
