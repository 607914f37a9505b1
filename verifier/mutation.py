"""How sharp the gate is: the share of small wrong versions of a kernel that it rejects.

    from verifier.mutation import score
    report = score(operator, mutants)

Every mutant is judged by the same properties and bounds as a candidate, up to its first failure and without shrinking:
on a fixed list of revealing cases, then on fresh draws. References are computed once for all mutants.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from .cases import Case, Signature, revealing
from .gate import BackendUnavailable, choose_backend, judging_device
from .isolation import MEMORY, Worker, WorkerFailure
from .properties import Failure, Judge, Memory, draw, plan

#: Cases drawn for the mutants that survive the fixed list.
EXAMPLES = 24


class MutantLike(Protocol):
    """A wrong kernel: the kind of mistake, what was changed, and the text of its ``kernel.py``."""

    @property
    def kind(self) -> str: ...
    @property
    def change(self) -> str: ...
    @property
    def kernel(self) -> str: ...


@dataclass(frozen=True)
class MutationReport:
    """What became of the mutants. ``by_kind`` gives killed and total of each kind, ``killed_by`` how many a property
    rejected (or what happened to the process), ``unjudged`` how many were left when time ran out (not in ``total``)."""

    killed: int
    total: int
    survivors: list[dict[str, str]]
    by_kind: dict[str, list[int]]
    killed_by: dict[str, int]
    seed: int
    backend: str
    duration: float
    unjudged: int = 0
    kills: list[dict[str, str]] = field(default_factory=list, repr=False)

    @property
    def score(self) -> float:
        """The share that was rejected, 0 to 1; 1 where there was nothing to reject."""
        return self.killed / self.total if self.total else 1.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, as a certificate stores it."""
        return {
            "killed": self.killed,
            "total": self.total,
            "score": self.score,
            "survivors": self.survivors,
            "by_kind": self.by_kind,
            "killed_by": self.killed_by,
            "unjudged": self.unjudged,
            "seed": self.seed,
            "backend": self.backend,
            "duration": round(self.duration, 3),
        }


@dataclass
class _Jury:
    """Judges mutants one after the other in one worker process, which is replaced when a mutant takes it down."""

    operator: Any
    worker: Worker
    judge: Judge
    folder: Path

    def verdict(self, mutant: MutantLike, cases: Iterable[Case], number: int, deadline: float) -> Failure | str | None:
        """Why a mutant is rejected; None where it passes all of ``cases``, "out-of-time" where they were not run."""
        folder = self.folder / f"mutant_{number}"
        folder.mkdir()
        (folder / "kernel.py").write_text(mutant.kernel)
        again = False
        todo = list(cases)
        while todo:
            if time.monotonic() > deadline:
                return "out-of-time"
            try:
                if self.worker.folder != folder or again:
                    self.worker.load(folder)
                failures = self.judge.check(todo[0], first=True)
            except WorkerFailure as failure:
                if failure.reason == "worker-not-ready":
                    raise
                if failure.fatal and "signal" in failure.reason and not again:
                    # Perhaps the mutant before this one left the process broken: a fresh one decides.
                    again = True
                    continue
                return Failure("contract", todo[0], str(failure), reason=failure.reason)
            again = False
            if failures:
                return failures[0]
            del todo[0]
        return None


def score(
    operator: Any,
    mutants: Iterable[MutantLike],
    *,
    backend: Literal["auto", "interpreter", "cuda"] = "auto",
    seed: int | None = None,
    examples: int = EXAMPLES,
    timeout: float = 600.0,
    case_timeout: float = 60.0,
    memory: int = MEMORY,
    jobs: int | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> MutationReport:
    """Judge ``mutants`` of a kernel that passes. ``jobs`` is the number of worker processes.

    ``on_event`` receives ``{"event": "progress", "done", "total", "killed", "kind", "change", "killed_by"}`` after
    each, from one thread at a time.
    """
    chosen = choose_backend(backend)
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    began = time.monotonic()
    given = list(mutants)
    cases = revealing(operator, chosen, seed % 2**30)
    if examples:
        cases += draw(plan(operator, chosen, examples, None), seed)
    cpus = os.cpu_count() or 1
    jobs = max(1, min(len(given), jobs or (cpus if chosen == "interpreter" else cpus // 2), 8))
    known = Memory()
    verdicts: dict[int, Failure | str | None] = {}
    lock = threading.Lock()
    waiting = iter(range(len(given)))

    def serve(folder: Path) -> None:
        worker = Worker(folder, Signature.of(operator), backend=chosen, timeout=case_timeout, memory=memory)
        judge = Judge(operator, worker, memory=known, device=judging_device(chosen))
        jury = _Jury(operator, worker, judge, folder)
        try:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                verdict = jury.verdict(given[number], cases, number, began + timeout)
                with lock:
                    verdicts[number] = verdict
                    if on_event:
                        mutant = given[number]
                        killed = sum(isinstance(v, Failure) for v in verdicts.values())
                        on_event(
                            {
                                "event": "progress",
                                "done": len(verdicts),
                                "total": len(given),
                                "killed": killed,
                                "kind": mutant.kind,
                                "change": mutant.change,
                                "killed_by": _how(verdict),
                            }
                        )
        finally:
            worker.stop()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="coda-mutants-") as home, ThreadPoolExecutor(jobs) as pool:
            folders = [Path(home) / str(job) for job in range(jobs)]
            for folder in folders:
                folder.mkdir()
            list(pool.map(serve, folders))
    except WorkerFailure as error:
        raise BackendUnavailable(f"the {chosen} backend cannot run here: {error.message}") from error
    finally:
        torch.set_num_threads(threads)
    return _report(given, verdicts, seed, chosen, time.monotonic() - began)


def _how(verdict: Failure | str | None) -> str | None:
    return verdict.reason or verdict.prop if isinstance(verdict, Failure) else verdict


def _report(
    given: list[MutantLike], verdicts: dict[int, Failure | str | None], seed: int, backend: str, duration: float
) -> MutationReport:
    by_kind: dict[str, list[int]] = {}
    survivors, kills = [], []
    killed_by: Counter[str] = Counter()
    unjudged = 0
    for number, mutant in enumerate(given):
        verdict = verdicts[number]
        if isinstance(verdict, str):
            unjudged += 1
            continue
        counts = by_kind.setdefault(mutant.kind, [0, 0])
        counts[1] += 1
        what = {"kind": mutant.kind, "change": mutant.change}
        if verdict is None:
            survivors.append(what)
        else:
            counts[0] += 1
            killed_by[str(_how(verdict))] += 1
            kills.append({**what, "line": verdict.line})
    return MutationReport(
        killed=len(kills),
        total=len(kills) + len(survivors),
        survivors=survivors,
        by_kind=by_kind,
        killed_by=dict(killed_by.most_common()),
        seed=seed,
        backend=backend,
        duration=duration,
        unjudged=unjudged,
        kills=kills,
    )


__all__ = ["EXAMPLES", "MutantLike", "MutationReport", "score"]
