from __future__ import annotations

from typing import NamedTuple

from coda_agent.operators import ColVector, Reduced, RowVector, Tile, operator


class Outputs(NamedTuple):
    o_out: Tile
    h: Tile
    dw: Reduced[RowVector, "sum"]


@operator
def residual_rmsnorm_backward(acc: Tile, c: Tile, w: RowVector, r: ColVector, zdz: ColVector, o: Tile) -> Outputs:
    """Backward of residual add and RMSNorm, from the gradient acc of the norm's output.

    acc, the norm's input c and the incoming residual gradient o (M, N); norm weight w (N,); reciprocal RMS
    r (M,); zdz (M,), the row mean of the norm's output times its gradient. With n = c * r the outgoing residual
    gradient is o_out = o + (acc * w - n * zdz) * r (M, N), the recomputed norm output h = n * w (M, N), and
    dw = sum over rows of acc * n (N,).
    """
    n = c * r[:, None]
    o_out = o + (acc * w - n * zdz[:, None]) * r[:, None]
    h = n * w
    dw = (acc * n).sum(dim=0)
    return Outputs(o_out, h, dw)
