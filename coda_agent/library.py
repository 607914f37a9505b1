"""A library of kernels: a folder that is the truth about itself, and the atomic commits that change it.

Nothing here imports torch, and a library is read without running anything in it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import keyword
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from .errors import BAD_REQUEST, ENVIRONMENT, CodaError, RequestError

RECORD = "record.json"
SCHEMA = 1
Status = Literal["verified", "stale", "broken"]

#: Names in a library folder that are not kernels; ``blocks`` is kept for compositions.
_RESERVED = frozenset({"runtime", "blocks"})
#: What says that an ``__init__.py`` is a library's own.
_MARK = "A library of fused GEMM kernels, written and verified by coda-agent."
_LOCK, _HOLDER = ".lock", ".lock-holder"
_NEW, _OLD = ".new-", ".old-"


class LibraryError(CodaError):
    """A library folder cannot be used as the environment stands."""

    exit_code = ENVIRONMENT


class LibraryRequestError(LibraryError, RequestError):
    """What was asked of a library makes no sense."""

    exit_code = BAD_REQUEST


@dataclass(frozen=True)
class Entry:
    """One kernel folder as it stands. ``record`` is empty where it cannot be read; ``reason`` says why not verified."""

    name: str
    folder: Path
    status: Status
    record: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def text(self, filename: str) -> str:
        """One of its files; empty where it is missing."""
        try:
            return (self.folder / filename).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def to_json(document: Any, *, ascii_only: bool = False) -> str:
    """Readable JSON that any parser takes: numbers that JSON lacks become strings such as "nan"."""
    return json.dumps(_plain(document), indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_name(name: str) -> None:
    """Raise unless a kernel may be called ``name``: it becomes a folder and an importable name."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise LibraryRequestError(
            f"'{name}' cannot name a kernel: it must be a public Python name; rename the operator"
        )
    if name in _RESERVED:
        raise LibraryRequestError(
            f"'{name}' cannot name a kernel: libraries keep that name for themselves; rename the operator"
        )


def installed() -> Path | None:
    """The folder of the ``kernel_library`` package that would be imported, found without importing it."""
    spec = importlib.util.find_spec("kernel_library")
    return Path(spec.origin).parent if spec and spec.origin else None


def locate(given: Path | None = None, environment: Mapping[str, str] = os.environ) -> Library:
    """The library that a command is about: the one given, else $CODA_LIBRARY, else the installed one."""
    if given is not None:
        return Library(given)
    if environment.get("CODA_LIBRARY"):
        return Library(Path(environment["CODA_LIBRARY"]))
    found = installed()
    if found is None:
        raise LibraryError(
            "the package kernel_library is not installed: name a library with --library DIR or CODA_LIBRARY"
        )
    return Library(found)


class Library:
    """The library in ``path``, which need not exist before the first commit."""

    def __init__(self, path: Path | str, *, patience: float = 5.0) -> None:
        self.patience = patience
        try:
            self.path = Path(path).expanduser()
            root = self.path.resolve() == Path(self.path.resolve().anchor)
        except (ValueError, RuntimeError) as error:  # a null byte; ~nobody
            raise LibraryRequestError(f"{str(path)!r} cannot be a folder: {error}") from error
        if root:
            raise LibraryRequestError(f"the library cannot be {self.path}; name a folder of its own")
        with _explained(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise LibraryRequestError(
                    f"the library {self.path} is a file; it must be a folder, or a path where one can be made"
                )

    @property
    def warning(self) -> str:
        """Why Python cannot import this library by its folder's name; empty where it can."""
        name = self.path.resolve().name
        if name.isidentifier() and not keyword.iskeyword(name):
            return ""
        return f"'{name}' is not a Python name, so this library cannot be imported; give its folder a name such as my_kernels"

    # --- Reading -----------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All kernels, sorted by name. Empty for a library that does not exist yet."""
        with _explained(self.path):
            if not self.path.exists():
                return []
            folders = sorted(
                path for path in self.path.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
            )
            return [_entry(path) for path in folders if path.name not in _RESERVED and _looks_like_kernel(path)]

    def entry(self, name: str) -> Entry:
        """The kernel called ``name``; raises with the nearest names if there is none."""
        entries = {entry.name: entry for entry in self.entries()}
        if name in entries:
            return entries[name]
        close = get_close_matches(name, entries, n=3, cutoff=0.5)
        if close:
            hint = f"did you mean {' or '.join(close)}?"
        else:
            hint = f"it has {', '.join(entries)}" if entries else "it has none yet"
        raise LibraryRequestError(f"no kernel '{name}' in {self.path}: {hint}")

    def chosen(self, names: Sequence[str], everything: bool) -> list[Entry]:
        """The kernels a command names, or all of them; raises unless it is one or the other, and finds some."""
        if bool(names) == everything:
            raise LibraryRequestError("name the kernels, or --all")
        entries = self.entries() if everything else [self.entry(name) for name in names]
        if not entries:
            raise LibraryRequestError(f"there are no kernels in {self.path}")
        return entries

    def runtime_sha256(self) -> str:
        """Identity of the runtime that this library's kernels launch with; that of the tool's own until the first commit."""
        folder = self.path / "runtime"
        return _digest(_sources(folder if folder.is_dir() else _template() / "runtime"))

    # --- Writing -----------------------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Raise if a commit is bound to fail, changing nothing."""
        with _explained(self.path):
            self._check_own()
            existing = next(path for path in (self.path, *self.path.resolve().parents) if path.exists())
            if not existing.is_dir():
                raise LibraryRequestError(f"the library {self.path} cannot be made: {existing} is a file")
            # A file without a name: permissions, a read-only or full disk and odd file systems all show.
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"0" * 4096)

    def commit(self, name: str, files: Mapping[str, str], record: Mapping[str, Any]) -> Entry:
        """Put a kernel in its folder, whole or not at all; an older version is replaced once the new one is on disk.

        The library is initialised first if need be. The sha256 of every file and of the runtime are added to ``record``.
        """
        check_name(name)
        with _explained(self.path):
            self._check_own()
            self.path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._clean()
                self._initialise()
                data = {filename: text.encode() for filename, text in files.items()}
                sums = {"sha256": {filename: sha256(data[filename]) for filename in sorted(data)}}
                complete = {**record, **sums, "runtime_sha256": self.runtime_sha256()}
                self._replace(name, {**data, RECORD: to_json(complete).encode()})
        return self.entry(name)

    def update(self, entry: Entry, record: Mapping[str, Any]) -> Entry:
        """Commit a kernel anew with the files it has and another record."""
        return self.commit(entry.name, {name: entry.text(name) for name in entry.record["sha256"]}, record)

    def _check_own(self) -> None:
        """Raise unless the folder is missing, empty, or a library already."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise LibraryRequestError(f"the library {self.path} is a file; it must be a folder")
        init = self.path / "__init__.py"
        if init.is_file() and (text := init.read_text(encoding="utf-8", errors="replace")).strip():
            if _MARK not in text:
                raise LibraryRequestError(
                    f"{self.path} is a Python package of its own, not a kernel library; name another folder"
                )
            return
        foreign = sorted(
            p.name
            for p in self.path.iterdir()
            if not p.name.startswith(".") and p.name not in ("runtime", "__init__.py", "__pycache__")
        )
        if foreign:
            raise LibraryRequestError(
                f"{self.path} is not a kernel library and not empty (it holds {foreign[0]}); name an empty or new folder"
            )

    def _initialise(self) -> None:
        """Bring ``runtime/`` and ``__init__.py`` to those of the installed library."""
        template = _template()
        if template.resolve() == self.path.resolve():
            return
        sources = _sources(template / "runtime")
        if sources != _sources(self.path / "runtime"):
            self._replace("runtime", sources)
        init = (template / "__init__.py").read_bytes()
        target = self.path / "__init__.py"
        if not target.is_file() or target.read_bytes() != init:
            staged = self.path / f"{_NEW}init"
            staged.mkdir(exist_ok=True)
            _write(staged / target.name, init)
            os.replace(staged / target.name, target)
            staged.rmdir()

    def _replace(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write a folder beside its place, then swap it in."""
        target, old = self.path / name, self.path / f"{_OLD}{name}"
        staged = Path(tempfile.mkdtemp(prefix=f"{_NEW}{name}-", dir=self.path))
        try:
            staged.chmod(0o777 & ~_umask())
            for filename, data in files.items():
                _write(staged / filename, data)
            _sync(staged)
            if target.exists():
                os.rename(target, old)
            os.rename(staged, target)
        except BaseException:
            if old.exists() and not target.exists():
                os.rename(old, target)
            shutil.rmtree(staged, ignore_errors=True)
            raise
        _sync(self.path)
        shutil.rmtree(old, ignore_errors=True)

    def _clean(self) -> None:
        """Remove what an interrupted commit left; restore an old version that was on its way out. Under the lock."""
        for path in list(self.path.iterdir()):
            if path.name.startswith(_OLD):
                target = self.path / path.name.removeprefix(_OLD)
                if not target.exists():
                    os.rename(path, target)
                    continue
            if path.name.startswith((_OLD, _NEW)):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        path, holder = self.path / _LOCK, self.path / _HOLDER
        lock = FileLock(path)
        try:
            lock.acquire(timeout=self.patience)
        except Timeout:
            who = "another run"
            with suppress(OSError):
                who = f"another run (process {holder.read_text().strip()})"
            raise LibraryError(f"the library is in use: {who} holds {path}; try again when it is done") from None
        try:
            holder.write_text(f"{os.getpid()}\n")
            yield
        finally:
            with suppress(OSError):
                holder.unlink(missing_ok=True)
            lock.release()


def _entry(folder: Path) -> Entry:
    def broken(reason: str) -> Entry:
        return Entry(folder.name, folder, "broken", record, reason)

    record: Mapping[str, Any] = {}
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return broken(f"{RECORD} is missing")
    except (OSError, ValueError, RecursionError) as error:
        return broken(f"{RECORD} cannot be read: {error}")
    sums = found.get("sha256") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(sums, dict) or not {"epilogue.py", "kernel.py"} <= sums.keys():
        return broken(f"{RECORD} does not hold the sha256 of epilogue.py and kernel.py")
    record = found
    if record.get("schema") != SCHEMA:
        return broken(f"{RECORD} has schema {record.get('schema')!r}; this version reads {SCHEMA}")
    for filename, expected in sums.items():
        try:
            actual = sha256((folder / Path(filename).name).read_bytes())
        except OSError:
            return broken(f"{filename} is missing")
        if actual != expected:
            return Entry(folder.name, folder, "stale", record, f"{filename} was changed after it was verified")
    return Entry(folder.name, folder, "verified", record)


def _looks_like_kernel(folder: Path) -> bool:
    return (folder / RECORD).exists() or (folder / "kernel.py").exists()


def _template() -> Path:
    """The installed library, whose ``__init__.py`` and ``runtime/`` every other library gets a copy of."""
    found = installed()
    if found is None or not (found / "runtime").is_dir():
        raise LibraryError(
            "the package kernel_library is not installed, so a library has no runtime to take from it; reinstall coda-agent"
        )
    return found


def _sources(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}


def _digest(files: Mapping[str, bytes]) -> str:
    return sha256("".join(f"{name} {sha256(data)}\n" for name, data in files.items()).encode())


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Flush a folder's list of names to disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_ADVICE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what the system says into a :class:`LibraryError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise LibraryRequestError(f"the library {path} cannot be a folder: {error.strerror}") from error
        why = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
        raise LibraryError(f"the library {path} cannot be used: {why}; name another with --library DIR") from error
