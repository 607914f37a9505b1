"""Operators that the built-in author has not been written for. Loaded by path, as a user's file is."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from coda_agent.operators import ColVector, HalfTile, PairTile, Reduced, RowVector, Scalar, Tile, operator


@operator
def gated_softcap(acc: Tile, cap: Scalar) -> HalfTile:
    """tanh-capped gated activation."""
    gate, up = acc[:, 0::2], acc[:, 1::2]
    return cap * torch.tanh(torch.nn.functional.silu(gate) * up / cap)


@operator
def layer_scale(acc: Tile, b: RowVector, gamma: RowVector, residual: Tile) -> Tile:
    """Bias, layer scale and residual."""
    return residual + gamma * (acc + b)


class Rotated(NamedTuple):
    z: Tile | None
    y: Tile


def rotate(a, b, cos, sin):
    return a * cos - b * sin, a * sin + b * cos


@operator
def rope_view(acc: Tile, cos: HalfTile, sin: HalfTile) -> Rotated:
    a, b = acc.view(acc.shape[0], acc.shape[1] // 2, 2).unbind(-1)
    first, second = rotate(a, b, cos, sin)
    return Rotated(z=acc, y=torch.stack([first, second], -1).reshape(acc.shape))


@operator
def rope_repeat(acc: Tile, cos: HalfTile, sin: HalfTile) -> Tile:
    cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    pairs = acc.unflatten(-1, (-1, 2))
    turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    return acc * cos + turned * sin


@operator
def rope_flip(acc: Tile, cos: HalfTile, sin: HalfTile) -> Tile:
    pairs = acc.unflatten(-1, (-1, 2))
    sign = torch.stack((-sin, sin), dim=-1)
    return (pairs * cos.unsqueeze(-1) + pairs.flip(-1) * sign).flatten(-2)


@operator
def rope_in_place(acc: Tile, cos: HalfTile, sin: HalfTile) -> Tile:
    out = torch.empty_like(acc)
    out[:, 0::2] = acc[:, 0::2] * cos - acc[:, 1::2] * sin
    out[:, 1::2] = acc[:, 0::2] * sin + acc[:, 1::2] * cos
    return out


@operator
def rope_by_position(acc: Tile, position: ColVector[int], base: Scalar = 10000.0) -> Tile:
    pair = torch.arange(acc.shape[1] // 2, dtype=acc.dtype, device=acc.device)
    angle = position[:, None] * torch.exp(-torch.log(base) * (2 * pair / acc.shape[1]))
    a, b = acc[:, 0::2], acc[:, 1::2]
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1).flatten(-2)


@operator
def activations(acc: Tile, slope: Scalar) -> Tile:
    x = F.leaky_relu(acc, 0.2) + F.hardtanh(acc, -0.5, 0.75) + F.relu6(acc) + F.hardswish(acc) + F.hardsigmoid(acc)
    x = x + F.elu(acc, 0.7) + F.selu(acc) + F.celu(acc, 1.5) + F.mish(acc) + F.softsign(acc) + F.tanhshrink(acc)
    x = x - F.softplus(acc, beta=2.0) + F.logsigmoid(acc) + F.threshold(acc, 0.1, -1.0) + F.softshrink(acc)
    x = x + F.hardshrink(acc) + torch.sign(acc) + acc.clamp(min=-1) + acc.clamp(max=1) + acc.clamp(-slope, slope)
    return x + F.gelu(acc, approximate="tanh") + F.prelu(acc, slope.reshape(1))


@operator
def powers(acc: Tile, p: Scalar = 3) -> Tile:
    x = acc.abs() + 0.5
    return (
        acc**2
        + acc**3
        - acc**4
        + acc**5
        + x**0.5
        + x**-0.5
        + x**-1
        + x**1.5
        + 2**acc
        + 1.5**acc
        + 1 / x
        - x.rsqrt() / p
    )


@operator
def arithmetic(acc: Tile, c: Tile, r: ColVector) -> Tile:
    a = torch.add(acc, c, alpha=2) - (c - (acc - 1)) / (2.5 * (1 - r[:, None]) ** 2 + 1)
    b = torch.lerp(acc, c, 0.25) + torch.addcmul(acc, c, c, value=0.5) + torch.maximum(acc, c) - torch.minimum(acc, -c)
    return -(a - -b) + torch.logaddexp(acc, c) + torch.expm1(acc.clamp(max=1)) + torch.log1p(acc.abs())


@operator
def swish_where(acc: Tile, beta: Scalar) -> Tile:
    swish = acc * torch.sigmoid(beta * acc)
    return torch.where((acc > -4) & ~(acc >= 4) | (acc == 5), swish, torch.relu(acc)).masked_fill(acc < -10, -1.0)


@operator
def gated(acc: Tile, c: Tile) -> Tile:
    keep = (acc > 0) | torch.isnan(c)
    return acc * keep + keep.to(acc.dtype) - (c * c < 0.5).float() * 3


@operator
def row_means(acc: Tile) -> Reduced[ColVector, "sum"]:
    return acc.mean(dim=1)


class Moments(NamedTuple):
    y: Tile
    mean: Reduced[ColVector, "sum"]
    square: Reduced[ColVector, "sum"]
    peak: Reduced[ColVector, "max"]
    column_mean: Reduced[RowVector, "sum"]
    column_peak: Reduced[RowVector, "max"]


@operator
def moments(acc: Tile, b: RowVector, r: ColVector) -> Moments:
    """Bias and statistics."""
    y = (acc + b) * r[:, None]
    n = y.shape[-1]
    return Moments(y, y.sum(-1) / n, (y**2).sum(-1) / n, y.abs().amax(1), y.mean(0), y.max(dim=0).values)


class Halves(NamedTuple):
    y: HalfTile
    s: Reduced[ColVector, "sum"]
    lse: Reduced[ColVector, "logsumexp"]
    total: Reduced[RowVector, "sum"]


@operator
def half_statistics(acc: Tile) -> Halves:
    y = acc.unflatten(1, (-1, 2)).sum(-1)
    return Halves(y, torch.exp(y).sum(1), y.logsumexp(1), torch.cos(acc).sum(0))


class Pairs(NamedTuple):
    y: PairTile
    s: Reduced[ColVector, "sum"]


@operator
def quadratic_features(acc: Tile, z: PairTile) -> Pairs:
    """Each column and its square, and the sum of all exponentials."""
    y = torch.stack((acc, acc * acc), dim=2).flatten(1)
    return Pairs(y, torch.exp(z).sum(1))


class Picked(NamedTuple):
    t: Reduced[ColVector, "sum"]
    u: Reduced[ColVector, "sum"]
    hot: Reduced[ColVector, "sum"]


@operator
def picked(acc: Tile, target: ColVector[int]) -> Picked:
    """Three spellings of the target's logit."""
    t = acc.gather(1, target[:, None]).squeeze(1)
    rows = torch.arange(acc.shape[0], device=acc.device)
    hot = F.one_hot(target, acc.shape[1]).to(acc.dtype)
    return Picked(t, -acc[rows, target], (hot * acc).sum(dim=1))


@operator
def causal(acc: Tile, scale: Scalar = 0.125) -> Tile:
    """Scaled and causally masked scores."""
    rows, columns = torch.arange(acc.shape[0]), torch.arange(acc.shape[1])
    return torch.where(columns <= rows[:, None], acc * scale, -1e9)


@operator
def scaled_by_width(acc: Tile) -> Tile:
    return acc * acc.shape[1] ** -0.5 + acc / acc.size(0) - acc.new_ones(acc.shape)


@operator
def checkerboard(acc: Tile) -> Tile:
    sign = torch.tensor(2.0) - torch.arange(acc.shape[1]) % 2 - torch.arange(acc.shape[0])[:, None] // 3
    return acc * sign


@operator
def in_place(acc: Tile, b: RowVector) -> Tile:
    x = acc + b
    x.mul_(2).relu_()
    x[:, 1::2] *= 3
    return x


@operator
def awkward_names(acc: Tile, exp: ColVector, log: RowVector) -> Tile:
    """Says \"hi\" \\ and \"bye\""""
    _X = acc * exp[:, None]
    relu = _X + log
    silu = torch.sigmoid(relu) * relu
    Σ = silu + relu
    return Σ * Σ + _X


@operator
def rebound(acc: Tile, c: Tile) -> Tile:
    x = acc + c
    x = x * torch.sigmoid(x)
    x = x * torch.tanh(x)
    return x - x * x


@operator
def long_chain(acc: Tile, alpha: Tile, beta: Tile) -> Tile:
    first = torch.sigmoid(acc * alpha + beta) * torch.tanh(acc - alpha * beta) + torch.exp(-acc.abs())
    second = torch.cos(alpha * acc) * torch.sin(beta * acc) + torch.erf(acc * 0.70710678)
    return (first * 0.125 + second * 0.25) * torch.sqrt(torch.abs(acc * alpha) + 1e-6) + (first + alpha) * 1e-3
