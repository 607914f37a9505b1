"""Operators that no epilogue can compute, or that the built-in author does not translate."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from coda_agent.operators import ColVector, HalfTile, Reduced, RowVector, Scalar, Tile, operator


@operator
def softmax(acc: Tile) -> Tile:
    return torch.softmax(acc, dim=1)


@operator
def matmul(acc: Tile, c: Tile) -> Tile:
    return acc @ (c.T @ acc)


@operator
def roll(acc: Tile) -> Tile:
    return acc + acc.roll(1, dims=1)


@operator
def cumsum(acc: Tile) -> Tile:
    return acc.cumsum(1)


@operator
def sort(acc: Tile) -> Tile:
    return acc.sort(dim=1).values


@operator
def halves(acc: Tile) -> HalfTile:
    gate, up = acc.chunk(2, dim=-1)
    return F.silu(gate) * up


@operator
def half_slice(acc: Tile) -> HalfTile:
    n = acc.shape[1] // 2
    return acc[:, :n] * acc[:, n:]


@operator
def half_cat(acc: Tile) -> Tile:
    return torch.cat((-acc[:, 1::2], acc[:, 0::2]), dim=-1)


@operator
def half_view(acc: Tile) -> HalfTile:
    return acc.view(acc.shape[0], 2, -1).sum(1)


class Used(NamedTuple):
    y: Tile
    s: Reduced[ColVector, "sum"]


@operator
def reduction_used(acc: Tile) -> Used:
    s = (acc * acc).sum(dim=1)
    return Used(acc * torch.rsqrt(s)[:, None], s)


@operator
def z_loss(acc: Tile) -> Reduced[ColVector, "sum"]:
    lse = torch.logsumexp(acc, dim=1)
    return lse**2


@operator
def rms_norm(acc: Tile, w: RowVector) -> Tile:
    return F.rms_norm(acc, (acc.shape[1],), w)


@operator
def everything(acc: Tile) -> Tile:
    return acc - acc.mean()


@operator
def branch(acc: Tile, cap: Scalar) -> Tile:
    if cap > 0:
        return acc * cap
    return acc


@operator
def item(acc: Tile, cap: Scalar) -> Tile:
    return acc * cap.item()


@operator
def python_size(acc: Tile) -> Tile:
    scale = math.sqrt(acc.shape[1])
    return acc / scale


@operator
def rounding(acc: Tile) -> Tile:
    return torch.round(acc * 4) / 4


@operator
def random(acc: Tile) -> Tile:
    return F.dropout(acc, 0.1, training=True)


@operator
def table(acc: Tile) -> Tile:
    return acc * torch.tensor([1.0, 2.0]).repeat(acc.shape[1] // 2)


@operator
def wrong_reduction(acc: Tile) -> Reduced[ColVector, "max"]:
    return acc.sum(dim=1)


@operator
def first_column(acc: Tile) -> Tile:
    return acc - acc[:, :1]


@operator
def unwritten(acc: Tile) -> Tile:
    out = torch.empty_like(acc)
    out[:, 0::2] = acc[:, 1::2]
    return out
