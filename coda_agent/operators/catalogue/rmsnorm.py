from __future__ import annotations

from typing import NamedTuple

from coda_agent.operators import ColVector, Tile, operator


class Outputs(NamedTuple):
    z: Tile


@operator
def rmsnorm(acc: Tile, r: ColVector) -> Outputs:
    """The second half of RMSNorm: z = acc * r, each row scaled by its reciprocal RMS.

    acc (M, N); r (M,); z (M, N).
    """
    return Outputs(acc * r[:, None])
