"""One run of ``generate``, operator to library, told as a stream of events.

Nothing here prints. A run calls ``tell`` with each event as it happens, in the caller's thread, so that Ctrl-C reaches
whatever stage is at work; stages clean up after themselves, and the library changes only in the last one.
"""

from __future__ import annotations

import importlib.util
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .authors import Candidate
from .authors.contract import signature
from .authors.selection import Selection, select
from .certify import check_options, user_code, versions
from .errors import DONE, REJECTED, CandidateRefused, EnvironmentProblem, RequestError
from .events import Event, Notice, Rejected, Verified
from .library import SCHEMA, check_name, locate, sha256
from .operators import Operator, load
from .sandbox import Diagnostic, Epilogue, SandboxError, parse

if TYPE_CHECKING:
    from verifier import Report

    from .compiler.aot import CompileReport

#: The problem that a record's cost model describes.
COST_SHAPE = (16384, 8192, 4096)


@dataclass(frozen=True)
class Request:
    """What to generate. ``examples`` and ``targets`` of None are the verifier's and compiler's own defaults."""

    operator: str
    library: Path | None = None
    author: str | None = None
    epilogue: Path | None = None
    backend: Literal["auto", "interpreter", "cuda"] = "auto"
    targets: Sequence[str] | None = None
    examples: int | None = None
    timeout: float = 300.0
    seed: int | None = None
    commit: bool = True


@dataclass(frozen=True)
class Started(Event):
    run: str
    operator: Operator
    library: Path


@dataclass(frozen=True)
class AuthorChosen(Event):
    author: str
    why: str


@dataclass(frozen=True)
class EpilogueWritten(Event):
    source: str


@dataclass(frozen=True)
class Diagnostics(Event):
    """The sandbox refused the epilogue."""

    items: tuple[Diagnostic, ...]
    source: str


@dataclass(frozen=True)
class Compiled(Event):
    """The epilogue became the text of a kernel."""

    lines: int
    digest: str


@dataclass(frozen=True)
class TargetCompiled(Event):
    report: CompileReport


@dataclass(frozen=True)
class Committed(Event):
    folder: Path
    replaced: bool


@dataclass(frozen=True)
class Finished(Event):
    """The end of every run that ran its course. ``result`` is the document that ``--json`` prints."""

    result: dict[str, Any]
    exit_code: int


def generate(request: Request, tell: Callable[[Event], None]) -> Finished:
    """Author, check, compile, verify and commit one kernel. The last event is also returned.

    Raises what :mod:`coda_agent.errors` gives an exit code for, where there is nothing to judge.
    """
    finished = _Run(request, tell).finish()
    tell(finished)
    return finished


class _Rejection(Exception):
    """Ends a run whose candidate is not good enough."""


class _Run:
    def __init__(self, request: Request, tell: Callable[[Event], None]) -> None:
        self.request = request
        self.tell = tell
        self.began = time.monotonic()
        self.id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self.author: str | None = None
        self.status = "rejected"
        self.reason: str | None = None
        self.diagnostics: list[dict[str, Any]] = []
        self.counterexample: dict[str, Any] | None = None
        self.files: dict[str, str] = {}
        self.targets: list[CompileReport] = []
        self.report: Report | None = None
        self.folder: Path | None = None

    def finish(self) -> Finished:
        self.operator = _operator(self.request.operator)
        self.library = locate(self.request.library)
        try:
            self._stages()
        except _Rejection:
            return Finished(self._result(), REJECTED)
        return Finished(self._result(), DONE)

    def _stages(self) -> None:
        request = self.request
        self._check_request()
        selection = select(request.author, request.epilogue)
        self.author = selection.name
        self.tell(Started(self.id, self.operator, self.library.path))
        if request.commit and self.library.warning:
            self.tell(Notice(self.library.warning))
        self.tell(AuthorChosen(selection.name, selection.why))
        candidate, epilogue = self._write(selection)
        with tempfile.TemporaryDirectory(prefix="coda-") as temporary:
            folder = Path(temporary) / self.operator.name
            folder.mkdir()
            for name, text in self.files.items():
                (folder / name).write_text(text, encoding="utf-8", newline="\n")
            self._compile(folder)
            self._verify(folder)
        self.status = "verified"
        if request.commit:
            self._commit(candidate, epilogue)

    def _check_request(self) -> None:
        request = self.request
        check_name(self.operator.name)
        if request.commit:
            self.library.preflight()
        check_options(request.backend, request.examples, request.seed, request.timeout)
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

    def _write(self, selection: Selection) -> tuple[Candidate, Epilogue]:
        try:
            with user_code(self.operator.name):
                candidate = selection.author(self.operator)
        except CandidateRefused as error:
            raise self._reject(str(error)) from error
        source = candidate.source
        text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        self.tell(EpilogueWritten(text))
        try:
            epilogue = parse(source, signature(self.operator))
        except SandboxError as error:
            self.reason = "the epilogue was refused"
            self.diagnostics = [item.as_dict() for item in error.diagnostics]
            self.tell(Diagnostics(tuple(error.diagnostics), text))
            raise _Rejection from error
        from .compiler import Description, generate

        defaults = {operand.name: operand.default for operand in self.operator.operands if operand.default is not None}
        kernel = generate(epilogue, Description(self.operator.name, self.operator.doc, defaults))
        self.files = {"epilogue.py": epilogue.source or text, "kernel.py": kernel}
        self.tell(Compiled(kernel.count("\n"), epilogue.digest))
        return candidate, epilogue

    def _compile(self, folder: Path) -> None:
        from .compiler.aot import DEFAULT_TARGETS, compile_for

        self.targets = compile_for(folder, tuple(dict.fromkeys(self.request.targets or DEFAULT_TARGETS)))
        for report in self.targets:
            self.tell(TargetCompiled(report))
        failed = [report for report in self.targets if report.error]
        if failed:
            raise self._reject(f"it does not compile for {failed[0].target}: {failed[0].error}")

    def _verify(self, folder: Path) -> None:
        from .certify import judge

        request = self.request
        report = self.report = judge(
            self.operator,
            folder,
            self.tell,
            backend=request.backend,
            examples=request.examples,
            seed=request.seed,
            timeout=request.timeout,
        )
        if not report.passed:
            raise self._reject(report.reason or "it does not pass", report.counterexample)
        self.tell(Verified(report))

    def _commit(self, candidate: Candidate, epilogue: Epilogue) -> None:
        name = self.operator.name
        replaced = any(entry.name == name for entry in self.library.entries())
        entry = self.library.commit(name, self.files, self._record(candidate, epilogue))
        self.status, self.folder = "committed", entry.folder
        self.tell(Committed(entry.folder, replaced))

    def _reject(self, reason: str, counterexample: dict[str, Any] | None = None) -> _Rejection:
        self.reason, self.counterexample = reason, counterexample
        self.tell(Rejected(reason, counterexample))
        return _Rejection()

    def _record(self, candidate: Candidate, epilogue: Epilogue) -> dict[str, Any]:
        """What ``record.json`` holds, beside the sums that the library adds. Nothing in it names this machine."""
        from .compiler.cost import cost

        assert self.report is not None
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
            "epilogue_digest": epilogue.digest,
            "prompt_hash": None,
            "versions": versions(),
            "verification": self.report.as_dict(),
            "targets": [report.as_dict() for report in self.targets],
            "cost": cost(epilogue, *COST_SHAPE).as_dict(),
            "benchmark": None,
            "tuned": {},
            "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }

    def _result(self) -> dict[str, Any]:
        report = self.report
        return {
            "operator": self.operator.name,
            "author": self.author,
            "status": self.status,
            "reason": self.reason,
            "kernel": self._kernel(),
            "targets": [target.as_dict() for target in self.targets],
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
            "diagnostics": self.diagnostics,
            "counterexample": self.counterexample,
        }

    def _kernel(self) -> dict[str, Any] | None:
        """Where the files are (null until committed), and what they hold."""
        if not self.files:
            return None
        paths = {name: str(self.folder / name) if self.folder else None for name in (*self.files, "record.json")}
        sums = {name: sha256(text.encode()) for name, text in self.files.items()}
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
