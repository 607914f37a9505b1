"""Finding operators: by a catalogue name, or as ``path.py:name`` in a user's file.

Listing reads the catalogue's files without running them, so that it needs no torch.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .declare import Operator, OperatorError

_CATALOGUE = Path(__file__).parent / "catalogue"


def catalogue_names() -> tuple[str, ...]:
    """Names of the operators that ship with coda-agent, sorted."""
    return tuple(sorted(path.stem for path in _CATALOGUE.glob("*.py") if not path.stem.startswith("_")))


def catalogue_summaries() -> dict[str, str]:
    """The first docstring line of every catalogue operator, by name; read from the files, which are not run."""
    summaries = {}
    for name in catalogue_names():
        tree = ast.parse((_CATALOGUE / f"{name}.py").read_text(encoding="utf-8"))
        docs = {function.name: ast.get_docstring(function) for function in _declared(tree)}
        summaries[name] = ((docs.get(name) or "").splitlines() or [""])[0]
    return summaries


def load(spec: str) -> Operator:
    """The operator that ``spec`` names: a catalogue name, or ``path.py:name`` for a user's own file.

    Raises :class:`OperatorError`, which says what was given, the rule and the fix.
    """
    spec = spec.strip()
    if not spec:
        raise OperatorError(f"no operator given: use a catalogue name ({', '.join(catalogue_names())}) or path.py:name")
    path, colon, name = spec.rpartition(":")
    if colon and not _is_drive(path):
        return _from_file(path, name)
    if spec in catalogue_names():
        return _from_catalogue(spec)
    if spec.endswith(".py") or Path(spec).name != spec:
        raise _without_name(spec)
    raise OperatorError(
        f"unknown operator '{spec}': {_nearest(spec, catalogue_names())}; for your own file use path.py:name"
    )


def _is_drive(text: str) -> bool:
    """Whether the only colon of a spec is that of a Windows drive, as in ``C:\\ops.py``."""
    return len(text) == 1 and text.isalpha()


def _from_catalogue(name: str) -> Operator:
    module = importlib.import_module(f"{__package__}.catalogue.{name}")
    found = getattr(module, name, None)
    if not isinstance(found, Operator):
        raise OperatorError(f"catalogue/{name}.py must define the operator '{name}': the file has its operator's name")
    return replace(found, origin="catalogue")


def _without_name(spec: str) -> OperatorError:
    path = Path(spec)
    if not path.exists():
        return OperatorError(f"no such file: {spec}; an operator of your own is given as path.py:name")
    names = [function.name for function in _declared(_parse(path, _read(path)))]
    if not names:
        return OperatorError(f"{spec} declares no operator: decorate the reference with @operator and give {spec}:name")
    return OperatorError(f"{spec} is a file: say which operator, as in {spec}:{names[0]} ({_has(names)})")


def _from_file(given: str, name: str) -> Operator:
    path = Path(given).expanduser()
    if not given:
        raise OperatorError(f"':{name}' has no file before the colon; use path.py:name")
    source = _read(path)
    tree = _parse(path, source)
    if not name:
        raise _without_name(given)
    if not name.isidentifier():
        raise OperatorError(f"'{name}' is not a name; use path.py:name, where name is that of the decorated function")
    module = _execute(path, tree)
    operators = [key for key, value in vars(module).items() if isinstance(value, Operator)]
    if name not in vars(module):
        if not operators:
            raise OperatorError(
                f"{given} has no '{name}' and declares no operator: decorate the reference with @operator"
            )
        raise OperatorError(f"{given} has no operator '{name}': {_nearest(name, operators)}")
    found = vars(module)[name]
    if isinstance(found, types.FunctionType):
        raise OperatorError(
            f"'{name}' in {given} is a plain function: put @operator above it (line {found.__code__.co_firstlineno})"
        )
    if not isinstance(found, Operator):
        raise OperatorError(f"'{name}' in {given} is a {type(found).__name__}, not an operator ({_has(operators)})")
    return replace(found, origin=str(path))


def _read(path: Path) -> str:
    if path.is_dir():
        raise OperatorError(f"{path} is a directory: an operator is given as path.py:name")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise OperatorError(f"no such file: {path}; an operator of your own is given as path.py:name") from None
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OperatorError(
            f"{path}, line {line}: not UTF-8 text (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from None


def _parse(path: Path, source: str) -> ast.Module:
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise OperatorError(f"{path}, line {error.lineno}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting beyond the parser
        raise OperatorError(f"{path}: not valid Python: {error or type(error).__name__}") from None


def _execute(path: Path, tree: ast.Module) -> types.ModuleType:
    """Run a user's file under a private module name, with its folder importable only while it runs."""
    resolved = path.resolve()
    name = f"_coda_operators_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    # A name that does not end in .py has no default loader; the file is run from its tree either way.
    module = importlib.util.module_from_spec(spec) if spec else types.ModuleType(name)
    module.__file__ = str(resolved)
    previous = sys.modules.get(name)
    sys.modules[name] = module  # where annotations are looked up
    try:
        with _importable(str(resolved.parent)):
            exec(compile(tree, str(resolved), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        where = f"{path}{at_line(error, str(resolved))}"
        if isinstance(error, OperatorError):
            raise OperatorError(f"{where}: {error}") from error
        raise OperatorError(f"{where}: importing the file raised {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def at_line(error: BaseException, filename: str) -> str:
    """``, line 12``: the innermost line of ``filename`` that ``error`` passed through; empty where it passed none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    return f", line {lines[-1]}" if lines else ""


def _declared(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions decorated with ``operator``, however it was imported."""

    def decorates(node: ast.expr) -> bool:
        return (isinstance(node, ast.Name) and node.id == "operator") or (
            isinstance(node, ast.Attribute) and node.attr == "operator"
        )

    return [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and any(map(decorates, node.decorator_list))
    ]


def _has(names: list[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it declares none"


def _nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known operators: {', '.join(sorted(known))}"
