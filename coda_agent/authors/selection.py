"""Which author writes the epilogue, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coda_agent.errors import CandidateRefused, EnvironmentProblem, RequestError
from coda_agent.operators import Operator

from . import Author, Candidate

#: Any of these in the environment means that a model can be reached.
ENDPOINT_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


@dataclass(frozen=True)
class Selection:
    """An author, and the reason it was taken, for people."""

    name: str
    why: str
    author: Author


def select(author: str | None, epilogue: Path | None = None, environment: Mapping[str, str] | None = None) -> Selection:
    """The author that ``author`` names; with None, the one that fits what is given and configured."""
    if epilogue is not None and author not in (None, "file"):
        raise RequestError(f"--epilogue is for the author 'file', not '{author}': leave out one of the two")
    if author == "file" and epilogue is None:
        raise RequestError("the author 'file' needs the file to read: add --epilogue FILE")
    if epilogue is not None:
        from .file import FileAuthor

        return Selection("file", "it was asked for" if author else "an epilogue file was given", FileAuthor(epilogue))
    if author == "llm":
        raise EnvironmentProblem(
            "the author 'llm' is not part of this version: use --author derive, or --author file with --epilogue FILE"
        )
    if author == "derive":
        return Selection("derive", "it was asked for", _derive)
    if author is not None:
        raise RequestError(f"unknown author '{author}': derive, llm or file")
    configured = [name for name in ENDPOINT_VARIABLES if (os.environ if environment is None else environment).get(name)]
    if configured:
        return Selection(
            "derive", f"{configured[0]} configures an endpoint, but this version has no author that uses one", _derive
        )
    return Selection("derive", "no endpoint is configured (OPENAI_API_KEY or OPENAI_BASE_URL)", _derive)


def _derive(operator: Operator) -> Candidate:
    from .derive import Unsupported, derive

    try:
        return Candidate(derive(operator), "derive")
    except Unsupported as error:
        raise CandidateRefused(f"derive cannot write an epilogue for {operator.name}: {error}") from error
