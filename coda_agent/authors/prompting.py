"""What a model is told: templates of the ``prompts`` package filled in from an operator and the sandbox's own tables."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import FunctionType
from typing import Any

import jinja2

from coda_agent.operators import Operator
from coda_agent.sandbox import EXTENTS, FAMILIES, PRIMITIVES, STORE, Diagnostic
from coda_agent.sandbox.parser import FUNCTION_NAME, MAX_DEPTH, MAX_OPERATIONS, MAX_SOURCE
from coda_agent.sandbox.primitives import TILE_IO, RuleError, loader_for
from coda_agent.sandbox.types import Extent, Type

from .contract import signature


def render(operator: Operator) -> str:
    """The whole message that asks a model for an epilogue of ``operator``."""
    parts = [_fill(f"{name}.md.j2", operator) for name in ("spec", "examples", "operator", "answer")]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def render_repair(
    operator: Operator,
    source: str,
    diagnostics: Sequence[Diagnostic | str] = (),
    counterexample: Mapping[str, Any] | str | None = None,
    *,
    guesses: Sequence[str] = (),
    problems: Sequence[str] = (),
    missing: str = "",
    note: str = "",
) -> str:
    """The message that follows an answer which was refused or disagreed with the reference.

    ``missing`` says why there is no ``source``; ``guesses`` are kinds of error, ``problems`` what the compiler says, and
    ``note`` a sentence on where to start from.
    """
    shown = counterexample if isinstance(counterexample, str | None) else _as_json(counterexample)
    text = _fill(
        "repair.md.j2",
        operator,
        source=source,
        diagnostics=list(map(str, diagnostics)),
        counterexample=shown,
        guesses=list(guesses),
        problems=list(problems),
        missing=missing,
        note=note,
    )
    return text.strip() + "\n"


def prompt_hash(text: str) -> str:
    """The identity of a prompt, as records and caches keep it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fenced(text: str, language: str = "") -> str:
    """``text`` as a Markdown code block that nothing inside it can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


# --- Templates -----------------------------------------------------------------------------------------------------


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["fenced"] = fenced
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _read(name: str) -> str | None:
    file = resources.files("prompts").joinpath(name)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _fill(template: str, operator: Operator, **extra: Any) -> str:
    return _environment().get_template(template).render({**_language(), **_target(operator), **extra})


# --- The language, from its tables -----------------------------------------------------------------------------------


def _language() -> dict[str, Any]:
    families = []
    for family, title in FAMILIES.items():
        entries = [
            {"signature": entry.signature, "meaning": entry.meaning}
            for entry in PRIMITIVES.values()
            if entry.family == family
        ]
        if family == TILE_IO:
            entries.append({"signature": STORE[0], "meaning": STORE[1]})
        families.append({"title": title, "primitives": entries})
    return {
        "function": FUNCTION_NAME,
        "limits": {"source": MAX_SOURCE, "operations": MAX_OPERATIONS, "depth": MAX_DEPTH},
        "extents": [
            {"name": name, "shape": extent.shape, "loader": _loader(extent)} for name, extent in EXTENTS.items()
        ],
        "families": families,
    }


def _loader(extent: Extent) -> str:
    """The primitive that loads an operand of this extent; empty where only expressions have it."""
    name = loader_for(extent)
    try:
        PRIMITIVES[name].rule([Type(extent)])
    except RuleError:
        return ""
    return name


# --- The target ------------------------------------------------------------------------------------------------------


def _target(operator: Operator) -> dict[str, Any]:
    contract = signature(operator)
    defaults = {operand.name: operand.default for operand in operator.operands}
    operands = []
    for name, operand in contract.operands.items():
        dtype = "integers" if operand.element == "int" else "floating point"
        if defaults[name] is not None:
            dtype += f", {defaults[name]!r} by default"
        loader = _loader(operand.extent)
        operands.append(
            {"name": name, "type": operand.type, "shape": operand.extent.shape, "dtype": dtype, "loader": loader}
        )
    outputs = [
        {
            "name": name,
            "type": output.type,
            "shape": output.extent.shape,
            "dtype": "fp32" if output.reduction else "the dtype of A and W",
            "optional": output.optional,
        }
        for name, output in contract.outputs.items()
    ]
    return {
        "operator": operator,
        "source": reference_text(operator),
        "operands": operands,
        "outputs": outputs,
        "pairs": contract.pairs,
        "parameters": ["acc", *contract.operands],
        "examples": examples(operator),
    }


def reference_text(operator: Operator) -> str:
    """The reference's source, after the constants and helper functions of its own file that it uses."""
    helpers: dict[str, str] = {}
    pending = [operator.reference]
    while pending:
        function = pending.pop()
        if not isinstance(function, FunctionType):
            continue
        for name in _names(function):
            value = function.__globals__.get(name)
            if name in helpers or value is operator.reference:
                continue
            if isinstance(value, bool | int | float):
                helpers[name] = f"{name} = {value!r}"
            elif isinstance(value, FunctionType) and value.__module__ == operator.reference.__module__:
                try:
                    helpers[name] = textwrap.dedent(inspect.getsource(value)).strip()
                except (OSError, TypeError):
                    continue
                pending.append(value)
    return "\n\n".join([*reversed(helpers.values()), operator.source.strip()])


def _names(function: FunctionType) -> list[str]:
    """Global names that a function and the functions nested in it may read, in order of appearance."""
    found: dict[str, None] = {}
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        found |= dict.fromkeys(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return list(found)


# --- Worked examples -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A worked example: the text of its operator file, its reference alone, and the epilogue that implements it."""

    name: str
    operator: str
    reference: str
    epilogue: str


@functools.cache
def all_examples() -> tuple[Example, ...]:
    """Every example that ships with the prompts, by name. Their files are read, not run."""
    folders = [folder for folder in resources.files("prompts").joinpath("examples").iterdir() if folder.is_dir()]
    found = []
    for folder in sorted(folders, key=lambda folder: folder.name):
        if not folder.joinpath("operator.py").is_file():
            continue
        text = folder.joinpath("operator.py").read_text(encoding="utf-8")
        epilogue = folder.joinpath("epilogue.py").read_text(encoding="utf-8")
        found.append(Example(folder.name, text, _without_imports(text), _without_comments(epilogue)))
    return tuple(found)


def examples(operator: Operator) -> tuple[Example, ...]:
    """The examples a model may see for ``operator``: none of its name, and none that computes the same."""
    body = _body(operator.source)
    return tuple(e for e in all_examples() if e.name != operator.name and _body(e.operator) != body)


def _without_imports(text: str) -> str:
    """The declarations of an operator file, from the first statement that is no import."""
    tree = ast.parse(text)
    first = next(node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[first.lineno - 1 :]).strip()


def _without_comments(text: str) -> str:
    lines = text.splitlines()
    while lines and lines[0].startswith("#"):
        del lines[0]
    return "\n".join(lines).strip()


def _body(text: str) -> str:
    """What a reference does, without its name and documentation."""
    try:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    if not functions:
        return text
    body = functions[-1].body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return "\n".join(ast.dump(statement) for statement in body)
