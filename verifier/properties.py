"""What must hold of a kernel, each property by name, judged from the tensors that a worker sends back.

==========================  ==========================================================================================
contract                    runs; exact names, shapes, dtypes and strides; every element written, and nothing around
                            it; inputs untouched; nothing non-finite unless the reference is
exact_integers              on integer inputs, outputs that fp32 computes exactly are bitwise the reference
elementwise_bound           every element within the bound that :mod:`verifier.bounds` derives
whole_tensor_error          the Frobenius error no worse than unfused PyTorch's, up to 1.2 and the unavoidable
pytorch_form                the kernel's plain-PyTorch form keeps the same bounds
determinism                 the same launch three times gives the same bits
tma_and_pointer_agree       a TMA case run through pointers keeps the same bounds
configurations_agree        so does the case in another tiling
rows_commute                rows in another order give the same bits in that order; sums over them keep the bounds
columns_commute             so do columns (or pairs of them), where the reference itself allows it
batches_agree               the rows in two batches give the same bits as all at once
edges                       one row, or as few columns as there can be, keep all of the above
empty                       no rows: outputs of the right shapes, reductions at their neutral element
==========================  ==========================================================================================
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from . import bounds, relations
from .bounds import Miss
from .cases import (
    MARGIN,
    Case,
    Inputs,
    SignatureLike,
    column_multiple,
    extent_shape,
    is_tile,
    materialise,
    strategy,
    torch_dtype,
)
from .isolation import Worker, WorkerFailure
from .worker import CANARY, prefill_bits

PROPERTIES = (
    "contract",
    "exact_integers",
    "elementwise_bound",
    "whole_tensor_error",
    "pytorch_form",
    *relations.PROPERTY.values(),
    "edges",
    "empty",
)


@dataclass(frozen=True)
class Failure:
    """A property that does not hold, on one case. ``reason`` is set where the process failed rather than the numbers."""

    prop: str
    case: Case
    message: str
    output: str | None = None
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    ratio: float | None = None
    count: int | None = None
    reason: str | None = None
    scalars: dict[str, float | int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """One line for a person, or for the author's next attempt."""
        case = self.case
        where = f"{self.output}{list(self.index) if self.index is not None else ''}: " if self.output else ""
        what = self.message
        if self.got is not None and self.expected is not None:
            what += f"; got {self.got:.7g}, expected {self.expected:.7g}"
            if self.bound is not None and self.ratio is not None:
                what += f" ± {self.bound:.3g} (off by {self.ratio:.3g} times the bound)"
        if self.count is not None and self.count > 1:
            what += f"; {self.count} elements"
        inputs = f"{case.regime} inputs" + (f" at scale {case.scale:g}" if case.scale != 1.0 else "")
        tiling = case.tiling
        return (
            f"{self.prop}: {where}{what} [M={case.m} N={case.n} K={case.k}, {case.dtype}, {inputs}, a {case.a_layout}, w {case.w_layout}, "
            f"tiles {tiling.block_m}x{tiling.block_n}x{tiling.block_k}{'/' + str(tiling.subtiles) if tiling.subtiles > 1 else ''}"
            f"{', TMA' if tiling.tma is not False else ''}, seed {case.seed}]"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; numbers that JSON lacks become strings."""

        def plain(value: float | None) -> float | str | None:
            return value if value is None or math.isfinite(value) else str(value)

        case = self.case.as_dict()
        return {
            "property": self.prop,
            "output": self.output,
            "index": list(self.index) if self.index is not None else None,
            "got": plain(self.got),
            "expected": plain(self.expected),
            "bound": plain(self.bound),
            "ratio": plain(self.ratio),
            "count": self.count,
            "message": self.message,
            "reason": self.reason,
            "shapes": {"M": self.case.m, "N": self.case.n, "K": self.case.k},
            "dtype": self.case.dtype,
            "layouts": {name: case[f"{name}_layout"] for name in ("a", "w", "tile", "output")},
            "regime": self.case.regime,
            "scale": self.case.scale,
            "config": case["tiling"],
            "seed": self.case.seed,
            "scalars": self.scalars,
            "case": case,
            "line": self.line,
        }


@dataclass
class Tally:
    """What was tried and how close it came."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROPERTIES, 0))
    cases: int = 0
    skipped: int = 0
    max_error_ratio: float = 0.0
    kernel_error: float = 0.0
    torch_error: float = 0.0
    elements: int = 0
    unjudged: int = 0

    @property
    def percent_of_torch_error(self) -> float | None:
        """The kernel's error over unfused PyTorch's in percent: each the root of the sum, over every output of every
        case, of the squared relative Frobenius error against fp64. Relative, so that no scale outweighs the others."""
        return 100.0 * math.sqrt(self.kernel_error / self.torch_error) if self.torch_error else None

    @property
    def unjudged_share(self) -> float:
        """The share of elements without a finite bound: the reference is not finite there, or its analysis ends."""
        return self.unjudged / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class Expected:
    """All the parent knows about one case before it sees the kernel's answer."""

    inputs: Inputs
    digest: str
    reference: bounds.Reference | None
    baseline: dict[str, Tensor]


class Memory:
    """What is known about cases, kept for several candidates; threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Case, Expected] = {}
        # Tracing a reference is not safe in two threads.
        self._lock = threading.Lock()

    def get(self, case: Case, make: Callable[[Case], Expected]) -> Expected:
        with self._lock:
            if case not in self._known:
                self._known[case] = make(case)
            return self._known[case]


class Judge:
    """Runs cases through a worker and says what fails. One per candidate.

    ``memory`` keeps what is known about a case for the next candidates, ``device`` is where references are computed.
    ``form`` "pytorch" judges the kernel's PyTorch form in place of the kernel, to exercise the gate without launches.
    """

    def __init__(
        self,
        operator: Any,
        worker: Worker,
        *,
        memory: Memory | None = None,
        device: str = "cpu",
        form: str = "kernel",
    ) -> None:
        self.operator = operator
        self.form = form
        self.signature: SignatureLike = operator
        self.worker = worker
        self.memory = memory
        self.device = device
        self.tally = Tally()

    # --- one case ---

    def check(self, case: Case, *, first: bool = False) -> list[Failure]:
        """Every property that applies, on one case; ``first``: only up to the first that fails.

        Raises :class:`WorkerFailure` only where the worker is gone. A case whose configuration needs more registers or
        shared memory than the device has is counted as skipped.
        """
        tally = self.tally
        try:
            self.worker.submit(case, self.form)
            # While the worker runs the kernel.
            try:
                expected = self.expect(case)
            finally:
                header, raw = self.worker.result()
        except WorkerFailure as failure:
            if failure.fatal:
                raise
            if failure.reason == "out-of-resources":
                tally.skipped += 1
                return []
            tally.cases += 1
            message = f"{failure.reason}: {failure.message}"
            return [Failure("contract", case, message, reason=failure.reason, scalars=self._scalars(case))]
        tally.cases += 1
        tally.tried["contract" if case.m else "empty"] += 1
        tally.tried["edges"] += case.m == 1 or (case.m > 1 and case.n == column_multiple(self.signature))
        failures = self._own(case, expected, header, raw, first)
        if not failures and case.m and self.form == "kernel":
            failures = self._related(case, expected, raw)
        scalars = expected.inputs.scalars
        return [replace(failure, scalars=dict(scalars)) for failure in failures]

    def _scalars(self, case: Case) -> dict[str, float | int]:
        return dict(materialise(case, self.signature).scalars)

    def _own(
        self, case: Case, expected: Expected, header: dict[str, Any], raw: dict[str, bytes], first: bool
    ) -> list[Failure]:
        """What the launch itself and the PyTorch form give."""
        failures: list[Failure] = []

        def judge() -> None:
            broken, outputs = self._contract("contract" if case.m else "empty", case, expected, header, raw)
            failures.extend(broken)
            if outputs is not None:
                failures.extend(self._numbers(case, expected, outputs))

        if first:
            judge()
            if failures:
                return failures
        try:
            self.worker.submit(case, "pytorch")
            try:
                if not first:
                    judge()
            finally:
                form_header, form_raw = self.worker.result()
        except WorkerFailure as failure:
            if failure.fatal:
                raise
            if expected.reference is not None:
                message = f"the PyTorch form raised: {failure.message}"
                failures.append(Failure("pytorch_form", case, message, reason=failure.reason))
            return failures
        self.tally.tried["pytorch_form"] += 1
        broken, outputs = self._contract("pytorch_form", case, expected, form_header, form_raw)
        failures += broken
        if outputs is not None:
            failures += self._within("pytorch_form", case, expected, outputs)
        return failures

    def expect(self, case: Case) -> Expected:
        """What the parent knows about a case before it sees an answer."""
        return self.memory.get(case, self._expect) if self.memory else self._expect(case)

    def _expect(self, case: Case) -> Expected:
        inputs = materialise(case, self.signature)
        digest = inputs.digest()
        if case.m == 0:
            return Expected(inputs, digest, None, {})
        placed = inputs.to(self.device)
        a, w, operands = placed.a, placed.w, placed.operands
        reference = bounds.analyse(self.operator, a, w, operands, worst_case=case.regime == "equal")
        for output in self.operator.outputs:
            shape = extent_shape(output.extent, case.m, case.n)
            if reference.values[output.name].shape != shape:
                found = tuple(reference.values[output.name].shape)
                raise bounds.AnalysisError(
                    f"the reference's {output.name} has shape {found}; its annotation {output.extent} means {shape}"
                )
        return Expected(inputs, digest, reference, bounds.unfused(self.operator, a, w, operands))

    def _wanted(self, case: Case) -> list[Any]:
        return [o for o in self.operator.outputs if case.optional or not o.optional]

    @staticmethod
    def dtype(case: Case, output: Any) -> torch.dtype:
        return torch.float32 if output.reduction else torch_dtype(case.dtype)

    # --- contract ---

    def _contract(
        self, name: str, case: Case, expected: Expected, header: dict[str, Any], raw: dict[str, bytes]
    ) -> tuple[list[Failure], dict[str, Tensor] | None]:
        """Failures of the contract, and the outputs by name where their shapes and dtypes are right."""

        def fail(message: str, output: str | None = None, **more: Any) -> Failure:
            return Failure(name, case, message, output, **more)

        entries = {entry["name"]: entry for entry in header["outputs"]}
        wanted = self._wanted(case)
        names = [o.name for o in wanted]
        if set(entries) != set(names):
            return [fail(f"returned outputs {sorted(entries)}, asked for {sorted(names)}")], None
        outputs: dict[str, Tensor] = {}
        failures: list[Failure] = []
        for output in wanted:
            entry = entries[output.name]
            shape, dtype = extent_shape(output.extent, case.m, case.n), self.dtype(case, output)
            if tuple(entry["shape"]) != shape or entry["dtype"] != str(dtype).removeprefix("torch."):
                failures.append(
                    fail(
                        f"is {entry['dtype']} {tuple(entry['shape'])}, must be {str(dtype).removeprefix('torch.')} {shape}",
                        output.name,
                    )
                )
                continue
            if self.worker.backend == "interpreter" and entry["device"] != "cpu":
                failures.append(fail(f"is on {entry['device']}, must be where the inputs are", output.name))
            flat = _tensor(raw[output.name], dtype)
            if name != "pytorch_form" and entry["shares"]:
                failures.append(fail(f"shares its memory with {entry['shares']}", output.name))
                continue
            if not entry["guarded"]:
                outputs[output.name] = flat.reshape(shape).to(self.device)
                continue
            if not entry["in_place"]:
                failures.append(fail("was not returned in the buffer given by out=", output.name))
            pitch = int(entry["pitch"])
            value = flat.as_strided(shape, (pitch, 1), MARGIN)
            outputs[output.name] = value.to(self.device)
            failures += self._guards(fail, output.name, flat, value, shape, pitch, case)
        if header["digest"] != expected.digest:
            failures.append(fail("an input was changed"))
        reference = expected.reference
        if reference is None:
            failures += self._neutral(fail, wanted, outputs)
        elif not failures:
            for output in wanted:
                miss = bounds.judge_finite(
                    outputs[output.name],
                    reference.values[output.name],
                    reference.error[output.name],
                    self.dtype(case, output),
                )
                if miss:
                    failures.append(self._missed(name, case, output.name, miss))
        return failures, None if failures or reference is None else outputs

    @staticmethod
    def _guards(
        fail: Callable[..., Failure],
        name: str,
        flat: Tensor,
        value: Tensor,
        shape: tuple[int, ...],
        pitch: int,
        case: Case,
    ) -> list[Failure]:
        """The canaries around an output and between its rows, and the elements that nobody wrote."""
        size = flat.element_size()
        outside = torch.ones(flat.shape, dtype=torch.bool)
        outside.as_strided(shape, (pitch, 1), MARGIN).fill_(False)
        touched = (flat.view(torch.uint8).reshape(-1, size) != CANARY).any(1) & outside
        if bool(touched.any()):
            at = int(touched.nonzero()[0]) - MARGIN
            row, column = divmod(at, pitch)
            place = "before the output" if at < 0 else "after the output" if row >= shape[0] else "between rows"
            return [fail(f"wrote outside its bounds ({place})", name, index=(row, column), count=int(touched.sum()))]
        integers = torch.int32 if size == 4 else torch.int16
        bits = prefill_bits(case.dtype)
        stale = flat.view(integers).as_strided(shape, (pitch, 1), MARGIN) == bits
        if bool(stale.any()):
            row, column = (int(i) for i in stale.nonzero()[0])
            message = "some elements were never written, or come from memory that was not"
            return [fail(message, name, index=(row, column), count=int(stale.sum()))]
        return []

    @staticmethod
    def _neutral(fail: Callable[..., Failure], wanted: Sequence[Any], outputs: dict[str, Tensor]) -> list[Failure]:
        """With no rows, a reduction over them is the neutral element of what combines it."""
        failures = []
        for output in wanted:
            value = outputs.get(output.name)
            neutral = 0.0 if output.reduction == "sum" else -math.inf
            if value is not None and value.numel() and not bool((value == neutral).all()):
                failures.append(
                    fail(
                        f"must be {neutral} when there are no rows",
                        output.name,
                        got=float(value.flatten()[0]),
                        expected=neutral,
                    )
                )
        return failures

    # --- numbers ---

    @staticmethod
    def _missed(name: str, case: Case, output: str, miss: Miss) -> Failure:
        return Failure(
            name, case, miss.message, output, miss.index, miss.got, miss.expected, miss.bound, miss.ratio, miss.count
        )

    def _numbers(self, case: Case, expected: Expected, outputs: dict[str, Tensor]) -> list[Failure]:
        assert expected.reference is not None
        reference, tally = expected.reference, self.tally
        tally.tried["elementwise_bound"] += 1
        tally.tried["whole_tensor_error"] += 1
        failures = []
        exact = False
        for output in self._wanted(case):
            name, dtype = output.name, self.dtype(case, output)
            got, truth = outputs[name], reference.values[name]
            if reference.exact[name]:
                exact = True
                miss = bounds.judge_exact(got, truth, dtype)
                if miss:
                    failures.append(self._missed("exact_integers", case, name, miss))
            ratio, miss = bounds.judge_elements(got, truth, reference.error[name], dtype)
            tally.elements += truth.numel()
            tally.unjudged += bounds.unjudged(truth, reference.error[name])
            if math.isfinite(ratio):
                tally.max_error_ratio = max(tally.max_error_ratio, ratio)
            if miss:
                failures.append(self._missed("elementwise_bound", case, name, miss))
            norms = bounds.whole_tensor(got, expected.baseline[name], truth, reference.typical[name], dtype)
            if norms is None:
                continue
            tally.kernel_error += norms.kernel**2
            tally.torch_error += norms.torch**2
            if not norms.passed:
                message = (
                    f"relative Frobenius error {norms.kernel:.3g}; unfused PyTorch has {norms.torch:.3g}, "
                    f"a correctly rounded kernel about {norms.unavoidable:.3g}"
                )
                limit = 1.2 * max(norms.torch, norms.unavoidable)
                ratio = norms.kernel / limit if limit else math.inf
                failures.append(Failure("whole_tensor_error", case, message, name, bound=limit, ratio=ratio))
        tally.tried["exact_integers"] += exact
        return failures

    def _within(
        self,
        name: str,
        case: Case,
        expected: Expected,
        outputs: dict[str, Tensor],
        only: Sequence[Any] | None = None,
    ) -> list[Failure]:
        """The element-wise and exact bounds, attributed to ``name``."""
        assert expected.reference is not None
        reference = expected.reference
        failures = []
        for output in self._wanted(case) if only is None else only:
            got, dtype = outputs[output.name], self.dtype(case, output)
            truth = reference.values[output.name]
            _, miss = bounds.judge_elements(got, truth, reference.error[output.name], dtype)
            if not miss and reference.exact[output.name]:
                miss = bounds.judge_exact(got, truth, dtype)
            if miss:
                failures.append(self._missed(name, case, output.name, miss))
        return failures

    def _related(self, case: Case, expected: Expected, raw: dict[str, bytes]) -> list[Failure]:
        """The launches of the case's relation, and how they agree with its own."""
        if not case.relation:
            return []
        assert expected.reference is not None
        name, reference = relations.PROPERTY[case.relation], expected.reference
        rearranging = case.relation in ("rows", "columns", "batches")
        parts: dict[str, list[Tensor]] = {}
        for other in relations.launches(case):
            moved = relations.Rearranged(other)
            known = expected
            if rearranging:
                if not relations.commutes(self.operator, expected.inputs.to(self.device), reference.values, moved):
                    return []
                known = self._moved(expected, moved)
            try:
                header, again = self.worker.run(other)
            except WorkerFailure as failure:
                if failure.fatal:
                    raise
                if failure.reason == "out-of-resources":
                    return []
                return [Failure(name, case, f"{failure.reason}: {failure.message}", reason=failure.reason)]
            failures, outputs = self._contract(name, other, known, header, again)
            if outputs is None:
                return [replace(f, case=case) for f in failures]
            if case.relation == "repeat":
                differ = [key for key in raw if raw[key] != again[key]]
                if differ:
                    failures = [Failure(name, case, "launches on the same inputs gave different bits", differ[0])]
            else:
                whole = [o for o in self._wanted(other) if not moved.partial(o)]
                failures = self._within(name, other, known, outputs, whole)
                if rearranging and not failures:
                    failures = self._same_bits(name, case, raw, outputs, moved, whole)
                for output in self._wanted(other):
                    if moved.partial(output):
                        parts.setdefault(output.name, []).append(outputs[output.name])
            if failures:
                return [replace(f, case=case) for f in failures]
        self.tally.tried[name] += 1
        for output in self._wanted(case):
            if output.name in parts:
                got = relations.combine(parts[output.name], output.reduction)
                truth, error = reference.values[output.name], reference.error[output.name]
                _, miss = bounds.judge_elements(got, truth, error, self.dtype(case, output))
                if miss:
                    return [self._missed(name, case, output.name, miss)]
        return []

    def _moved(self, expected: Expected, moved: relations.Rearranged) -> Expected:
        """What is known about a launch on rearranged inputs."""
        assert expected.reference is not None
        reference = expected.reference
        extents = {o.name: o.extent for o in self.operator.outputs}

        def each(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {key: moved(value, extents[key]) for key, value in values.items()}

        inputs = materialise(moved.case, self.signature)
        there = replace(reference, values=each(reference.values), error=each(reference.error))
        if moved.case.window is not None:
            # Of a reduction over the rows, only a batch's part comes: nothing is known about that alone.
            for output in self.operator.outputs:
                if moved.partial(output):
                    there.error[output.name] = torch.full_like(there.error[output.name], math.inf)
        return Expected(inputs, inputs.digest(), there, {})

    def _same_bits(
        self,
        name: str,
        case: Case,
        raw: dict[str, bytes],
        outputs: dict[str, Tensor],
        moved: relations.Rearranged,
        whole: Sequence[Any],
    ) -> list[Failure]:
        for output in whole:
            if not moved.bitwise(output):
                continue
            shape, dtype = extent_shape(output.extent, case.m, case.n), self.dtype(case, output)
            first = _tensor(raw[output.name], dtype)
            if is_tile(output.extent) and case.output_layout != "own":
                first = first.as_strided(shape, (case.pitch(shape[1]), 1), MARGIN)
            first, second = moved(first.reshape(shape), output.extent), outputs[output.name].cpu()
            differ = (first != second) & ~(first.isnan() & second.isnan())
            if bool(differ.any()):
                index = tuple(int(i) for i in differ.nonzero()[0])
                got, expected = float(second[index]), float(first[index])
                message = "rearranged inputs gave other bits than those of the first launch"
                count = int(differ.sum())
                return [Failure(name, case, message, output.name, index, got, expected, count=count)]
        return []


def _tensor(raw: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)


# --- searching -------------------------------------------------------------------------------------------------------


class _Failed(Exception):
    """A case failed; hypothesis shrinks what raises this."""


class _Stop(BaseException):
    """Leave hypothesis at once: the worker is gone, or time is up. Not an Exception, so that it does not shrink."""


@dataclass
class Search:
    """One hypothesis run over a strategy: draws, and shrinks the first failure for at most ``shrink_seconds``."""

    judge: Judge
    deadline: float
    shrink_seconds: float = 12.0
    on_case: Callable[[], None] = lambda: None
    smallest: Failure | None = None
    out_of_time: bool = False

    def run(self, cases: Any, examples: int, seed: int) -> Failure | None:
        """The smallest failure found, or None. Raises :class:`WorkerFailure` only where the worker cannot start."""
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity

        shrink_until = math.inf

        def attempt(case: Case) -> None:
            nonlocal shrink_until
            now = time.monotonic()
            if self.smallest is None and now > self.deadline:
                self.out_of_time = True
                raise _Stop
            if now > shrink_until:
                raise _Stop
            try:
                failures = self.judge.check(case)
            except WorkerFailure as failure:
                if failure.reason == "worker-not-ready":
                    raise
                if self.smallest is None:
                    message = f"{failure.reason}: {failure.message}" if failure.message else failure.reason
                    self.smallest = Failure("contract", case, message, reason=failure.reason)
                raise _Stop from failure
            self.on_case()
            if self.smallest is not None:
                # Shrinking: only the property that failed first counts, so that the search stays on one bug.
                failures = [f for f in failures if f.prop == self.smallest.prop and f.reason == self.smallest.reason]
            if not failures:
                return
            first = failures[0]
            if self.smallest is None:
                shrink_until = now + self.shrink_seconds
            if self.smallest is None or case.work <= self.smallest.case.work:
                self.smallest = first
            raise _Failed(first.line)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @hypothesis.given(cases)
        def holds(case: Case) -> None:
            attempt(case)

        try:
            holds()
        except _Stop:
            pass
        except (WorkerFailure, bounds.AnalysisError):
            raise
        except Exception:
            # _Failed, or hypothesis's report that a failure did not repeat.
            if self.smallest is None:
                raise
        return self.smallest

    def replay(self, case: Case) -> Failure | None:
        """One given case, without drawing or shrinking."""
        try:
            failures = self.judge.check(case)
        except WorkerFailure as failure:
            if failure.reason == "worker-not-ready":
                raise
            message = f"{failure.reason}: {failure.message}" if failure.message else failure.reason
            failures = [Failure("contract", case, message, reason=failure.reason)]
        self.on_case()
        self.smallest = failures[0] if failures else None
        return self.smallest


def plan(operator: Any, backend: Any, examples: int, tilings: Sequence[Any] | None) -> list[tuple[Any, int]]:
    """The strategies of a verification, each with its number of examples: everything, integers only, no rows."""
    integers = max(4, examples // 6)
    return [
        (strategy(operator, backend=backend, tilings=tilings), examples),
        (strategy(operator, backend=backend, tilings=tilings, regimes=("integers",)), integers),
        (strategy(operator, backend=backend, tilings=tilings, regimes=("normal",), empty=True), 2),
    ]


def draw(strategies: Sequence[tuple[Any, int]], seed: int) -> list[Case]:
    """Cases drawn without running anything, always the same for a seed."""
    import hypothesis
    from hypothesis import HealthCheck, Phase

    drawn: list[Case] = []
    for offset, (cases, count) in enumerate(strategies):

        @hypothesis.seed(seed + offset)
        @hypothesis.settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(cases)
        def collect(case: Case) -> None:
            drawn.append(case)

        collect()
    return list(dict.fromkeys(drawn))


__all__ = ["PROPERTIES", "Failure", "Judge", "Search", "Tally", "draw", "is_tile", "plan"]
