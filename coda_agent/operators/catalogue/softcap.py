from __future__ import annotations

import torch

from coda_agent.operators import Scalar, Tile, operator


@operator
def softcap(acc: Tile, cap: Scalar) -> Tile:
    """Tanh soft cap: y = cap * tanh(acc / cap), which keeps every value within (-cap, cap).

    acc and y (M, N); cap is one positive number.
    """
    return cap * torch.tanh(acc / cap)
