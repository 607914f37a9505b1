from __future__ import annotations

from coda_agent.operators import RowVector, Tile, operator


@operator
def bias(acc: Tile, b: RowVector) -> Tile:
    """Add a bias: y = acc + b.

    acc (M, N); b (N,); y (M, N).
    """
    return acc + b
