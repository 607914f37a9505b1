"""Runs on disk: a folder each, with what was asked, every event, every answer, candidate and verdict. No key is in it.

    run.json             what was asked for
    events.jsonl         what happened, one event a line
    prompts/r1-s1.json   the messages of each question to a model, ``answers/`` what came back, ``requests.jsonl`` what was sent
    candidates/r1-s1.py  epilogues as they were written; ``verdicts/`` what was found about each, certificates included
    result.json          how it ended

Files are written whole or not at all, so that a run killed at any point can be read, shown and resumed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from .errors import EnvironmentProblem, RequestError
from .events import Event

SCHEMA = 1
VARIABLE = "CODA_RUNS"
MANIFEST, EVENTS, RESULT = "run.json", "events.jsonl", "result.json"
_LOCK = ".lock"
#: Events that only say how far something has come.
_FLEETING = frozenset({"VerificationProgress", "AnswerGrows", "MutationProgress", "Finished"})


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def manifest(self) -> dict[str, Any]:
        return _json(self.folder / MANIFEST)

    @property
    def result(self) -> dict[str, Any]:
        """How it ended; empty for a run that did not."""
        return _json(self.folder / RESULT)

    def events(self) -> list[dict[str, Any]]:
        return list(_lines(self.folder / EVENTS))

    def write(self, name: str, content: str | Mapping[str, Any]) -> None:
        """Put a file in the folder, whole or not at all."""
        from .library import to_json

        text = content if isinstance(content, str) else to_json(content)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with new.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)

    def read(self, name: str) -> str:
        """A file of the folder; empty where it is missing."""
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def read_json(self, name: str) -> dict[str, Any]:
        return _json(self.folder / name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from working on the same run."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.folder / _LOCK, timeout=0):
                yield
        except Timeout:
            raise EnvironmentProblem(
                f"the run {self.id} is in progress in another process; wait for it to end"
            ) from None

    def recorder(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        """``tell``, with every event written down first."""
        began = time.monotonic()
        events = self.folder / EVENTS
        if events.exists() and not events.read_bytes().endswith(b"\n"):
            with events.open("a") as file:
                file.write("\n")  # a kill cut the last line short

        def told(event: Event) -> None:
            name = type(event).__name__
            if name not in _FLEETING:
                line = {"event": name, "t": round(time.monotonic() - began, 3), **plain(event)}
                with events.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, default=str) + "\n")
            tell(event)

        return told


def plain(event: Any) -> dict[str, Any]:
    """An event as a document."""
    return {item.name: _value(getattr(event, item.name)) for item in fields(event)}


def _value(value: Any) -> Any:
    from .operators import Operator

    if isinstance(value, Operator):
        return value.name
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return plain(value)
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def home() -> Path:
    """Where runs are kept."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    import platformdirs

    return platformdirs.user_data_path("coda-agent") / "runs"


def create(run: str, manifest: Mapping[str, Any]) -> Run:
    """A folder for a run that begins. Raises :class:`EnvironmentProblem` where none can be made."""
    made = Run(home() / run)
    try:
        made.folder.mkdir(parents=True)
        made.write(MANIFEST, {"schema": SCHEMA, "id": run, **manifest})
    except OSError as error:
        raise EnvironmentProblem(
            f"runs cannot be kept in {home()}: {error.strerror or error}; name another folder with {VARIABLE}"
        ) from error
    return made


def find(name: str) -> Run:
    """The run that ``name`` is the id of, or the beginning of one id; ``last`` is the latest, a path is a folder."""
    if os.sep in name or name in (".", ".."):
        folder = Path(name).expanduser()
        if not (folder / MANIFEST).is_file():
            raise RequestError(f"{folder} is not the folder of a run: it has no {MANIFEST}")
        return _readable(Run(folder))
    known = all_runs()
    if name == "last" and known:
        return _readable(known[-1])
    exact = [run for run in known if run.id == name]
    matching = exact or [run for run in known if name and run.id.startswith(name)]
    if len(matching) != 1:
        problem = f"{len(matching)} runs begin with" if matching else "no run is called"
        raise RequestError(f"{problem} '{name}' in {home()}: coda-agent runs lists them")
    return _readable(matching[0])


def _readable(run: Run) -> Run:
    manifest = run.manifest
    if manifest.get("schema") != SCHEMA:
        raise RequestError(
            f"the run {run.id} cannot be read: {MANIFEST} has schema {manifest.get('schema')!r}, not {SCHEMA}"
        )
    return run


def all_runs() -> list[Run]:
    """Every run, oldest first."""
    try:
        folders = [path for path in home().iterdir() if re.match(r"\d{8}-\d{6}-", path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentProblem(f"the folder of runs, {home()}, cannot be read: {error.strerror or error}") from error
    return [Run(path) for path in sorted(folders)]


def row(run: Run) -> dict[str, Any]:
    """What a list says of one run."""
    manifest, result = run.manifest, run.result
    endpoint = manifest.get("endpoint") or {}
    return {
        "run": run.id,
        "operator": manifest.get("operator"),
        "author": manifest.get("author"),
        "model": endpoint.get("model"),
        "status": result.get("status") or "unfinished",
        "reason": result.get("reason"),
        "duration": result.get("duration"),
        "usage": result.get("usage"),
        "created": manifest.get("created"),
    }


def page(run: Run) -> dict[str, Any]:
    """Everything about one run: what was asked, every attempt, how it ended."""
    attempts = []
    for path in sorted((run.folder / "verdicts").glob("r*-s*.json"), key=_order):
        verdict = _json(path)
        attempts.append({"name": path.stem, **verdict, "source": run.read(f"candidates/{path.stem}.py")})
    return {
        **row(run),
        "folder": str(run.folder),
        "manifest": run.manifest,
        "attempts": attempts,
        "result": run.result or None,
    }


def _order(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.stem)]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line that a kill cut short
        if isinstance(entry, dict):
            yield entry


__all__ = ["Run", "all_runs", "create", "find", "home", "page", "row"]
