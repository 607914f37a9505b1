"""The derived bound: a correct kernel stays under it, planted bugs do not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coda_agent.operators import (
    ColVector,
    HalfTile,
    Operator,
    Reduced,
    RowVector,
    Scalar,
    Tile,
    catalogue_names,
    load,
    operator,
)
from verifier import bounds
from verifier.cases import Case, materialise, torch_dtype


@operator
def bias(acc: Tile, b: RowVector) -> Tile:
    """y = acc + b"""
    return acc + b


@operator
def gelu(acc: Tile, b: RowVector) -> Tile:
    """y = gelu(acc + b)"""
    return F.gelu(acc + b)


@operator
def gelu_tanh(acc: Tile) -> Tile:
    """The tanh approximation."""
    return F.gelu(acc, approximate="tanh")


@operator
def softplus(acc: Tile) -> Tile:
    """log(1 + exp(acc))"""
    return F.softplus(acc)


@operator
def swiglu(acc: Tile) -> HalfTile:
    """y = silu(even acc) * odd acc"""
    return F.silu(acc[:, 0::2]) * acc[:, 1::2]


@operator
def softcap(acc: Tile, cap: Scalar) -> Tile:
    """y = cap * tanh(acc / cap)"""
    return cap * torch.tanh(acc / cap)


@operator
def scaled(acc: Tile, r: ColVector) -> Tile:
    """y = acc * r"""
    return acc * r[:, None]


class Residual(NamedTuple):
    x: Tile
    s: Reduced[ColVector, "sum"]


@operator
def residual(acc: Tile, c: Tile) -> Residual:
    """x = acc + c; s = its sum of squares."""
    x = acc + c
    return Residual(x, (x * x).sum(dim=1))


class Statistics(NamedTuple):
    y: Tile
    lse: Reduced[ColVector, "logsumexp"]
    top: Reduced[ColVector, "max"]


@operator
def masked(acc: Tile, r: ColVector) -> Statistics:
    """Scaled, masked where negative, written in place; with a row maximum and logsumexp."""
    z = acc * r[:, None]
    y = torch.empty_like(z)
    y[:, 0::2] = torch.where(z[:, 0::2] > 0, z[:, 0::2], 0.1 * z[:, 0::2])
    y[:, 1::2] = z[:, 1::2].clamp(-1.0, 1.0)
    return Statistics(y, torch.logsumexp(z, dim=1), z.amax(dim=1))


@operator
def rotary(acc: Tile, cos: HalfTile, sin: HalfTile) -> Tile:
    """Interleaved pairs, rotated."""
    a, b = acc[:, 0::2], acc[:, 1::2]
    return torch.stack((a * cos + b * sin, b * cos - a * sin), dim=-1).flatten(-2)


OPERATORS: dict[str, Operator] = {name: load(name) for name in catalogue_names()}
OPERATORS |= {
    op.name: op for op in (bias, gelu, gelu_tanh, softplus, swiglu, softcap, residual, masked, rotary, scaled)
}

Epilogue = Callable[..., Any]


def outputs(
    op: Operator, case: Case, acc: Tensor, operands: dict[str, Any], epilogue: Epilogue | None = None
) -> dict[str, Tensor]:
    """A kernel as it should be, given its fp32 accumulator: fp32 epilogue, one rounding."""
    given = [torch.as_tensor(v) for v in operands.values()]
    given = [v.float() if v.is_floating_point() else v for v in given]
    results = (epilogue or op)(acc, *given)
    results = results if isinstance(results, tuple) else (results,)
    return {
        o.name: value.to(torch.float32 if o.reduction else torch_dtype(case.dtype))
        for o, value in zip(op.outputs, results, strict=True)
    }


@functools.lru_cache(maxsize=64)
def prepared(name: str, case: Case) -> tuple[Operator, Any, bounds.Reference]:
    op = OPERATORS[name]
    inputs = materialise(case, op)
    return op, inputs, bounds.analyse(op, inputs.a, inputs.w, inputs.operands)


def worst(name: str, case: Case, got: dict[str, Tensor]) -> float:
    op, _, reference = prepared(name, case)
    return max(
        bounds.judge_elements(got[o.name], reference.values[o.name], reference.error[o.name], got[o.name].dtype)[0]
        for o in op.outputs
    )


def product(inputs: Any) -> Tensor:
    return inputs.a.float() @ inputs.w.float().T


@pytest.mark.parametrize("scale", [1e-3, 1.0, 16.0])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_a_correct_kernel_is_within_the_bound(name: str, scale: float) -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        for regime in ("normal", "heavy", "cancelling"):
            case = Case(m=33, n=34, k=97, dtype=dtype, regime=regime, scale=scale, seed=3)
            op, inputs, reference = prepared(name, case)
            got = outputs(op, case, product(inputs), inputs.operands)
            assert worst(name, case, got) <= 1.0
            baseline = bounds.unfused(op, inputs.a, inputs.w, inputs.operands)
            for o in op.outputs:
                norms = bounds.whole_tensor(
                    got[o.name],
                    baseline[o.name],
                    reference.values[o.name],
                    reference.typical[o.name],
                    got[o.name].dtype,
                )
                assert norms is None or norms.passed


def low_precision(inputs: Any) -> Tensor:
    """The product accumulated in bf16, sixteen elements of K at a time."""
    acc = torch.zeros(inputs.a.shape[0], inputs.w.shape[0])
    for a, w in zip(inputs.a.float().split(16, 1), inputs.w.float().split(16, 1), strict=True):
        acc = (acc + a @ w.T).bfloat16().float()
    return acc


BUGS: dict[str, tuple[str, Callable[[Any], Tensor] | None, Epilogue | None]] = {
    "sign": ("swiglu", None, lambda acc: -F.silu(acc[:, 0::2]) * acc[:, 1::2]),
    "swapped operands": ("swiglu", None, lambda acc: acc[:, 0::2] * F.silu(acc[:, 1::2])),
    "neighbouring lane": ("swiglu", None, lambda acc: F.silu(acc[:, 0::2]) * acc[:, 1::2].roll(1, 1)),
    "sigmoid for silu": ("swiglu", None, lambda acc: torch.sigmoid(acc[:, 0::2]) * acc[:, 1::2]),
    "all zeros": ("swiglu", None, lambda acc: torch.zeros_like(acc[:, 0::2])),
    "last element of K dropped": ("swiglu", lambda i: i.a[:, :-1].float() @ i.w[:, :-1].float().T, None),
    "bf16 accumulation": ("swiglu", low_precision, None),
    "accumulator rounded before the activation": ("swiglu", lambda i: product(i).bfloat16().float(), None),
    "accumulator rounded before the bias": ("bias", lambda i: product(i).bfloat16().float(), None),
    "activation rounded before the product": (
        "swiglu",
        None,
        lambda acc: F.silu(acc[:, 0::2]).bfloat16().float() * acc[:, 1::2],
    ),
    "residual dropped": ("residual", None, lambda acc, c: (acc, (acc * acc).sum(1))),
    "statistics of the rounded value": (
        "residual",
        None,
        lambda acc, c: (acc + c, (acc + c).bfloat16().float().square().sum(1)),
    ),
    "last column left out of a sum": ("residual", None, lambda acc, c: (acc + c, (acc + c)[:, :-1].square().sum(1))),
    "bias along the rows": ("bias", None, lambda acc, b: acc + b[:, None]),
    "rotation the wrong way": ("rotary", None, lambda acc, cos, sin: rotary(acc, cos, -sin)[0]),
    "column operand along the columns": ("scaled", None, lambda acc, r: acc * r[None, :]),
    "stale row": ("swiglu", lambda i: torch.cat([product(i)[:-1], product(i)[-2:-1]]), None),
}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 16.0])
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_beyond_the_bound(bug: str, scale: float) -> None:
    name, accumulate, epilogue = BUGS[bug]
    case = Case(m=64, n=64, k=96, dtype="bf16", scale=scale, seed=11)
    op, inputs, _ = prepared(name, case)
    acc = (accumulate or product)(inputs)
    assert worst(name, case, outputs(op, case, acc, inputs.operands, epilogue)) > 1.0


def test_tf32_products_are_beyond_the_bound() -> None:
    from verifier.interpreter import to_tf32

    case = Case(m=32, n=32, k=64, dtype="fp32", seed=5)
    op, inputs, _ = prepared("bias", case)
    a, w = (torch.from_numpy(to_tf32(x.numpy())) for x in (inputs.a, inputs.w))
    assert worst("bias", case, outputs(op, case, a @ w.T, inputs.operands)) > 10.0


def test_exactness_is_found_per_output() -> None:
    case = Case(m=9, n=20, k=31, regime="integers", dtype="bf16", seed=2)
    _, _, reference = prepared("cross_entropy", case)
    assert reference.exact == {"logits": True, "t": True, "lse": False}
    truth = reference.values["logits"]
    rounded = truth.float().bfloat16()
    assert bounds.judge_exact(rounded, truth, torch.bfloat16) is None
    off = rounded.clone()
    off.view(torch.int16)[4, 7] += 1
    miss = bounds.judge_exact(off, truth, torch.bfloat16)
    assert miss is not None
    assert (miss.index, miss.count) == ((4, 7), 1)
    assert not any(prepared("swiglu", case)[2].exact.values())
    assert all(prepared("residual", case)[2].exact.values())


def test_exactness_ends_where_fp32_does() -> None:
    case = Case(m=9, n=64, k=1024, regime="integers", dtype="fp32", seed=2)
    _, _, reference = prepared("residual", case)
    assert reference.exact["x"]
    assert not reference.exact["s"]  # the sum of squares passes 2^24
    assert not any(prepared("residual", Case(m=2, n=2, k=2, seed=2))[2].exact.values())


def test_an_infinite_result_is_right_only_where_the_dtype_ends() -> None:
    truth = torch.tensor([[7e4, 1.0, -7e4]], dtype=torch.float64)
    error = torch.zeros_like(truth)
    inf = float("inf")
    assert bounds.judge_elements(torch.tensor([[inf, 1.0, -inf]]).half(), truth, error, torch.float16)[1] is None
    assert bounds.judge_finite(torch.tensor([[inf, 1.0, -inf]]).half(), truth, error, torch.float16) is None
    miss = bounds.judge_elements(torch.tensor([[inf, inf, inf]]).half(), truth, error, torch.float16)[1]
    assert miss is not None
    assert miss.count == 2
    nan = bounds.judge_finite(torch.tensor([[inf, float("nan"), -inf]]).half(), truth, error, torch.float16)
    assert nan is not None
    assert nan.index == (0, 1)


def test_either_side_of_a_kink_is_allowed_only_near_it() -> None:
    @operator
    def step(acc: Tile) -> Tile:
        """A jump at zero."""
        return torch.where(acc > 0, acc + 1.0, acc)

    a = torch.tensor([[1.0, 1.0], [1.0, 0.5]])
    w = torch.tensor([[1.0, -1.0]])
    reference = bounds.analyse(step, a, w, {})
    assert float(reference.error["y"][0, 0]) >= 1.0  # acc = 0: its sign is within the accumulation's error
    assert float(reference.error["y"][1, 0]) < 1e-5


def test_a_pole_has_no_bound_and_is_not_judged() -> None:
    @operator
    def inverse(acc: Tile) -> Tile:
        """1 / acc"""
        return 1.0 / acc

    a, w = torch.tensor([[1.0, 1.0], [1.0, 0.5]]), torch.tensor([[1.0, -1.0]])
    error = bounds.analyse(inverse, a, w, {}).error["y"]
    assert torch.isinf(error[0, 0])
    assert torch.isfinite(error[1, 0])


def test_what_cannot_be_analysed_is_named() -> None:
    @operator
    def sorted_rows(acc: Tile) -> Tile:
        """Sorted."""
        return acc.sort(dim=1).values

    with pytest.raises(bounds.AnalysisError, match=r"aten\.sort"):
        bounds.analyse(sorted_rows, torch.randn(3, 4), torch.randn(5, 4), {})


def test_whole_tensor_error_catches_what_elements_miss() -> None:
    """Truncation instead of rounding: each element is nearly within a bound for two roundings, the norm doubles."""
    case = Case(m=64, n=64, k=64, dtype="bf16", seed=4)
    op, inputs, reference = prepared("bias", case)
    exact = outputs(op, Case(m=64, n=64, k=64, dtype="fp32"), product(inputs), inputs.operands)["y"]
    cut = (exact.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    baseline = bounds.unfused(op, inputs.a, inputs.w, inputs.operands)["y"]
    norms = bounds.whole_tensor(cut, baseline, reference.values["y"], reference.typical["y"], torch.bfloat16)
    assert norms is not None
    assert not norms.passed


def test_errors_lie_where_their_values_do() -> None:
    # The references of a GPU's cases are computed on the GPU; an exact value's error of zero belongs there too.
    assert bounds.Bounded(torch.zeros(2, 3, dtype=torch.float64, device="meta")).err.device.type == "meta"
