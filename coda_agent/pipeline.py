"""One run of ``generate``, operator to library, told as a stream of events.

Nothing here prints. A run calls ``tell`` with each event as it happens, in the caller's thread, so that Ctrl-C reaches
whatever stage is at work; stages clean up after themselves, and the library changes only in the last one. Every run is
written down in a folder of its own (:mod:`coda_agent.runs`), from which it can be resumed and replayed.
"""

from __future__ import annotations

import importlib.util
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import runs
from .authors import Candidate
from .authors.selection import Selection, select
from .certify import check_options, user_code, versions
from .errors import DONE, REJECTED, CandidateRefused, CodaError, EnvironmentProblem, RequestError
from .events import AuthorChosen, Committed, Diagnostics, Event, Finished, Notice, Rejected, Started
from .judging import TIMEOUT, Judge, Judged
from .library import SCHEMA, check_name, locate, sha256
from .operators import Operator, load
from .settings import Settings, public_url
from .settings import load as load_settings

if TYPE_CHECKING:
    from .writing import Written

#: The problem that a record's cost model describes.
COST_SHAPE = (16384, 8192, 4096)

__all__ = ["Diagnostics", "Event", "Finished", "Rejected", "Request", "generate"]


@dataclass(frozen=True)
class Request:
    """What to generate. ``examples`` and ``targets`` of None are the verifier's and compiler's own defaults.

    ``timeout`` bounds the verification, for the author ``llm`` the whole run; None is the default of either. From
    ``resume`` and ``replay``, which name a run, everything that is not given here is taken over.
    """

    operator: str | None
    library: Path | None = None
    author: str | None = None
    epilogue: Path | None = None
    backend: Literal["auto", "interpreter", "cuda"] | None = None
    targets: Sequence[str] | None = None
    examples: int | None = None
    timeout: float | None = None
    seed: int | None = None
    commit: bool = True
    model: str | None = None
    base_url: str | None = None
    samples: int | None = None
    rounds: int | None = None
    budget_tokens: int | None = None
    max_requests: int | None = None
    every_sample: bool = False
    resume: str | None = None
    replay: str | None = None

    @property
    def asked_for(self) -> str:
        """An option given here that only the author ``llm`` has."""
        names = ("model", "base_url", "samples", "rounds", "budget_tokens", "max_requests")
        return next((f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None), "")


def generate(request: Request, tell: Callable[[Event], None]) -> Finished:
    """Author, check, compile, verify and commit one kernel. The last event is also returned.

    Raises what :mod:`coda_agent.errors` gives an exit code for, where there is nothing to judge.
    """
    if request.resume and request.replay:
        raise RequestError(
            "--resume and --replay exclude each other: the first goes on with a run, the second repeats it"
        )
    former = runs.find(request.resume or request.replay or "") if request.resume or request.replay else None
    if former is None and request.operator is None:
        raise RequestError("name the OPERATOR to generate, or a run with --resume or --replay")
    with former.held() if former and request.resume else nullcontext():
        if former and request.resume and former.result.get("status") in ("committed", "verified"):
            tell(Notice(f"the run {former.id} had ended already; this is how"))
            finished = Finished(former.result, DONE)
        else:
            finished = _Run(request if former is None else _taken_over(request, former), tell, former).finish()
        tell(finished)
    return finished


def _taken_over(request: Request, former: runs.Run) -> Request:
    """``request`` with what it leaves open taken from the run it resumes or replays."""
    asked = former.manifest.get("request") or {}
    if request.operator and request.operator not in (asked.get("operator"), asked.get("name")):
        raise RequestError(
            f"the run {former.id} is for {asked.get('name')}, not for {request.operator}: leave the operator out"
        )
    given = {
        name: value if value is not None else asked.get(name)
        for name, value in vars(request).items()
        if name
        not in ("resume", "replay", "operator", "library", "commit", "every_sample", "author", "epilogue", "base_url")
    }
    library = request.library or (Path(asked["library"]) if asked.get("library") else None)
    url = request.base_url or asked.get("base_url")
    here = load_settings().base_url
    if not request.base_url and here and url and public_url(here) == url:
        url = here  # the same endpoint, with the secrets that a run does not keep
    return replace(
        request,
        **given,
        operator=asked.get("operator"),
        author=former.manifest.get("author"),
        library=library,
        base_url=url,
        commit=request.commit and bool(asked.get("commit", True)),
        every_sample=bool(asked.get("every_sample")),
        epilogue=_epilogue_of(former, asked) if former.manifest.get("author") == "file" else None,
    )


def _epilogue_of(former: runs.Run, asked: dict[str, Any]) -> Path:
    """The file that a run was given: its own copy, or the original where it did not come as far as that."""
    copy = former.folder / "candidates" / "r1-s1.py"
    return copy if copy.is_file() else Path(str(asked.get("epilogue")))


class _Rejection(Exception):
    """Ends a run whose candidate is not good enough."""


class _Run:
    def __init__(self, request: Request, tell: Callable[[Event], None], former: runs.Run | None) -> None:
        self.request = request
        self.tell = tell
        self.former = former
        self.began = time.monotonic()
        now = datetime.now(timezone.utc)
        # Milliseconds too, so that ids sort by age.
        self.id = f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}{secrets.token_hex(2)}"
        self.run: runs.Run | None = None
        self.author: str | None = None
        self.status = "rejected"
        self.reason: str | None = None
        self.judged = Judged("")
        self.written: Written | None = None
        self.folder: Path | None = None
        self.holding = ExitStack()

    def finish(self) -> Finished:
        self.operator = _operator(self.request.operator or "")
        self.library = locate(self.request.library)
        with self.holding:
            return self._finish()

    def _finish(self) -> Finished:
        code = DONE
        try:
            self._stages()
        except _Rejection:
            code = REJECTED
        except CodaError as error:
            self._save({**self._result(), "status": "failed", "reason": str(error)})
            if self.run is not None and self.author == "llm" and not self.request.replay:
                error.args = (
                    f"{error}\nwhat was answered so far is kept: coda-agent generate --resume {self.run.id} goes on",
                )
            raise
        finished = Finished(self._result(), code)
        self._save(finished.result)
        return finished

    def _stages(self) -> None:
        request = self.request
        self._check_request()
        selection = self._select()
        self.author = selection.name
        self._open(selection)
        self.tell(Started(self.id, self.operator, self.library.path))
        if request.commit and self.library.warning:
            self.tell(Notice(self.library.warning))
        self.tell(AuthorChosen(selection.name, selection.why))
        judge = Judge(self.operator, self.tell, request.backend or "auto", request.targets, request.examples, self.seed)
        if selection.settings is not None:
            candidate = self._ask(judge, selection.settings)
        else:
            candidate = self._write(judge, selection)
        self.status = "verified"
        if request.commit:
            self._commit(candidate)

    def _check_request(self) -> None:
        request = self.request
        check_name(self.operator.name)
        if request.commit:
            self.library.preflight()
        check_options(
            request.backend or "auto",
            request.examples,
            request.seed,
            TIMEOUT if request.timeout is None else request.timeout,
        )
        if importlib.util.find_spec("triton") is None:
            raise EnvironmentProblem(
                "triton is not installed, and kernels cannot be compiled without it; it comes with coda-agent on Linux"
            )
        if request.targets:
            from .compiler.aot import TargetError, check_target

            for target in request.targets:
                try:
                    check_target(target)
                except TargetError as error:
                    raise RequestError(str(error)) from error

    def _select(self) -> Selection:
        request = self.request
        if request.author in ("derive", "file") or request.epilogue is not None:
            asked_for = "" if self.former else request.asked_for
            return select(request.author, request.epilogue, asked_for=asked_for)
        settings = load_settings(
            model=request.model,
            base_url=request.base_url,
            samples=request.samples,
            rounds=request.rounds,
            budget_tokens=request.budget_tokens,
            max_requests=request.max_requests,
            timeout=request.timeout,
        )
        if request.replay:
            return Selection("llm", f"the answers of run {request.replay} again, offline", settings=settings)
        return select(request.author, None, settings=settings, asked_for=request.asked_for)

    # --- The run's folder --------------------------------------------------------------------------------------------

    def _open(self, selection: Selection) -> None:
        """Make the run's folder, or take up that of the run to be resumed, and record events from here on."""
        request = self.request
        self.seed = random.SystemRandom().randrange(2**31) if request.seed is None else request.seed
        if self.former is not None and request.resume:
            self.run, self.id = self.former, self.former.id
            if self.former.manifest.get("reference") not in (None, self.operator.source):
                raise RequestError(
                    f"the reference of {self.operator.name} has changed since the run {self.id} began: generate it again"
                )
        else:
            try:
                self.run = runs.create(self.id, self._manifest(selection))
                self.holding.enter_context(self.run.held())
            except EnvironmentProblem as error:
                if selection.name == "llm":  # what is paid for must be kept
                    raise
                self.tell(Notice(f"this run is not recorded: {error}"))
                return
        self.tell = self.run.recorder(self.tell)

    def _manifest(self, selection: Selection) -> dict[str, Any]:
        request, settings = self.request, selection.settings
        spec = request.operator or ""
        path, colon, name = spec.rpartition(":")
        asked = {
            "operator": f"{Path(path).absolute()}:{name}" if colon and self.operator.origin != "catalogue" else spec,
            "name": self.operator.name,
            "library": str(request.library.absolute()) if request.library else None,
            "epilogue": str(request.epilogue.absolute()) if request.epilogue else None,
            "backend": request.backend,
            "targets": list(request.targets) if request.targets else None,
            "examples": request.examples,
            "timeout": request.timeout,
            "seed": self.seed,
            "commit": request.commit,
        }
        endpoint = None
        if settings is not None:
            limits = {k: v for k, v in asdict(settings.limits).items() if k != "timeout"}
            base_url = public_url(settings.base_url) if settings.base_url else None
            asked |= {**limits, "model": settings.model, "base_url": base_url, "every_sample": request.every_sample}
            endpoint = {"model": settings.model, "url": settings.host}
        return {
            "operator": self.operator.name,
            "author": selection.name,
            "why": selection.why,
            "endpoint": endpoint,
            "request": asked,
            "reference": self.operator.source,
            "replay_of": self.former.id if self.former else None,
            "versions": versions(),
            "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }

    def _save(self, result: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.write(runs.RESULT, result)

    # --- Stages ------------------------------------------------------------------------------------------------------

    def _write(self, judge: Judge, selection: Selection) -> Candidate:
        """The candidate of an author that has one, judged."""
        assert selection.author is not None
        judge = replace(judge, tell=self.tell)
        try:
            with user_code(self.operator.name):
                candidate = selection.author(self.operator)
        except CandidateRefused as error:
            self.reason = str(error)
            self.tell(Rejected(self.reason))
            raise _Rejection from error
        judged = self.judged = judge.check(candidate.source)
        if self.run is not None:
            self.run.write("candidates/r1-s1.py", judged.text)
        if judged.reason is None:
            judge.test(judged, TIMEOUT if self.request.timeout is None else self.request.timeout)
        if self.run is not None:
            self.run.write("verdicts/r1-s1.json", judged.as_dict())
        self.reason = judged.reason
        if not judged.passed:
            raise _Rejection
        return candidate

    def _ask(self, judge: Judge, settings: Settings) -> Candidate:
        """The candidate of a model, in as many rounds as it takes."""
        from .writing import write

        assert self.run is not None
        source = self.former if self.request.replay else None
        judge = replace(judge, tell=self.tell)
        self.written = write(judge, settings, self.run, every_sample=self.request.every_sample, recording=source)
        if self.written.judged is not None:
            self.judged = self.written.judged
        if self.written.failure is not None:
            raise self.written.failure
        if not self.judged.passed:
            self.reason = self.written.reason
            self.tell(Rejected(self.reason))
            raise _Rejection
        return self.written.candidate()

    def _commit(self, candidate: Candidate) -> None:
        name = self.operator.name
        replaced = any(entry.name == name for entry in self.library.entries())
        entry = self.library.commit(name, self.judged.files, self._record(candidate))
        self.status, self.folder = "committed", entry.folder
        self.tell(Committed(entry.folder, replaced))

    def _record(self, candidate: Candidate) -> dict[str, Any]:
        """What ``record.json`` holds, beside the sums that the library adds. Nothing in it names this machine."""
        from .compiler.cost import cost

        judged = self.judged
        assert judged.report is not None
        assert judged.epilogue is not None
        operator = self.operator
        return {
            "schema": SCHEMA,
            "name": operator.name,
            "operator": {
                "name": operator.name,
                "origin": Path(operator.origin).name,
                "doc": operator.doc,
                "reference": operator.source,
                "operands": [asdict(operand) for operand in operator.operands],
                "outputs": [asdict(output) for output in operator.outputs],
            },
            "author": {
                "name": candidate.author,
                **{k: Path(v).name if k == "path" else v for k, v in candidate.details.items()},
            },
            "epilogue_digest": judged.epilogue.digest,
            "prompt_hash": self.written.prompt_hash if self.written else None,
            "versions": versions(),
            "verification": judged.report.as_dict(),
            "targets": [report.as_dict() for report in judged.targets],
            "cost": cost(judged.epilogue, *COST_SHAPE).as_dict(),
            "benchmark": None,
            "tuned": {},
            "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }

    def _result(self) -> dict[str, Any]:
        judged, written = self.judged, self.written
        report = judged.report
        return {
            "operator": self.operator.name,
            "author": self.author,
            "status": self.status,
            "reason": self.reason,
            "kernel": self._kernel(),
            "targets": [target.as_dict() for target in judged.targets],
            "verification": None
            if report is None
            else {
                "passed": report.passed,
                "examples": report.examples,
                "properties": report.properties,
                "max_error_ratio": report.max_error_ratio,
                "percent_of_torch_error": report.percent_of_torch_error,
                "backend": report.backend,
                "seed": report.seed,
                "duration": round(report.duration, 3),
            },
            "benchmark": None,
            "run": self.id,
            "duration": round(time.monotonic() - self.began, 3),
            "diagnostics": judged.diagnostics,
            "counterexample": judged.counterexample,
            "usage": written.usage if written else None,
            "attempts": written.attempts if written else [],
        }

    def _kernel(self) -> dict[str, Any] | None:
        """Where the files are (null until committed), and what they hold."""
        files = self.judged.files
        if not files:
            return None
        paths = {name: str(self.folder / name) if self.folder else None for name in (*files, "record.json")}
        sums = {name: sha256(text.encode()) for name, text in files.items()}
        return {"folder": str(self.folder) if self.folder else None, "paths": paths, "sha256": sums}


def _operator(spec: str) -> Operator:
    """The operator that ``spec`` names, whose reference keeps its declaration."""
    try:
        with user_code(spec):
            operator = load(spec)
            from .operators.checking import check

            check(operator)
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(f"{error.name} is not installed, and references cannot run without it") from error
    return operator
