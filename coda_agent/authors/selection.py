"""Which author writes the epilogue, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coda_agent.errors import CandidateRefused, RequestError
from coda_agent.operators import Operator
from coda_agent.settings import BASE_URL, KEY, MODEL, Settings, load, require_endpoint, require_model

from . import Author, Candidate

#: Variables that say where a model can be reached.
ENDPOINT_VARIABLES = (KEY, BASE_URL)


@dataclass(frozen=True)
class Selection:
    """An author, and the reason it was taken, for people. The author ``llm`` is its settings; the pipeline runs its loop."""

    name: str
    why: str
    author: Author | None = None
    settings: Settings | None = None


def select(
    author: str | None,
    epilogue: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    settings: Settings | None = None,
    asked_for: str = "",
) -> Selection:
    """The author that ``author`` names; with None, the one that fits what is given and configured.

    ``asked_for`` names an option of the request that only the author ``llm`` has.
    """
    if epilogue is not None and author not in (None, "file"):
        raise RequestError(f"--epilogue is for the author 'file', not '{author}': leave out one of the two")
    if author == "file" and epilogue is None:
        raise RequestError("the author 'file' needs the file to read: add --epilogue FILE")
    if asked_for and (author in ("derive", "file") or epilogue is not None):
        raise RequestError(f"{asked_for} is for the author 'llm': leave it out, or name --author llm")
    if epilogue is not None:
        from .file import FileAuthor

        return Selection("file", "it was asked for" if author else "an epilogue file was given", FileAuthor(epilogue))
    if author == "derive":
        return Selection("derive", "it was asked for", _derive)
    if author not in (None, "llm"):
        raise RequestError(f"unknown author '{author}': derive, llm or file")
    found = settings or load(environment=os.environ if environment is None else environment)
    if author == "llm":
        return _llm("it was asked for", found)
    if asked_for:
        return _llm(f"{asked_for} was given", found)
    if not found.sources:
        return Selection("derive", f"no endpoint is configured ({KEY} or {BASE_URL})", _derive)
    if not found.model and not found.base_url:
        return Selection("derive", f"{found.sources[0]} is set, but no model is named (--model or {MODEL})", _derive)
    return _llm(f"{found.sources[0]} configures an endpoint", found)


def _llm(why: str, settings: Settings) -> Selection:
    from .endpoint import with_model

    ready = require_model(with_model(require_endpoint(settings)))
    return Selection("llm", f"{why}; {ready.model} at {ready.host}", settings=ready)


def _derive(operator: Operator) -> Candidate:
    from .derive import Unsupported, derive

    try:
        return Candidate(derive(operator), "derive")
    except Unsupported as error:
        raise CandidateRefused(f"derive cannot write an epilogue for {operator.name}: {error}") from error
