"""What a kernel is measured against: the same mathematics in PyTorch, and the operator as people write it.

``tight`` baselines compute exactly what the kernel computes (the reparameterised form, same outputs), as cuBLAS plus
whatever torch.compile fuses. Interleaved pairs are a layout of ours, so a baseline may take halves of the columns
instead, which PyTorch reads better: the faster form counts. ``written`` baselines are the operator as it stands in
models: the norm before its GEMM, the residual added and normalised after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators import Operator

Baseline = Callable[..., Any]
EPS = 1e-6


def reference_form(operator: Operator, include: frozenset[str]) -> Baseline:
    """The operator's own reference on top of a GEMM, without the optional outputs nobody asked for."""
    kept = [i for i, output in enumerate(operator.outputs) if not output.optional or output.name in include]

    def baseline(a: Tensor, w: Tensor, *operands: Tensor) -> tuple[Any, ...]:
        results = operator(a @ w.T, *operands)
        return tuple(results[i] for i in kept)

    return baseline


def tight(operator: Operator, include: frozenset[str]) -> dict[str, Baseline]:
    """Forms of exactly what the kernel computes, by name."""
    forms = {"reference": reference_form(operator, include)}
    halves = _HALVES.get(operator.name)
    if halves is not None:
        forms["halves"] = lambda a, w, *operands: halves(include, a @ w.T, *operands)
    return forms


def written(operator: Operator) -> Baseline | None:
    """The operator as models write it, or None where that is the tight form."""
    return _WRITTEN.get(operator.name)


def _swiglu_halves(include: frozenset[str], z: Tensor) -> Any:
    gate, up = z.chunk(2, dim=-1)
    y = F.silu(gate) * up
    return (z, y) if "z" in include else y


def _rmsnorm_swiglu_halves(include: frozenset[str], acc: Tensor, r: Tensor) -> Any:
    return _swiglu_halves(include, acc * r.to(acc.dtype)[:, None])


def _geglu_halves(include: frozenset[str], z: Tensor) -> Any:
    gate, up = z.chunk(2, dim=-1)
    return F.gelu(gate) * up


def _rope_halves(include: frozenset[str], z: Tensor, cos: Tensor, sin: Tensor) -> Any:
    a, b = z.chunk(2, dim=-1)
    y = torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)
    return (z, y) if "z" in include else y


def _rmsnorm_rope_halves(include: frozenset[str], acc: Tensor, r: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return _rope_halves(include, acc * r.to(acc.dtype)[:, None], cos, sin)


def _swiglu_backward_halves(include: frozenset[str], acc: Tensor, z: Tensor) -> Any:
    x, (g, u) = acc.float(), (half.float() for half in z.chunk(2, dim=-1))
    sig = torch.sigmoid(g)
    act = g * sig
    dg, du = x * u * (sig + act * (1 - sig)), x * act
    return torch.cat((dg, du), dim=-1).to(acc.dtype), (g * dg + u * du).sum(-1), (act * u).to(acc.dtype)


_HALVES: dict[str, Callable[..., Any]] = {
    "swiglu": _swiglu_halves,
    "rmsnorm_swiglu": _rmsnorm_swiglu_halves,
    "geglu": _geglu_halves,
    "rope": _rope_halves,
    "rmsnorm_rope": _rmsnorm_rope_halves,
    "swiglu_backward": _swiglu_backward_halves,
}


def _rms(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _written_rmsnorm_swiglu(a: Tensor, w: Tensor, r: Tensor) -> Any:
    return _swiglu_halves(frozenset(), _rms(a) @ w.T)


def _written_rmsnorm_rope(a: Tensor, w: Tensor, r: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return _rope_halves(frozenset(), _rms(a) @ w.T, cos, sin)


def _written_residual_rmsnorm(a: Tensor, w: Tensor, c: Tensor, weight: Tensor) -> Any:
    x = a @ w.T + c
    return x, _rms(x) * weight


def _written_rmsnorm_cross_entropy(a: Tensor, w: Tensor, r: Tensor, target: Tensor, ignore_index: Tensor) -> Any:
    return F.cross_entropy((_rms(a) @ w.T).float(), target)


def _written_cross_entropy(a: Tensor, w: Tensor, target: Tensor, ignore_index: Tensor) -> Any:
    return F.cross_entropy((a @ w.T).float(), target)


_WRITTEN: dict[str, Baseline] = {
    "rmsnorm_swiglu": _written_rmsnorm_swiglu,
    "rmsnorm_rope": _written_rmsnorm_rope,
    "residual_rmsnorm": _written_residual_rmsnorm,
    "cross_entropy": _written_cross_entropy,
    "rmsnorm_cross_entropy": _written_rmsnorm_cross_entropy,
}
