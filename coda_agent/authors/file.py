"""The author ``file``: an epilogue that a person or another tool wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coda_agent.operators import Operator

from . import Candidate

#: Nothing larger is read into memory. The sandbox has a tighter limit and explains it.
LIMIT = 256 * 1024


class EpilogueFileError(ValueError):
    """The file that should hold an epilogue cannot be read; the message says why."""


def read_epilogue(path: str | Path) -> bytes:
    """The bytes of an epilogue file. Raises :class:`EpilogueFileError` if it is missing, no file, or too large."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise EpilogueFileError(f"{path} is a directory; give the epilogue's file")
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        raise EpilogueFileError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise EpilogueFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LIMIT:
        raise EpilogueFileError(f"{path} is larger than {LIMIT // 1024} KiB; an epilogue is a few lines")
    return data


@dataclass(frozen=True)
class FileAuthor:
    """Reads the candidate from ``path``."""

    path: str | Path

    def __call__(self, operator: Operator) -> Candidate:
        return Candidate(read_epilogue(self.path), "file", {"path": str(self.path)})
