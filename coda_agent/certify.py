"""Judging kernels, and keeping the certificates of committed ones: ``coda-agent verify``."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import __version__
from .errors import DONE, REJECTED, EnvironmentProblem, RequestError
from .events import (
    Checking,
    Event,
    Mutated,
    MutationProgress,
    Notice,
    Recorded,
    Rejected,
    VerificationProgress,
    Verified,
)
from .library import Entry, Library, locate
from .operators import Operator, OperatorError, load

if TYPE_CHECKING:
    from verifier import Report

Tell = Callable[[Event], None]
Backend = Literal["auto", "interpreter", "cuda"]

#: How many times more cases a thorough verification draws.
THOROUGH = 5


@dataclass(frozen=True)
class Request:
    """Which committed kernels to judge again, and how. ``operator`` names the reference where the record's origin is
    a user's file; ``case`` replays one case of a counterexample and records nothing."""

    kernels: Sequence[str] = ()
    everything: bool = False
    library: Path | None = None
    operator: str | None = None
    backend: Backend = "auto"
    examples: int | None = None
    thorough: bool = False
    mutants: bool = False
    seed: int | None = None
    timeout: float = 600.0
    case: Mapping[str, Any] | None = None
    record: bool = True


def verify(request: Request, tell: Tell) -> tuple[dict[str, Any], int]:
    """Judge committed kernels; the document that ``--json`` prints, and the exit code.

    A kernel that passes gets its certificate renewed, unless it holds one of a GPU and this one is interpreted.
    """
    check_options(request.backend, request.examples, request.seed, request.timeout)
    library = locate(request.library)
    entries = library.chosen(request.kernels, request.everything)
    results = [_verify_entry(library, entry, request, tell) for entry in entries]
    passed = all(result["status"] == "verified" for result in results)
    return {"library": str(library.path), "passed": passed, "kernels": results}, DONE if passed else REJECTED


def read_case(text: str | None) -> dict[str, Any] | None:
    """The case that ``--case`` gives, as JSON."""
    if text is None:
        return None
    try:
        case = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--case is not JSON: {error}") from None
    if not isinstance(case, dict):
        raise RequestError("--case must be a JSON object, as a counterexample prints it")
    return case


def _verify_entry(library: Library, entry: Entry, request: Request, tell: Tell) -> dict[str, Any]:
    tell(Checking(entry.name))
    result: dict[str, Any] = {"kernel": entry.name, "status": entry.status, "reason": entry.reason or None}
    if entry.status != "verified":
        tell(Rejected(f"{entry.status}: {entry.reason}"))
        return result
    operator = operator_of(entry, request.operator)
    report = judge(
        operator,
        entry.folder,
        tell,
        backend=request.backend,
        examples=_examples(request),
        seed=request.seed,
        timeout=request.timeout,
        case=request.case,
    )
    result |= {
        "verification": report.as_dict(),
        "counterexample": report.counterexample,
        "mutation": None,
        "recorded": False,
    }
    if not report.passed:
        tell(Rejected(report.reason or "it does not pass", report.counterexample))
        return {**result, "status": "rejected", "reason": report.reason}
    tell(Verified(report))
    if request.case is not None:
        return result
    mutation = None
    if request.mutants:
        mutation = mutation_score(operator, entry.text("epilogue.py"), tell, backend=request.backend, seed=request.seed)
        result["mutation"] = mutation
        if mutation["survivors"]:
            result |= {"status": "rejected", "reason": f"{len(mutation['survivors'])} mutants survive"}
    if request.record and result["status"] == "verified":
        result["recorded"] = _renew(library, entry, report, mutation, tell)
    return result


def _examples(request: Request) -> int | None:
    if not request.thorough:
        return request.examples
    from verifier.gate import EXAMPLES

    return THOROUGH * (request.examples or EXAMPLES)


def operator_of(entry: Entry, named: str | None) -> Operator:
    """The operator a kernel was committed for; its reference must still be the one in the record."""
    about = entry.record.get("operator", {})
    origin, name = about.get("origin", "catalogue"), about.get("name", entry.name)
    if named is None and origin != "catalogue":
        raise RequestError(
            f"{entry.name} was made for an operator in {origin}; name it with --operator {origin}:{name}"
        )
    operator = load(named or name)
    if about.get("reference") not in (None, operator.source):
        raise RequestError(
            f"the reference of {operator.name} is not the one that {entry.name} was verified against: generate it again"
        )
    return operator


def _renew(library: Library, entry: Entry, report: Report, mutation: dict[str, Any] | None, tell: Tell) -> bool:
    """Write the certificate into the record; False where the one it holds is worth more."""
    old = dict(entry.record.get("verification") or {})
    new = {**report.as_dict(), "verified": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"}
    downgrade = old.get("backend") == "cuda" and report.backend != "cuda"
    if downgrade and mutation is None:
        tell(Notice("the certificate of a GPU in the record is kept"))
        return False
    if downgrade:
        new = old
    new["mutation"] = mutation if mutation is not None else old.get("mutation")
    record = {**entry.record, "verification": new}
    if not downgrade:
        record["versions"] = versions()
    library.update(entry, record)
    tell(Recorded(entry.name, upgraded=report.backend == "cuda" and old.get("backend") != "cuda"))
    return True


# --- Judging ---------------------------------------------------------------------------------------------------------


def check_options(backend: str, examples: int | None, seed: int | None, timeout: float) -> None:
    """Raise unless a verification can be run with these options here."""
    if not timeout > 0:
        raise RequestError("--timeout must be a positive number of seconds")
    if examples is not None and examples < 1:
        raise RequestError("--examples must be at least 1")
    if seed is not None and not 0 <= seed < 2**31:
        raise RequestError("--seed must be from 0 to 2147483647")
    if backend == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise EnvironmentProblem(
                "--backend cuda needs an NVIDIA GPU that torch can see; there is none (coda-agent doctor says more)"
            )


def judge(
    operator: Operator,
    folder: Path,
    tell: Tell,
    *,
    backend: Backend = "auto",
    examples: int | None = None,
    seed: int | None = None,
    timeout: float = 300.0,
    case: Mapping[str, Any] | None = None,
) -> Report:
    """Run the verifier on the kernel in ``folder``, told as events; its errors become those of a command."""
    from verifier.gate import EXAMPLES, AnalysisError, BackendUnavailable, replay
    from verifier.gate import verify as run

    where: str = backend

    def progress(event: dict[str, Any]) -> None:
        nonlocal where
        where = event.get("backend", where)
        if event["event"] in ("started", "progress"):
            ratio = event.get("max_error_ratio", 0.0)
            tell(VerificationProgress(event.get("done", 0), event["total"], where, ratio))

    try:
        with user_code(operator.name):
            if case is not None:
                return replay(operator, folder, case, backend=backend, timeout=timeout)
            return run(
                operator,
                folder,
                backend=backend,
                examples=examples or EXAMPLES,
                seed=seed,
                timeout=timeout,
                on_event=progress,
            )
    except BackendUnavailable as error:
        raise EnvironmentProblem(str(error)) from error
    except AnalysisError as error:
        raise RequestError(f"{operator.name} cannot be judged: {error}") from error
    except ValueError as error:
        if case is None:
            raise
        raise RequestError(f"--case is not a case of a counterexample: {error}") from error


def mutation_score(
    operator: Operator, epilogue: str, tell: Tell, *, backend: Backend = "auto", seed: int | None = None
) -> dict[str, Any]:
    """The share of a kernel's mutants that the gate rejects: the report of :func:`verifier.mutation.score`."""
    from verifier.mutation import score

    from .authors.contract import signature
    from .compiler import Description
    from .compiler.mutate import mutants
    from .sandbox import parse

    def progress(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            tell(MutationProgress(event["done"], event["total"], event["killed"]))

    description = Description(operator.name, operator.doc, operator.defaults)
    made = list(mutants(parse(epilogue, signature(operator)), description))
    with user_code(operator.name):
        report: dict[str, Any] = score(operator, made, backend=backend, seed=seed, on_event=progress).as_dict()
    tell(Mutated(report))
    return report


def versions() -> dict[str, str | None]:
    """Versions of the tool and of what it stands on; None for what is not installed. Imports none of it."""
    found: dict[str, str | None] = {"coda-agent": __version__, "python": platform.python_version()}
    for package in ("torch", "triton", "numpy", "hypothesis"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """A reference is the user's code: leaving the program from within it is a mistake in it, not a wish of theirs."""
    try:
        yield
    except SystemExit as error:
        raise OperatorError(
            f"{what}: the reference ends the program (SystemExit); it must return its outputs"
        ) from error
