from __future__ import annotations

import torch

from coda_agent.operators import Tile, operator


@operator
def relu2(acc: Tile) -> Tile:
    """Squared ReLU: y = relu(acc) ** 2.

    acc and y (M, N).
    """
    return torch.relu(acc) ** 2
