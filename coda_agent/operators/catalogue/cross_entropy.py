# mypy: disable-error-code="type-arg, assignment"
from __future__ import annotations

from typing import NamedTuple

import torch

from coda_agent.operators import ColVector, Reduced, Scalar, Tile, operator


class Outputs(NamedTuple):
    logits: Tile | None
    t: Reduced[ColVector, "sum"]
    lse: Reduced[ColVector, "logsumexp"]


@operator
def cross_entropy(acc: Tile, target: ColVector[int], ignore_index: Scalar[int] = -100) -> Outputs:
    """Cross entropy of logits = acc: the target's logit t and the row's lse = logsumexp(acc); loss = lse - t.

    acc (M, N); class indices target (M,); logits (M, N); t and lse (M,).
    Rows whose target is ignore_index have t = 0; their loss is the caller's to leave out.
    """
    columns = torch.arange(acc.shape[1], device=acc.device)
    chosen = (columns == target[:, None]) & (target != ignore_index)[:, None]
    t = torch.where(chosen, acc, 0.0).sum(dim=1)
    lse = torch.logsumexp(acc, dim=1)
    return Outputs(acc, t, lse)
