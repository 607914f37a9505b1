from __future__ import annotations

from typing import NamedTuple

from coda_agent.operators import ColVector, Reduced, RowVector, Tile, operator


class Outputs(NamedTuple):
    x: Tile
    s: Reduced[ColVector, "sum"]
    h: Tile


@operator
def residual_rmsnorm(acc: Tile, c: Tile, w: RowVector) -> Outputs:
    """Residual add and the first half of RMSNorm: x = acc + c, its sum of squares s, and h = x * w.

    acc and the residual c (M, N); norm weight w (N,); x and h (M, N); s (M,), from which
    r = rsqrt(s / N + eps). The row factor r commutes with the next GEMM, whose epilogue applies it.
    """
    x = acc + c
    s = (x * x).sum(dim=1)
    h = x * w
    return Outputs(x, s, h)
