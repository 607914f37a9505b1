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
def rmsnorm_cross_entropy(acc: Tile, r: ColVector, target: ColVector[int], ignore_index: Scalar[int] = -100) -> Outputs:
    """The second half of RMSNorm, then cross entropy of logits = acc * r; loss = lse - t.

    acc (M, N); reciprocal RMS r (M,); class indices target (M,); logits (M, N); the target's logit t and
    lse = logsumexp(logits) (M,). Rows whose target is ignore_index have t = 0.
    """
    logits = acc * r[:, None]
    columns = torch.arange(logits.shape[1], device=logits.device)
    chosen = (columns == target[:, None]) & (target != ignore_index)[:, None]
    t = torch.where(chosen, logits, 0.0).sum(dim=1)
    lse = torch.logsumexp(logits, dim=1)
    return Outputs(logits, t, lse)
