"""What is wrong with a program, where, by which rule, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Diagnostic:
    """One error. Lines and columns count from 1; ``rule`` is a stable name such as ``unknown-name``."""

    line: int
    column: int
    rule: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.line}:{self.column}: {self.rule}: {self.message}"
        return f"{text}\n    hint: {self.hint}" if self.hint else text

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class SandboxError(Exception):
    """A program was refused. ``diagnostics`` holds every error found, in source order."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = sorted(set(diagnostics))
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))


def nearest(name: str, candidates: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the closest candidates, or a list of all when none is close."""
    known = sorted(candidates)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    return f"known names: {', '.join(known)}" if known else ""
