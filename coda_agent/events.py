"""What a run tells while it goes: typed events, printed by :mod:`coda_agent.report` and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier import Report


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
