"""Verifying one kernel against one operator: the gate's entry points."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from .bounds import AnalysisError
from .cases import Backend, Case, Signature, Tiling, compilations
from .isolation import MEMORY, Worker, WorkerFailure, compile_ahead
from .properties import PROPERTIES, Failure, Judge, Search, plan

#: Drawn cases of a verification; one more sixth is drawn from integers, and two with no rows.
EXAMPLES = 80

#: From so many examples on, what a GPU runs is compiled ahead, in parallel.
AHEAD = 12

#: Seconds one request to the worker may take: an interpreted launch, or a compilation on a GPU.
CASE_TIMEOUT = 60.0


class BackendUnavailable(RuntimeError):
    """The backend asked for cannot run here (no GPU, or an interpreter that does not round); nothing was judged."""


@dataclass(frozen=True)
class Report:
    """What was tried and what came of it. ``reason`` is None when the kernel passed.

    ``percent_of_torch_error`` is the kernel's error over unfused PyTorch's, root-sum-squares over all cases;
    ``unjudged_share`` the share of elements for which no finite bound could be derived; ``skipped`` the cases whose
    configuration needs more than the device has. ``mutation`` is None until mutants were judged, then
    :meth:`verifier.mutation.MutationReport.as_dict`.
    """

    passed: bool
    properties: dict[str, dict[str, Any]]
    examples: int
    max_error_ratio: float
    percent_of_torch_error: float | None
    seed: int
    backend: str
    device: str
    versions: dict[str, str]
    duration: float
    counterexample: dict[str, Any] | None = None
    reason: str | None = None
    operator: str = ""
    kernel_sha256: str = ""
    unjudged_share: float = 0.0
    skipped: int = 0
    mutation: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, as a certificate stores it."""
        return {
            "operator": self.operator,
            "passed": self.passed,
            "properties": self.properties,
            "examples": self.examples,
            "max_error_ratio": self.max_error_ratio,
            "percent_of_torch_error": self.percent_of_torch_error,
            "unjudged_share": self.unjudged_share,
            "skipped": self.skipped,
            "mutation": self.mutation,
            "seed": self.seed,
            "backend": self.backend,
            "device": self.device,
            "versions": self.versions,
            "duration": round(self.duration, 3),
            "counterexample": self.counterexample,
            "reason": self.reason,
            "kernel_sha256": self.kernel_sha256,
        }


def choose_backend(backend: str) -> Backend:
    """``auto`` is the GPU where there is one, else the interpreter."""
    if backend == "auto":
        return "cuda" if torch.cuda.is_available() and torch.version.cuda else "interpreter"
    if backend == "cuda":
        return "cuda"
    if backend == "interpreter":
        return "interpreter"
    raise ValueError(f"unknown backend {backend!r}: auto, interpreter or cuda")


def judging_device(backend: Backend) -> str:
    """Where references are computed: beside the kernel, so that large cases cost little."""
    return "cuda" if backend == "cuda" and torch.cuda.is_available() else "cpu"


def verify(
    operator: Any,
    folder: str | Path,
    *,
    backend: Literal["auto", "interpreter", "cuda"] = "auto",
    examples: int = EXAMPLES,
    seed: int | None = None,
    timeout: float = 300.0,
    case_timeout: float = CASE_TIMEOUT,
    cases: Sequence[Case | Mapping[str, Any]] = (),
    tilings: Sequence[Tiling] | None = None,
    memory: int = MEMORY,
    shrink_seconds: float = 12.0,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> Report:
    """Judge the kernel in ``folder`` (its ``kernel.py``) by ``operator``.

    ``examples`` cases are drawn, from ``seed`` (None: a fresh one, which the report records). ``cases`` are run first:
    past failures, benchmarked shapes. ``tilings`` are the configurations to try. ``timeout`` bounds the whole in
    seconds, ``case_timeout`` one launch. ``on_event`` receives dicts: ``{"event": "started" | "progress" | "failed" |
    "finished", ...}``.

    Raises :class:`BackendUnavailable` where nothing can be judged, :class:`verifier.bounds.AnalysisError` where no bound
    can be derived from the reference.
    """
    chosen = choose_backend(backend)
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    given = [case if isinstance(case, Case) else Case.from_dict(case) for case in cases]
    drawn = plan(operator, chosen, examples, tilings) if examples > 0 else []
    total = len(given) + sum(count for _, count in drawn)

    def explore(search: Search) -> Failure | None:
        for case in given:
            if search.replay(case):
                return search.smallest
        for offset, (strategy, count) in enumerate(drawn):
            if search.run(strategy, count, seed + offset) or search.out_of_time:
                return search.smallest
        return None

    ahead = compilations(operator, tilings) if chosen == "cuda" and examples >= AHEAD else []
    return _judge(
        operator,
        Path(folder),
        chosen,
        seed,
        timeout,
        case_timeout,
        memory,
        shrink_seconds,
        on_event,
        total,
        explore,
        ahead,
    )


def replay(
    operator: Any,
    folder: str | Path,
    case: Case | Mapping[str, Any],
    *,
    backend: Literal["auto", "interpreter", "cuda"] = "auto",
    timeout: float = 300.0,
    memory: int = MEMORY,
) -> Report:
    """Judge one case, such as a counterexample's ``["case"]``: the report of a verification with that case alone."""
    one = case if isinstance(case, Case) else Case.from_dict(case)
    return verify(
        operator,
        folder,
        backend=backend,
        examples=0,
        seed=one.seed,
        timeout=timeout,
        case_timeout=timeout,
        cases=[one],
        memory=memory,
    )


def _judge(
    operator: Any,
    folder: Path,
    backend: Backend,
    seed: int,
    timeout: float,
    case_timeout: float,
    memory: int,
    shrink_seconds: float,
    on_event: Callable[[dict[str, Any]], None] | None,
    total: int,
    explore: Callable[[Search], Failure | None],
    ahead: Sequence[Case],
) -> Report:
    import hashlib
    import tempfile

    import hypothesis

    began = time.monotonic()
    tell = on_event or (lambda event: None)
    cache = tempfile.TemporaryDirectory(prefix="coda-compiled-")
    limit = min(case_timeout, timeout)
    worker = Worker(folder, Signature.of(operator), backend=backend, timeout=limit, memory=memory, cache=cache.name)
    judge = Judge(operator, worker, device=judging_device(backend))
    tell({"event": "started", "operator": operator.name, "backend": backend, "seed": seed, "total": total})
    search = Search(
        judge,
        deadline=began + timeout,
        shrink_seconds=shrink_seconds,
        on_case=lambda: tell(
            {
                "event": "progress",
                "done": judge.tally.cases,
                "total": total,
                "max_error_ratio": judge.tally.max_error_ratio,
            }
        ),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the other core is the worker's
    try:
        with worker:
            if ahead:
                compile_ahead(folder, Signature.of(operator), ahead, cache.name, limit)
            failure = explore(search)
    except WorkerFailure as error:
        raise BackendUnavailable(f"the {backend} backend cannot run here: {error.message}") from error
    finally:
        torch.set_num_threads(threads)
        cache.cleanup()
    reason = None
    if failure is not None:
        reason = (
            failure.reason
            if failure.reason and failure.reason != "kernel-raised"
            else failure.message
            if failure.reason
            else failure.prop
        )
        tell({"event": "failed", "reason": reason, "line": failure.line})
    elif search.out_of_time:
        reason = f"out-of-time: {judge.tally.cases} of {total} cases within {timeout:.0f} s"
    elif judge.tally.skipped > judge.tally.cases:
        reason = (
            f"out-of-resources: {judge.tally.skipped} of {judge.tally.skipped + judge.tally.cases} cases do not fit"
        )
    tally = judge.tally
    properties = {
        name: {"passed": failure is None or failure.prop != name, "examples": tally.tried[name]} for name in PROPERTIES
    }
    about = worker.about
    versions = {name: str(about.get(name, "")) for name in ("torch", "triton", "numpy")}
    versions |= {"hypothesis": hypothesis.__version__, "python": platform.python_version()}
    source = folder / "kernel.py"
    report = Report(
        passed=reason is None,
        properties=properties,
        examples=tally.cases,
        max_error_ratio=tally.max_error_ratio,
        percent_of_torch_error=tally.percent_of_torch_error,
        seed=seed,
        backend=backend,
        device=str(about.get("device", "")),
        versions=versions,
        duration=time.monotonic() - began,
        counterexample=failure.as_dict() if failure else None,
        reason=reason,
        operator=operator.name,
        unjudged_share=tally.unjudged_share,
        skipped=tally.skipped,
        kernel_sha256=hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else "",
    )
    tell({"event": "finished", "passed": report.passed, "examples": report.examples, "duration": report.duration})
    return report


__all__ = ["EXAMPLES", "AnalysisError", "BackendUnavailable", "Report", "choose_backend", "replay", "verify"]
