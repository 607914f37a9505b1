"""How far a correct kernel may be from the fp64 reference: derived from the reference, element by element.

The reference is traced into a graph of ATen operations, and a *running error analysis* (Higham, *Accuracy and Stability
of Numerical Algorithms*, 2nd ed., section 3.3) walks it in fp64: every node carries its value and a bound on the error
that a kernel computing in fp32 may have there. What enters is the rounding of the accumulation,

    err(acc) = λ·√K·u32·(|A||W|)        (λ = 6 standard deviations of a random walk of K roundings; ibid. section 2.8)

and every operation passes its operands' errors on, through its partial derivatives, adding its own rounding. What
leaves is rounded once to the output's dtype:

    |y − ref| ≤ 1.01·u_out·|ref| + err(y) + half a subnormal

There is no constant for any operator in here, only for primitive operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten

#: Unit roundoff, 2^-p for p significand bits: half the spacing of numbers just above 1.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
U32 = 2.0**-24

#: λ: standard deviations allowed to the accumulation of the product.
DEVIATIONS = 6.0

#: c: an fp32 operation is allowed c·u32·|value|, that is two ulps: division, exp and log are approximate on a GPU
#: (division and exp2 within two ulps, by the PTX manual), and authors may reassociate.
EVALUATION = 4.0

#: Slack on the final rounding, for the fp64 arithmetic of this analysis itself.
SLACK = 1.01

#: Results below this may be flushed to zero by fp32 instructions.
TINY = 2.0**-126
FP32_MAX = 3.4028234663852886e38

#: Integers up to here, and their sums, are exact in fp32.
EXACT = 2.0**24


class AnalysisError(ValueError):
    """The reference uses something that the error analysis does not know; the message says what."""


@dataclass(frozen=True)
class Bounded:
    """A node's fp64 ``value``, the ``error`` bound beside it (None: exact), and whether fp32 arithmetic is ``exact``.

    Booleans have an error of 1 where the comparison could go either way, else 0. ``exact`` means that every step so
    far was on integers small enough for fp32, so that no correct kernel can differ at all.
    """

    value: Tensor
    error: Tensor | None = None
    exact: bool = False

    @property
    def err(self) -> Tensor:
        if self.error is not None:
            return self.error
        return torch.zeros(self.value.shape, dtype=torch.float64, device=self.value.device)


def _integral(value: Tensor, limit: float = EXACT) -> bool:
    if not value.is_floating_point():
        return True
    return bool(((value == value.round()) & (value.abs() < limit)).all())


# --- what the analysis knows about ATen ------------------------------------------------------------------------------


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Move elements and change nothing: applied to the errors as they are to the values.
_STRUCTURAL = _names("""view _unsafe_view reshape slice select permute t transpose expand unsqueeze squeeze cat stack split split_with_sizes
    chunk unbind clone alias detach contiguous index_select gather index flip roll repeat constant_pad_nd copy lift_fresh_copy
    slice_scatter select_scatter diagonal as_strided tril triu index_put unfold movedim narrow flatten lift_fresh unsafe_split
    view_as expand_as repeat_interleave take_along_dim new_zeros zeros_like ones_like empty_like new_empty new_full full_like
    new_ones scatter""")
_COMPARISONS = _names("lt le gt ge eq ne")
_LOGICAL = _names("bitwise_and bitwise_or bitwise_not bitwise_xor logical_and logical_or logical_not logical_xor")

#: Exact in floating point: they choose or flip, and never round.
_ROUNDLESS = _names(
    "neg abs relu maximum minimum clamp clamp_min clamp_max threshold sign round floor ceil trunc fmin fmax"
)

#: Exact on integers, so long as the results stay below 2^24.
_INTEGRAL = _ROUNDLESS | _names("add sub rsub mul square")

#: exp(x) is computed as exp2(x·log2 e), whose argument is rounded: the relative error grows with |x|.
_EXPONENTIAL = _names("exp exp2 sigmoid silu softplus tanh log_sigmoid mish sinh cosh silu_backward sigmoid_backward")

#: Good to an absolute error where the value nears zero: range reduction, a kernel that writes exp(x) - 1 or log(1 + x),
#: and erf, which torch's vectorised CPU form evaluates by Abramowitz and Stegun 7.1.26 (1.5e-7 before rounding).
_ABSOLUTE = _names(
    "sin cos tan log log2 log10 log1p expm1 erf erfc logaddexp logaddexp2 acos asin atan atan2 acosh atanh erfinv"
)

#: Monotone: the ends of an interval map to the ends of its image, so no derivative is needed.
_MONOTONE = _names(
    "exp exp2 sigmoid tanh erf softplus relu sqrt log log2 log10 log1p expm1 round floor ceil trunc sign atan"
)

#: A pole: an interval of the last argument that holds zero has no bound.
_POLES = _names("div reciprocal rsqrt log log2 log10 true_divide")

#: Composite operations that kernels compute in pieces, each piece with its own rounding (1 + erf cancels, for one).
_DECOMPOSED = (
    aten.gelu, aten._softmax, aten._log_softmax, aten.var, aten.var_mean, aten.std, aten.std_mean, aten.mean, aten.nll_loss_forward,
    aten.linalg_vector_norm, aten.native_layer_norm, aten._fused_rms_norm, aten.masked_fill, aten.log_sigmoid_forward,
    aten.addcmul, aten.addcdiv, aten.lerp, aten.elu, aten.celu, aten.logit, aten.glu, aten.gelu_backward, aten.hardsigmoid,
    aten.hardswish, aten.hardtanh, aten.leaky_relu, aten.erfc, aten.addmm, aten.hypot, aten.huber_loss, aten.smooth_l1_loss,
    aten.mse_loss, aten.aminmax, aten.xlogy, aten.sinc, aten.special_log_ndtr, aten.embedding,
)  # fmt: skip


def _wide(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, Tensor) and not value.is_complex() else value


def _unbounded(error: Tensor) -> Tensor:
    """No finite bound where the analysis met NaN."""
    return torch.nan_to_num(error, nan=math.inf, posinf=math.inf)


class ErrorAnalysis(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph on :class:`Bounded` values. ``evaluation`` is c, the rounding granted to one fp32 operation in u32."""

    def __init__(self, graph: fx.GraphModule, evaluation: float = EVALUATION) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.unit = evaluation * U32

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        overload = getattr(target, "overloadpacket", None)
        if overload is None:  # operator.getitem
            return target(*args, **kwargs)
        name = overload.__name__
        if name.endswith("_") and not name.startswith("_"):
            # Decompositions update their own temporaries in place; nobody sees the difference.
            functional = getattr(aten, name[:-1])
            target, name = getattr(functional, target._overloadname), name[:-1]
        flat = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Bounded)]
        plain_args, plain_kwargs = tree_map(lambda x: x.value if isinstance(x, Bounded) else x, (args, kwargs))
        value = target(*plain_args, **plain_kwargs)
        if not flat or (isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool):
            # Constants and integer arithmetic: exact, and a literal such as 0.1 is as good in fp32 as its rounding.
            return tree_map(lambda v: Bounded(v, None, _integral(v)) if isinstance(v, Tensor) else v, value)
        whole = all(x.exact for x in flat)
        if name in _STRUCTURAL:
            return self._structural(target, args, kwargs, value, flat)
        if name in _COMPARISONS:
            return self._comparison(args, value, whole)
        if name in _LOGICAL:
            error = (
                None
                if all(x.error is None for x in flat)
                else torch.stack([x.err.expand(value.shape) for x in flat]).amax(0)
            )
            return Bounded(value, error, whole)
        if name == "where":
            return self._where(args, value, whole)
        if name == "_to_copy":
            return self._convert(args[0], value, whole)
        reduction = getattr(self, "_reduce_" + name, None)
        if reduction is not None:
            return reduction(target, args, kwargs, value, whole)
        if torch.Tag.pointwise in target.tags:
            return self._pointwise(target, name, args, kwargs, value, whole)
        if all(x.error is None for x in flat) and isinstance(value, Tensor):
            return Bounded(value, self.unit * value.abs().double() if value.is_floating_point() else None)
        raise AnalysisError(
            f"the error analysis does not know {target}, so no bound can be derived for it; write the reference with elementwise "
            "operations, views, sums, maxima and logsumexp"
        )

    # --- no arithmetic ---

    def _structural(self, target: Any, args: Any, kwargs: Any, value: Any, flat: Sequence[Bounded]) -> Any:
        whole = all(x.exact for x in flat)
        if all(x.error is None for x in flat):
            return tree_map(lambda v: Bounded(v, None, whole and _integral(v)), value)

        def errors(x: Any) -> Any:
            if not isinstance(x, Bounded):
                return x
            return x.err if x.value.is_floating_point() or x.error is not None else x.value

        moved_args, moved_kwargs = tree_map(errors, (args, kwargs))
        dtype_free = {key: item for key, item in moved_kwargs.items() if key != "dtype"}
        moved = target(*moved_args, **dtype_free)
        name = target.overloadpacket.__name__
        if name.endswith("_like") or name.startswith("new_"):
            return tree_map(lambda v: Bounded(v, None, _integral(v)), value)
        if name == "constant_pad_nd" and len(args) > 2 and args[2]:
            moved = target(moved_args[0], moved_args[1], 0.0)
        return tree_map(lambda v, e: Bounded(v, e.double(), whole and _integral(v)), value, moved)

    def _comparison(self, args: Any, value: Tensor, whole: bool) -> Bounded:
        left, right = (
            x if isinstance(x, Bounded) else Bounded(torch.as_tensor(x, dtype=torch.float64)) for x in args[:2]
        )
        if left.error is None and right.error is None:
            return Bounded(value, None, whole)
        reach = left.err + right.err
        unsure = ((_wide(left.value) - _wide(right.value)).abs() <= reach) & (reach > 0)
        return Bounded(value, unsure.double().expand(value.shape), whole)

    def _where(self, args: Any, value: Tensor, whole: bool) -> Bounded:
        condition, x, y = (
            a if isinstance(a, Bounded) else Bounded(torch.as_tensor(a, dtype=torch.float64)) for a in args
        )
        exact = whole and _integral(value)
        if all(b.error is None for b in (condition, x, y)):
            return Bounded(value, None, exact)
        error = torch.where(condition.value, x.err, y.err).expand(value.shape)
        if condition.error is not None:
            wide = _wide(value)
            either = torch.maximum((_wide(x.value) - wide).abs() + x.err, (_wide(y.value) - wide).abs() + y.err)
            error = torch.where(condition.err > 0, _unbounded(either), error)
        return Bounded(value, error, exact)

    def _convert(self, source: Bounded, value: Tensor, whole: bool) -> Bounded:
        """A change of dtype. Rounding to a narrower one is part of the reference: it moves the ends of the interval."""
        exact = whole and _integral(value)
        if value.dtype == torch.bool or not value.is_floating_point():
            return Bounded(value, source.error, exact)
        error = source.error
        if error is not None and value.dtype != torch.float64 and source.value.is_floating_point():
            wide = source.value.double()
            ends = [(wide + s * error).to(value.dtype).double() - value.double() for s in (-1.0, 1.0)]
            error = torch.maximum(torch.maximum(ends[0].abs(), ends[1].abs()), error)
        return Bounded(value, None if error is None else _unbounded(error), exact)

    # --- elementwise ---

    def _rounding(self, name: str, args: Sequence[Any], value: Tensor) -> Tensor:
        """What evaluating one operation in fp32 may add, beside an exact evaluation of its rounded operands."""
        size = value.double().abs()
        first = next((x for x in args if isinstance(x, Bounded)), None)
        flushed: float | Tensor = TINY
        if name in _EXPONENTIAL and first is not None:
            growth = 1.0 + _wide(first.value).abs()
            # silu is x times a sigmoid that is flushed to zero, or whose exp overflows, where it nears 2^-126.
            size, flushed = size * growth, TINY * torch.nan_to_num(growth, posinf=0.0)
        elif name in ("sin", "cos", "tan") and first is not None:
            size = size + 1.0 + _wide(first.value).abs()
        elif name in _ABSOLUTE:
            size = size + 1.0
        elif name == "pow":
            base, power = (_wide(x.value) if isinstance(x, Bounded) else torch.as_tensor(float(x)) for x in args[:2])
            size = size * (1.0 + (power * base.abs().clamp(min=TINY).log()).abs())
        elif name in ("add", "sub", "rsub"):
            # Reassociated sums pass through intermediates as large as their terms.
            for x in args[:2]:
                size = torch.maximum(
                    size,
                    _wide(x.value).abs()
                    if isinstance(x, Bounded)
                    else torch.as_tensor(abs(float(x)), dtype=torch.float64),
                )
        error = self.unit * torch.nan_to_num(size, nan=0.0, posinf=0.0) + flushed
        # An intermediate beyond fp32 becomes infinite in the kernel: nothing can be said about what follows from it.
        return torch.where(value.double().abs() > FP32_MAX, torch.where(torch.isfinite(value), math.inf, 0.0), error)

    def _pointwise(self, target: Any, name: str, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        exact = whole and name in _INTEGRAL and _integral(value)
        if name == "pow" and whole and args[1] in (2, 3):
            exact = _integral(value)
        if exact and all(x.error is None for x in args if isinstance(x, Bounded)):
            return Bounded(value, None, True)
        own = torch.zeros(value.shape, dtype=torch.float64) if name in _ROUNDLESS else self._rounding(name, args, value)
        leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Bounded)]
        if all(x.error is None for x in leaves):
            return Bounded(value, own if name not in _ROUNDLESS else None, exact)
        return Bounded(value, _unbounded(self._passed_on(target, name, args, kwargs, value) + own), exact)

    def _passed_on(self, target: Any, name: str, args: Any, kwargs: Any, value: Tensor) -> Tensor:
        """How far the result moves when each operand moves within its error."""
        if name in ("add", "sub", "rsub"):
            alpha = abs(float(kwargs.get("alpha", args[2] if len(args) > 2 else 1)))
            total = torch.zeros(value.shape, dtype=torch.float64)
            for index, x in enumerate(args[:2]):
                if isinstance(x, Bounded) and x.error is not None:
                    total = total + x.error * (alpha if index == (0 if name == "rsub" else 1) else 1.0)
            return total
        if name == "neg":
            return torch.as_tensor(args[0].err)
        if name == "mul":
            (x, ex), (y, ey) = (
                (_wide(b.value).abs(), b.err)
                if isinstance(b, Bounded)
                else (torch.as_tensor(abs(float(b)), dtype=torch.float64), None)
                for b in args[:2]
            )
            # An infinite factor is exact as such (a mask): zero error beside it stays zero.
            ex = torch.zeros((), dtype=torch.float64) if ex is None else ex
            ey = torch.zeros((), dtype=torch.float64) if ey is None else ey
            return torch.where(ex == 0, 0.0, ex * (y + ey)) + torch.where(ey == 0, 0.0, ey * x)

        moving: list[Bounded] = []

        def shifted(side: float, leaves: list[Tensor] | None = None) -> Tensor:
            def shift(x: Any) -> Any:
                if not isinstance(x, Bounded):
                    return x
                wide = _wide(x.value) if x.value.is_floating_point() or x.error is not None else x.value
                if x.error is None:
                    return wide
                point = wide + side * torch.nan_to_num(x.error, posinf=FP32_MAX)
                if name == "sqrt":
                    point = point.clamp(min=0.0)
                point = point.expand(value.shape).clone()
                if leaves is not None:
                    leaves.append(point.requires_grad_())
                    if len(moving) < len(leaves):
                        moving.append(x)
                return point

            shifted_args, shifted_kwargs = tree_map(shift, (args, kwargs))
            result: Tensor = target(*shifted_args, **shifted_kwargs)
            return result

        wide = value.double()
        ends = torch.maximum((shifted(1.0) - wide).abs(), (shifted(-1.0) - wide).abs())
        if name in _MONOTONE:
            return torch.where(torch.isfinite(wide) | ~torch.isnan(ends), ends, 0.0)
        slopes: list[Tensor] = []
        with torch.enable_grad():
            for side in (0.0, 1.0, -1.0):
                leaves: list[Tensor] = []
                result = shifted(side, leaves)
                if not result.requires_grad:
                    return _unbounded(ends)
                grads = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
                steep = [torch.zeros_like(wide) if g is None else g.abs() for g in grads]
                slopes = steep if not slopes else [torch.maximum(s, g) for s, g in zip(slopes, steep, strict=True)]
        total = torch.zeros(value.shape, dtype=torch.float64)
        for slope, x in zip(slopes, moving, strict=True):
            total = total + torch.where(x.err == 0, 0.0, slope * x.err)
        total = torch.maximum(total, torch.where(total == 0, 0.0, ends))
        pole = args[1] if name in ("div", "true_divide") else args[0]
        if name in _POLES and isinstance(pole, Bounded) and pole.error is not None:
            total = torch.where(pole.value.abs() <= pole.error, math.inf, total)
        if name == "pow" and isinstance(args[0], Bounded) and not (isinstance(args[1], (int, float)) and args[1] >= 0):
            total = torch.where(args[0].value.abs() <= args[0].err, math.inf, total)
        return total

    # --- reductions ---

    def _sum_rounding(self, magnitude: Tensor, terms: int) -> Tensor:
        """√n·u32·Σ|x| for n terms in any order, the same rule as the accumulation's."""
        return self.unit * math.sqrt(max(1, terms)) * magnitude

    def _reduce_sum(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        (x, *rest) = args
        magnitude = target(_wide(x.value).abs(), *rest)
        if whole and _integral(magnitude):
            return Bounded(value, None, True)
        terms = x.value.numel() // max(1, value.numel())
        own = self._sum_rounding(magnitude, terms)
        return Bounded(value, _unbounded(own if x.error is None else own + target(x.err, *rest)))

    def _reduce_cumsum(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        (x, dim, *_) = args
        own = self._sum_rounding(_wide(x.value).abs().cumsum(dim), x.value.shape[dim])
        return Bounded(value, _unbounded(own + x.err.cumsum(dim)))

    def _reduce_amax(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        x = args[0]
        if x.error is None:
            return Bounded(value, None, whole)
        ends = [target(x.value.double() + s * x.error, *args[1:], **kwargs) - value.double() for s in (-1.0, 1.0)]
        error = torch.maximum(ends[0].abs(), ends[1].abs())
        return Bounded(value, torch.where(torch.isfinite(value) | ~torch.isnan(error), error, 0.0), whole)

    _reduce_amin = _reduce_amax

    def _reduce_max(self, target: Any, args: Any, kwargs: Any, value: Any, whole: bool) -> Any:
        if isinstance(value, Tensor):  # over everything, or of two tensors
            if len(args) > 1:
                return self._pointwise(target, "maximum", args, kwargs, value, whole)
            return self._reduce_amax(aten.amax.default, (args[0],), {}, value, whole)
        best = self._reduce_amax(aten.amax.default, (args[0], [args[1]], *args[2:]), {}, value[0], whole)
        return best, Bounded(value[1])

    def _reduce_logsumexp(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        """Convex and increasing: the larger change is upwards. Evaluated online, as max + log(sum(exp(x - max)))."""
        x, dim = args[:2]
        wide, error = x.value.double(), x.err
        keep = torch.logsumexp(wide, dim, True)
        weights = torch.exp(wide - torch.where(torch.isfinite(keep), keep, 0.0))
        top = wide.amax(dim, True)
        distance = torch.where(weights > 0, (top - wide).abs(), 0.0)
        terms = wide.numel() // max(1, value.numel())
        relative = torch.nan_to_num((weights * (1.0 + distance)).sum(dim, True)) + math.sqrt(max(1, terms))
        own = self.unit * (
            relative
            + torch.nan_to_num(keep, nan=0.0, posinf=0.0, neginf=0.0).abs()
            + torch.nan_to_num(top - keep).abs()
        )
        moved = torch.logsumexp(wide + error, dim, True) - keep
        total = own + torch.where(torch.isfinite(keep) | ~torch.isnan(moved), moved, 0.0)
        return Bounded(value, _unbounded(total.reshape(value.shape)))

    def _reduce_any(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        x = args[0]
        return Bounded(value, None if x.error is None else target(x.err > 0, *args[1:], **kwargs).double(), whole)

    _reduce_all = _reduce_any

    def _reduce_mm(self, target: Any, args: Any, kwargs: Any, value: Tensor, whole: bool) -> Bounded:
        """A product inside the reference, such as a rotation by a matrix."""
        x, y = args
        left, right = _wide(x.value).abs(), _wide(y.value).abs()
        magnitude = target(left, right)
        if whole and _integral(magnitude):
            return Bounded(value, None, True)
        own = self._sum_rounding(magnitude, x.value.shape[-1])
        return Bounded(value, _unbounded(own + target(x.err, right + y.err) + target(left, y.err)))

    _reduce_bmm = _reduce_mm


# --- the operator as a whole -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The truth for one case. Everything is by output name, in fp64, with the output's full shape.

    ``error`` is the element-wise bound before the final rounding, ``typical`` the same at one standard deviation,
    ``exact`` tells which outputs no correct kernel can miss.
    """

    values: dict[str, Tensor]
    error: dict[str, Tensor]
    typical: dict[str, Tensor]
    exact: dict[str, bool]


def trace(function: Callable[..., Any], arguments: Sequence[Tensor]) -> fx.GraphModule:
    """The ATen graph of ``function`` on tensors like ``arguments``, without mutation. Depends on their shapes alone."""
    key = (function, tuple((tuple(x.shape), x.dtype, x.device) for x in arguments))
    graph = _traced.get(key)
    if graph is None:
        while len(_traced) >= 128:
            del _traced[next(iter(_traced))]
        graph = _traced[key] = _trace(function, arguments)
    return graph


_traced: dict[Any, fx.GraphModule] = {}


def _trace(function: Callable[..., Any], arguments: Sequence[Tensor]) -> fx.GraphModule:
    table: Any = torch._decomp.get_decompositions(_DECOMPOSED)
    functional = torch.func.functionalize(lambda *xs: tuple(function(*xs)), remove="mutations")
    try:
        return make_fx(functional, decomposition_table=table)(*arguments)
    except AnalysisError:
        raise
    except Exception as error:
        raise AnalysisError(f"the reference cannot be traced: {type(error).__name__}: {error}") from error


def analyse(
    operator: Any,
    a: Tensor,
    w: Tensor,
    operands: Mapping[str, Any],
    *,
    worst_case: bool = False,
) -> Reference:
    """Evaluate ``operator``'s reference in fp64 and derive the error a correct fp32 kernel may have.

    ``a`` (M, K), ``w`` (N, K), operands by name (tensors of their extents, Python numbers for scalars), in the dtypes
    the kernel gets; everything is computed on the device of ``a``. ``worst_case`` grants the accumulation K roundings instead of λ√K: for inputs whose rounding
    errors repeat instead of averaging out (all elements equal).
    """
    device = a.device
    a64, w64 = a.detach().double(), w.detach().double()
    k = a64.shape[1]
    acc = a64 @ w64.T
    magnitude = a64.abs() @ w64.abs().T
    whole = _integral(a64) and _integral(w64) and _integral(magnitude)

    arguments: list[Tensor] = []
    bounded: list[Bounded] = []
    for operand in operator.operands:
        given = operands[operand.name]
        error = None
        if isinstance(given, Tensor):
            value = given.detach()
            value = value.double() if value.is_floating_point() else value.clone()
        elif operand.element == "int":
            value = torch.tensor(int(given), device=device)
        else:
            value = torch.tensor(float(given), dtype=torch.float64, device=device)
            rounding = abs(float(value.float()) - float(given))
            error = torch.full_like(value, 1.01 * rounding) if rounding else None
        arguments.append(value)
        bounded.append(Bounded(value, error, error is None and _integral(value)))

    # The analysis makes its constants where the tensors are.
    with torch.no_grad(), torch.device(device):
        values = operator(acc, *arguments)
        graph = trace(operator, [acc, *arguments])
        found: list[tuple[Bounded, ...]] = []
        for deviations, evaluation in ((DEVIATIONS, EVALUATION), (1.0, EVALUATION / 2)):
            walk = deviations * math.sqrt(k)
            if worst_case:
                walk = max(walk, float(k))
            error = None if whole else walk * U32 * magnitude + (TINY if deviations > 1 else 0.0)
            found.append(ErrorAnalysis(graph, evaluation).run(Bounded(acc, error, whole), *bounded))
    names = [output.name for output in operator.outputs]
    if len(values) != len(names):
        raise AnalysisError(
            f"the reference returns {len(values)} values; its annotation promises {len(names)}: {', '.join(names)}"
        )
    return Reference(
        {name: value.double() for name, value in zip(names, values, strict=True)},
        {name: b.err.expand(b.value.shape) for name, b in zip(names, found[0], strict=True)},
        {name: b.err.expand(b.value.shape) for name, b in zip(names, found[1], strict=True)},
        {name: b.exact for name, b in zip(names, found[0], strict=True)},
    )


def unfused(operator: Any, a: Tensor, w: Tensor, operands: Mapping[str, Any]) -> dict[str, Tensor]:
    """What plain PyTorch gives in the dtype of ``a``, one operation at a time: outputs by name, in their own dtypes.

    Float operands are cast to that dtype, as a user's unfused code would hold them. Where PyTorch has no kernel for
    an operation in that dtype on the CPU, the epilogue runs in fp32 on the rounded product.
    """
    with torch.no_grad(), torch.device(a.device):
        acc = a @ w.T

        def arguments(dtype: torch.dtype) -> list[Tensor]:
            out = []
            for operand in operator.operands:
                given = operands[operand.name]
                value = (
                    given
                    if isinstance(given, Tensor)
                    else torch.tensor(given, dtype=None if operand.element == "int" else dtype)
                )
                out.append(value.to(dtype) if value.is_floating_point() else value)
            return out

        try:
            results = operator(acc, *arguments(a.dtype))
        except RuntimeError:
            results = operator(acc.float(), *arguments(torch.float32))
    return {
        output.name: result.to(torch.float32 if output.reduction else a.dtype)
        for output, result in zip(operator.outputs, results, strict=True)
    }


# --- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Miss:
    """The worst element of an output that is beyond its bound (or not bitwise, or not finite)."""

    index: tuple[int, ...]
    got: float
    expected: float
    bound: float
    ratio: float
    count: int
    message: str


def element_bound(reference: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
    """1.01·u·|ref| + err + half a subnormal of ``dtype``: fp64, shape of ``reference``."""
    info = torch.finfo(dtype)
    subnormal = info.tiny * info.eps
    return SLACK * ROUNDOFF[dtype] * reference.abs() + error + subnormal / 2


def _miss(bad: Tensor, ratio: Tensor, got: Tensor, reference: Tensor, bound: Tensor, message: str) -> Miss:
    worst = torch.where(bad, torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(worst.argmax(), worst.shape))
    return Miss(
        index,
        float(got[index]),
        float(reference[index]),
        float(bound[index]),
        float(worst[index]),
        int(bad.sum()),
        message,
    )


def judge_elements(got: Tensor, reference: Tensor, error: Tensor, dtype: torch.dtype) -> tuple[float, Miss | None]:
    """The worst |y − ref| / bound over judged elements, and the worst element where it is above 1.

    Elements where the reference is NaN, or where the analysis gives no finite bound, are not judged. An infinite
    reference must be met. Overflow to infinity is right exactly where |ref| + bound reaches the dtype's largest number.
    """
    if got.numel() == 0:
        return 0.0, None
    y = got.double()
    bound = element_bound(reference, error, dtype)
    limit = torch.finfo(dtype).max
    judged = ~torch.isnan(reference) & torch.isfinite(bound)
    overflow = torch.isinf(y) & (torch.sign(y) == torch.sign(reference)) & (reference.abs() + bound >= limit)
    saturated = torch.isinf(reference) & (y == reference)
    difference = (y - reference).abs()
    ratio = torch.where(
        overflow | saturated | ~(judged | torch.isinf(reference)) | (difference == 0), 0.0, difference / bound
    )
    ratio = torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf)
    bad = ratio > 1.0
    worst = float(ratio.max())
    return worst, (_miss(bad, ratio, y, reference, bound, "beyond the element-wise bound") if bool(bad.any()) else None)


def unjudged(reference: Tensor, error: Tensor) -> int:
    """Elements that :func:`judge_elements` cannot judge."""
    return int((torch.isnan(reference) | ~torch.isfinite(error) & torch.isfinite(reference)).sum())


def judge_finite(got: Tensor, reference: Tensor, error: Tensor, dtype: torch.dtype) -> Miss | None:
    """Non-finite results only where the reference is, or may overflow ``dtype``."""
    if got.numel() == 0:
        return None
    bound = element_bound(reference, error, dtype)
    allowed = ~torch.isfinite(reference) | ~(reference.abs() + bound < torch.finfo(dtype).max)
    bad = ~torch.isfinite(got) & ~allowed
    if not bool(bad.any()):
        return None
    message = "not finite, though the reference is"
    if bool((bad & torch.isnan(got)).any()):
        message += " (NaN is what memory holds that nobody has written)"
    return _miss(bad, bad.double(), got.double(), reference, bound, message)


def round_to(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 → ``dtype``, rounded once for values that fp32 holds exactly."""
    return reference.float().to(dtype) if dtype != torch.float32 else reference.float()


def judge_exact(got: Tensor, reference: Tensor, dtype: torch.dtype) -> Miss | None:
    """Bitwise equality with the reference rounded once (the sign of a zero apart, which is no result of rounding)."""
    if got.numel() == 0:
        return None
    expected = round_to(reference, dtype)
    bad = got != expected
    if not bool(bad.any()):
        return None
    difference = (got.double() - reference).abs()
    bound = (expected.double() - reference).abs()
    return _miss(
        bad,
        difference,
        got.double(),
        reference,
        bound,
        "integer arithmetic is exact here, so the result must be bitwise",
    )


@dataclass(frozen=True)
class Norms:
    """Relative Frobenius errors of one output against fp64: the kernel's, unfused torch's, and the unavoidable one."""

    kernel: float
    torch: float
    unavoidable: float

    @property
    def passed(self) -> bool:
        return self.kernel <= 1.2 * max(self.torch, self.unavoidable)


def whole_tensor(got: Tensor, baseline: Tensor, reference: Tensor, typical: Tensor, dtype: torch.dtype) -> Norms | None:
    """‖y − ref‖, ‖torch − ref‖ and ‖e‖ over ‖ref‖, where all of them are finite. None where nothing is left.

    e is what a correctly rounded fused kernel cannot avoid: the rounding of the reference to ``dtype`` and one standard
    deviation of the accumulation's error, plus three more standard deviations of the mean of so many elements. It
    keeps tiny outputs, where torch may be exact by luck, from failing.
    """
    rounded = round_to(reference, dtype).double()
    spread = 1.0 + 3.0 / math.sqrt(max(1, reference.numel()))
    unavoidable = (rounded - reference).abs() + spread * typical
    ours, theirs = (got.double() - reference).abs(), (baseline.double() - reference).abs()
    use = torch.isfinite(ours) & torch.isfinite(theirs) & torch.isfinite(unavoidable)
    if not bool(use.any()):
        return None
    # Where everything underflows, errors are measured in units of the smallest normal number.
    smallest = torch.finfo(dtype).tiny * math.sqrt(int(use.sum()))
    size = max(float(torch.linalg.vector_norm(reference[use])), smallest)
    kernel, unfused_error, floor = (float(torch.linalg.vector_norm(x[use])) / size for x in (ours, theirs, unavoidable))
    return Norms(kernel, unfused_error, floor)
