"""What a run tells while it goes: typed events, printed by :mod:`coda_agent.report` and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier import Report

    from .compiler.aot import CompileReport
    from .operators import Operator
    from .sandbox import Diagnostic


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""


@dataclass(frozen=True)
class Notice(Event):
    """Something the user should know that does not stop the run."""

    message: str


@dataclass(frozen=True)
class VerificationProgress(Event):
    done: int
    total: int
    backend: str
    max_error_ratio: float = 0.0


@dataclass(frozen=True)
class Verified(Event):
    report: Report


@dataclass(frozen=True)
class Rejected(Event):
    reason: str
    counterexample: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checking(Event):
    """A committed kernel's turn has come."""

    kernel: str


@dataclass(frozen=True)
class MutationProgress(Event):
    done: int
    total: int
    killed: int


@dataclass(frozen=True)
class Mutated(Event):
    """The mutation score of a kernel: the report of :func:`verifier.mutation.score` as a document."""

    report: dict[str, Any]


@dataclass(frozen=True)
class Benchmarked(Event):
    """One kernel measured on one problem: a row of :func:`coda_agent.bench.measure.measure`."""

    row: dict[str, Any]


@dataclass(frozen=True)
class Predicted(Event):
    """What the cost model says of one problem, where there is nothing to measure on."""

    row: dict[str, Any]


@dataclass(frozen=True)
class Recorded(Event):
    """A certificate was written into the kernel's record."""

    kernel: str
    upgraded: bool


# --- One run of generate ---------------------------------------------------------------------------------------------


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


# --- Asking a model --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundStarted(Event):
    """Every sample that is still open gets its next question."""

    round: int
    rounds: int
    samples: int


@dataclass(frozen=True)
class RequestSent(Event):
    round: int
    sample: int
    attempt: int


@dataclass(frozen=True)
class RequestRetried(Event):
    """A request failed and will be repeated, or was changed to what the endpoint accepts (then ``seconds`` is 0)."""

    round: int
    sample: int
    why: str
    seconds: float


@dataclass(frozen=True)
class AnswerGrows(Event):
    round: int
    sample: int
    characters: int


@dataclass(frozen=True)
class Answered(Event):
    round: int
    sample: int
    tokens: int
    seconds: float
    finish: str


@dataclass(frozen=True)
class NoCandidate(Event):
    """An answer held nothing that could be judged."""

    round: int
    sample: int
    why: str


@dataclass(frozen=True)
class SampleLost(Event):
    """The endpoint failed one sample, which ends with that."""

    round: int
    sample: int
    why: str


@dataclass(frozen=True)
class Considering(Event):
    """A candidate's turn to be judged has come."""

    candidate: str


@dataclass(frozen=True)
class Duplicate(Event):
    """A candidate computes what an earlier one did, and is not judged again."""

    candidate: str
    digest: str


@dataclass(frozen=True)
class Guessed(Event):
    """What experiments say about a wrong candidate."""

    candidate: str
    guesses: tuple[str, ...]
