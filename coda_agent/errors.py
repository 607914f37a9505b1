"""Exit codes, and the errors that are told in a sentence instead of a traceback."""

from __future__ import annotations

from typing import ClassVar

DONE, REJECTED, BAD_REQUEST, ENVIRONMENT, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 70, 130


class CodaError(Exception):
    """An expected failure: its message tells a user what is wrong and what to do."""

    exit_code: ClassVar[int] = ENVIRONMENT


class RequestError(CodaError):
    """What was asked for makes no sense."""

    exit_code = BAD_REQUEST


class EnvironmentProblem(CodaError):
    """The machine lacks something that the request needs."""

    exit_code = ENVIRONMENT


class CandidateRefused(CodaError):
    """An author gave no candidate, or one that cannot be used."""

    exit_code = REJECTED


def exit_code(error: BaseException) -> int | None:
    """The exit code of an expected error; None for a fault of the program."""
    from .authors.file import EpilogueFileError
    from .operators import OperatorError

    if isinstance(error, CodaError):
        return error.exit_code
    if isinstance(error, (OperatorError, EpilogueFileError)):
        return BAD_REQUEST
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return None
