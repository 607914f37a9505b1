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


def interleave(even: Tensor, odd: Tensor) -> Tensor:
    """The inverse of :func:`even_odd`."""
    even, odd = torch.broadcast_tensors(even, odd)
    return torch.stack((even, odd), dim=-1).flatten(-2)


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


def row_index(rows: int, like: Tensor) -> Tensor:
    """(M, 1) indices of rows."""
    return torch.arange(rows, device=like.device)[:, None]


def col_index(columns: int, like: Tensor) -> Tensor:
    """(1, N) indices of columns."""
    return torch.arange(columns, device=like.device)[None, :]


def pick(x: Tensor, index: Tensor) -> Tensor:
    """The element of each row of (M, C) at column ``index`` (M, 1); 0 where the index is out of range."""
    inside = (index >= 0) & (index < x.shape[1])
    return torch.where(inside, x.gather(1, index.clamp(0, x.shape[1] - 1)), 0.0)[:, 0]
