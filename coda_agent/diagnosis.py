"""What kind of mistake a wrong epilogue makes, guessed from cheap experiments in fp64 with the sandbox's evaluator.

An epilogue and its reference are run on small random problems, as one tile and as a tile that reaches beyond the bounds.
Where they differ, one thing is changed at a time, an operand, an output, an operation: the change that makes them agree
names the mistake. Guesses are for whoever writes the next attempt; they decide nothing. Work is limited by count and not by
the clock, so that the same epilogue always gets the same guesses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .compiler.mutate import epilogue_mutants as variations
from .operators import Operator
from .operators.checking import sample_operands
from .sandbox import Epilogue
from .sandbox.evaluator import evaluate
from .sandbox.types import SCALAR

Outputs = dict[str, torch.Tensor]

#: Sizes of the experiments: (M, N), with N a multiple of 4 since widths may be halved; the last is square.
_SIZES = ((5, 12), (8, 8))
#: Rows and columns beyond the bounds of a padded problem.
_BEYOND = (3, 4)
_MOST_VARIATIONS, _MOST_EVALUATIONS, _MOST_GUESSES = 200, 20_000, 4


@dataclass(frozen=True)
class Examination:
    """``exact`` says whether the epilogue is right in fp64 on a full tile, ``padded`` whether it is beyond the bounds too."""

    exact: bool
    padded: bool
    guesses: tuple[str, ...] = ()
    #: The share of its outputs that are right.
    right_share: float = 1.0


@dataclass(frozen=True)
class _World:
    """One problem and what the reference makes of it."""

    acc: torch.Tensor
    operands: dict[str, torch.Tensor]
    expected: Outputs


def examine(operator: Operator, epilogue: Epilogue) -> Examination:
    """Compare ``epilogue`` with the reference, and guess where they part. Never raises for what either of them does."""
    try:
        worlds = [_world(operator, m, n, seed) for seed, (m, n) in enumerate(_SIZES)]
    except Exception:  # the reference is the user's code; what it cannot do is for the verifier to say
        return Examination(True, True)
    exact = _agrees(epilogue, worlds)
    padded = exact and all(_agrees_padded(epilogue, world) for world in worlds)
    if padded:
        return Examination(True, True)
    if exact:
        masked = "columns with `col_index() < num_cols()`, rows with `row_index() < num_rows()`"
        return Examination(
            True,
            False,
            (
                f"a mask is missing: the result is right on a full tile and wrong where a tile reaches beyond the matrix; mask {masked}",
            ),
        )
    guesses: list[str] = []
    for guess in _guesses(operator, epilogue, worlds):
        if guess not in guesses:
            guesses.append(guess)
        if len(guesses) == _MOST_GUESSES:
            break
    words, share = _which(epilogue, worlds)
    return Examination(False, False, (words, *guesses), share)


def of_counterexample(found: Mapping[str, Any], examination: Examination) -> tuple[str, ...]:
    """What the numbers of a counterexample add to an examination."""
    if found.get("reason") or found.get("got") is None:
        return ()
    if examination.exact and examination.padded:
        got = str(found["got"])
        if got in ("nan", "inf", "-inf"):
            return (
                f"the formula is right in exact arithmetic, but an intermediate value overflows or is undefined in fp32 (it gives {got}): "
                "use a primitive made for it (online_logsumexp, softplus, sigmoid, silu, tanh), or bring the argument into range",
            )
        return (
            "the formula is right in exact arithmetic: this is precision. Look for differences of nearly equal numbers, for a "
            "function rebuilt from others (there are primitives for most), and for an order of operations unlike the reference's",
        )
    return ()


# --- Experiments -----------------------------------------------------------------------------------------------------


def _guesses(operator: Operator, epilogue: Epilogue, worlds: Sequence[_World]) -> Iterator[str]:
    unused = [name for name in epilogue.signature.operands if name not in epilogue.loads]
    yield from _operand_guesses(operator, epilogue, worlds, unused)
    yield from _output_guesses(epilogue, worlds, unused)
    most = min(_MOST_VARIATIONS, _MOST_EVALUATIONS // max(1, sum(1 for _ in epilogue.values())))
    for kind, change, varied in itertools.islice(variations(epilogue), most):
        if _agrees(varied, worlds):
            yield f"one change would make it right ({kind}): {change}"
            break
    if unused:
        yield f"never loaded: {', '.join(f'`{name}`' for name in unused)}; does the reference use {'it' if len(unused) == 1 else 'them'}?"


def _operand_guesses(
    operator: Operator, epilogue: Epilogue, worlds: Sequence[_World], unused: Sequence[str]
) -> Iterator[str]:
    """Other inputs for the epilogue that give what the reference gives for the true ones, and the reverse."""
    floats = [name for name, operand in epilogue.signature.operands.items() if operand.element == "float"]
    for first, second in itertools.combinations(floats, 2):
        alike = epilogue.signature.operands[first].extent == epilogue.signature.operands[second].extent
        if alike and _agrees(epilogue, worlds, lambda o, a=first, b=second: {**o, a: o[b], b: o[a]}):  # type: ignore[misc]
            yield f"`{first}` and `{second}` are exchanged (swapped pair)"
    for name in floats:
        for what, change in (
            ("has the wrong sign", lambda x: -x),
            ("is applied as its reciprocal, or divides where it should multiply", lambda x: 1 / x),
        ):
            if name not in unused and _agrees(epilogue, worlds, lambda o, n=name, c=change: {**o, n: c(o[n])}):  # type: ignore[misc]
                yield f"`{name}` {what}"
    for name in floats:
        for what, change in (("0", torch.zeros_like), ("1", torch.ones_like)):
            if all(
                _same(_run(epilogue, w), _reference(operator, w, {**w.operands, name: change(w.operands[name])}))
                for w in worlds
            ):
                yield f"the result is that of the reference with `{name}` = {what}: a term or factor with `{name}` is missing"
    for what, view in (
        ("negated (sign)", torch.neg),
        ("with the columns of each pair exchanged (swapped pair)", _swap_pairs),
    ):
        seen = [(_run(epilogue, w), _run(epilogue, w, acc=view(w.acc)), w.expected) for w in worlds]
        wrong = {n for now, _, want in seen if now for n in want if not _close(now[n], want[n])}
        if wrong and all(changed and all(_close(changed[n], want[n]) for n in wrong) for _, changed, want in seen):
            yield f"{', '.join(f'`{n}`' for n in sorted(wrong))} would be right with `acc` {what}"


def _output_guesses(epilogue: Epilogue, worlds: Sequence[_World], unused: Sequence[str]) -> Iterator[str]:
    """Simple relations between what an output is and what it must be."""
    results = [_run(epilogue, world) for world in worlds]
    if any(result is None for result in results):
        return
    pairs: list[tuple[_World, Outputs]] = [(w, r) for w, r in zip(worlds, results, strict=True) if r is not None]
    for name in epilogue.signature.outputs:
        if all(_close(result[name], world.expected[name]) for world, result in pairs):
            continue

        def holds(check: Callable[[torch.Tensor, torch.Tensor, _World], bool], output: str = name) -> bool:
            return all(check(result[output], world.expected[output], world) for world, result in pairs)

        if holds(lambda got, want, _: _close(-got, want)):
            yield f"`{name}` has the wrong sign everywhere"
        if holds(lambda got, want, _: got.dim() == 2 and _close(_swap_pairs(got), want)):
            yield f"in `{name}` the two columns of each pair are exchanged (swapped pair): interleave(even, odd) in that order"
        if holds(lambda got, want, w: got.dim() != 2 or got.shape[0] != got.shape[1] or _close(got.T, want)) and holds(
            lambda got, want, w: got.dim() == 2
        ):
            yield f"`{name}` is transposed: a value of the rows was broadcast along the columns, or the reverse (transposed broadcast)"
        for other in epilogue.signature.outputs:
            if other != name and all(
                result[name].shape == world.expected[other].shape and _close(result[name], world.expected[other])
                for world, result in pairs
            ):
                yield f"`{name}` holds what belongs in `{other}`"
        constants = [_constant(got[name] / world.expected[name]) for world, got in pairs]
        if constants[0] is not None and all(
            c is not None and abs(c - constants[0]) < 1e-6 * abs(constants[0]) for c in constants
        ):
            yield f"`{name}` is {constants[0]:.6g} times what it must be (a constant factor)"
        offsets = [_constant(got[name] - world.expected[name]) for world, got in pairs]
        if offsets[0] is not None and all(
            c is not None and abs(c - offsets[0]) < 1e-6 * abs(offsets[0]) for c in offsets
        ):
            yield f"`{name}` is {offsets[0]:+.6g} off everywhere (a constant term)"
        for operand, spec in epilogue.signature.operands.items():
            if spec.element != "float" or spec.extent == SCALAR:
                continue
            column = spec.extent.rows and not spec.extent.columns

            def value(world: _World, operand: str = operand, column: bool = column) -> torch.Tensor:
                found = world.operands[operand]
                return found[:, None] if column else found

            for what, check in (
                ("a factor `{}` is missing", lambda got, want, v: _close(got * v, want)),
                ("there is a factor `{}` too many", lambda got, want, v: _close(got / v, want)),
                ("a term `{}` is missing (dropped term)", lambda got, want, v: _close(got + v, want)),
                (
                    "there is a term `{}` too many, or of the wrong sign",
                    lambda got, want, v: _close(got - v, want) or _close(got - 2 * v, want),
                ),
            ):
                if holds(lambda got, want, w, c=check, f=value: _fits(f(w), got) and c(got, want, f(w))):  # type: ignore[misc]
                    yield f"in `{name}` {what.format(operand)}"


def _which(epilogue: Epilogue, worlds: Sequence[_World]) -> tuple[str, float]:
    """Which outputs are wrong, and how widely; the share of those that are right."""
    world = worlds[0]
    result = _run(epilogue, world)
    if result is None:
        return "the epilogue cannot be evaluated", 0.0
    wrong, right = [], []
    for name, got in result.items():
        want = world.expected[name]
        if got.shape == want.shape and _close(got, want):
            right.append(f"`{name}`")
            continue
        share = (
            1.0 if got.shape != want.shape else float((~torch.isclose(got, want, rtol=1e-6, atol=1e-9)).double().mean())
        )
        wrong.append(f"`{name}` ({share:.0%} of its elements)")
    beside = f"; right: {', '.join(right)}" if right else ""
    words = f"the formula itself is wrong, not its precision: wrong are {', '.join(wrong) or 'some sizes'}{beside}"
    return words, len(right) / max(1, len(right) + len(wrong))


# --- Running both ----------------------------------------------------------------------------------------------------


def _world(operator: Operator, m: int, n: int, seed: int) -> _World:
    generator = torch.Generator().manual_seed(seed)
    acc = torch.randn(m, n, generator=generator, dtype=torch.float64)
    operands = sample_operands(operator, m, n, dtype=torch.float64, generator=generator)
    expected = operator(acc.clone(), *(operand.clone() for operand in operands.values()))
    names = [output.name for output in operator.outputs]
    return _World(acc, operands, {name: value.to(torch.float64) for name, value in zip(names, expected, strict=True)})


def _reference(operator: Operator, world: _World, operands: Mapping[str, torch.Tensor]) -> Outputs | None:
    try:
        found = operator(world.acc.clone(), *(operand.clone() for operand in operands.values()))
    except Exception:
        return None
    return {output.name: value.to(torch.float64) for output, value in zip(operator.outputs, found, strict=True)}


def _run(
    epilogue: Epilogue,
    world: _World,
    operands: Mapping[str, torch.Tensor] | None = None,
    acc: torch.Tensor | None = None,
) -> Outputs | None:
    try:
        return evaluate(epilogue, world.acc if acc is None else acc, world.operands if operands is None else operands)
    except Exception:
        return None


def _agrees(
    epilogue: Epilogue,
    worlds: Sequence[_World],
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
) -> bool:
    return all(
        _same(_run(epilogue, world, change(world.operands) if change else None), world.expected) for world in worlds
    )


def _agrees_padded(epilogue: Epilogue, world: _World) -> bool:
    """Whether the epilogue is right on a tile that reaches beyond its matrix, where everything loaded is 0."""
    m, n = world.acc.shape
    rows, columns = m + _BEYOND[0], n + _BEYOND[1]
    acc = _padded(world.acc, (rows, columns))
    operands = {}
    for name, operand in epilogue.signature.operands.items():
        extent, value = operand.extent, world.operands[name]
        full = ([rows] if extent.rows else []) + ([columns * extent.columns // 2] if extent.columns else [])
        operands[name] = _padded(value, full) if full else value
    try:
        found = evaluate(epilogue, acc, operands, size=(m, n))
    except Exception:
        return False
    cropped = {
        name: value[tuple(slice(0, size) for size in world.expected[name].shape)] for name, value in found.items()
    }
    return _same(cropped, world.expected)


def _padded(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    full = torch.zeros(*shape, dtype=value.dtype)
    full[tuple(slice(0, size) for size in value.shape)] = value
    return full


def _same(got: Outputs | None, want: Outputs | None) -> bool:
    return (
        got is not None
        and want is not None
        and all(got[name].shape == want[name].shape and _close(got[name], want[name]) for name in want)
    )


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(torch.allclose(got, want, rtol=1e-7, atol=1e-9, equal_nan=True))


def _constant(values: torch.Tensor) -> float | None:
    """The one number that ``values`` hold throughout, if it is neither 0 nor 1."""
    first = float(values.flatten()[0])
    same = torch.allclose(values, torch.full_like(values, first), rtol=1e-7, atol=1e-9)
    return first if same and abs(first) > 1e-6 and abs(first - 1) > 1e-6 else None


def _fits(value: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether ``value`` broadcasts to the shape of ``result``."""
    try:
        return bool(torch.broadcast_shapes(value.shape, result.shape) == result.shape)
    except RuntimeError:
        return False


def _swap_pairs(value: torch.Tensor) -> torch.Tensor:
    if value.shape[-1] % 2:
        return value
    swapped: torch.Tensor = value.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return swapped
