"""Who fills in the epilogue.

Three authors share one interface, :class:`Author`: an operator goes in, a :class:`Candidate` comes out, and nothing
downstream knows or trusts who wrote it.

- ``derive`` (:mod:`.derive`): built in, no network: traces the reference and translates it.
- ``file`` (:mod:`.file`): a person or another tool wrote the epilogue; it is read and passed on.
- ``llm`` (``llm.py``): any OpenAI-compatible endpoint, with rounds of diagnostics and counterexamples.

Importing this package does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from coda_agent.operators import Operator


@dataclass(frozen=True)
class Candidate:
    """An epilogue as its author wrote it, unchecked: ``source`` has yet to pass the sandbox."""

    source: bytes | str
    author: str
    details: dict[str, Any] = field(default_factory=dict)


class Author(Protocol):
    """Anything that writes a candidate for an operator."""

    def __call__(self, operator: Operator) -> Candidate: ...


__all__ = ["Author", "Candidate"]
