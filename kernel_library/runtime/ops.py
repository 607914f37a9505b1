"""The plain-PyTorch meaning of primitives that PyTorch has no single function for.

Used by the ``_torch_epilogue`` of every kernel, which is what runs on CPU tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

Number = float | int


def even_odd(x: Tensor) -> tuple[Tensor, Tensor]:
    """Columns 0, 2, 4, ... and columns 1, 3, 5, ... of (..., 2C): two tensors (..., C)."""
    return x[..., 0::2], x[..., 1::2]


def interleave(even: Tensor | Number, odd: Tensor | Number) -> Tensor:
    """The inverse of :func:`even_odd`; either may be a number."""
    like = even if isinstance(even, Tensor) else odd
    assert isinstance(like, Tensor)
    pair = (x if isinstance(x, Tensor) else like.new_tensor(x) for x in (even, odd))
    return torch.stack(torch.broadcast_tensors(*pair), dim=-1).flatten(-2)


def minimum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The smaller of two, NaN if either is; either may be a number."""
    if not isinstance(x, Tensor):
        x, y = y, x
    assert isinstance(x, Tensor)
    return torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp(x, max=y)


def maximum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The larger of two, NaN if either is; either may be a number."""
    if not isinstance(x, Tensor):
        x, y = y, x
    assert isinstance(x, Tensor)
    return torch.maximum(x, y) if isinstance(y, Tensor) else torch.clamp(x, min=y)


def num_rows(acc: Tensor) -> Tensor:
    """M, the number of rows of the accumulator, as a 0-d tensor."""
    return torch.tensor(acc.shape[0], device=acc.device)


def num_cols(acc: Tensor) -> Tensor:
    """N, the number of columns of the accumulator, as a 0-d tensor."""
    return torch.tensor(acc.shape[1], device=acc.device)


def row_index(acc: Tensor) -> Tensor:
    """(M, 1) indices of the accumulator's rows."""
    return torch.arange(acc.shape[0], device=acc.device)[:, None]


def col_index(acc: Tensor) -> Tensor:
    """(1, N) indices of the accumulator's columns."""
    return torch.arange(acc.shape[1], device=acc.device)[None, :]


def pick(x: Tensor, index: Tensor) -> Tensor:
    """The element of each row of (M, C) at column ``index`` (M, 1); 0 where the index is out of range."""
    inside = (index >= 0) & (index < x.shape[1])
    return torch.where(inside, x.gather(1, index.clamp(0, x.shape[1] - 1)), 0.0)[:, 0]
