"""The catalogue as a table, read from its files without running them, so that listing needs no torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from .loading import catalogue_names, catalogue_summaries

_CATALOGUE = Path(__file__).parent / "catalogue"


@dataclass(frozen=True)
class Listed:
    """One catalogue operator. Operands and outputs map names to annotations as written, such as ``Scalar = 1e-5``."""

    name: str
    summary: str
    operands: dict[str, str]
    outputs: dict[str, str]


def listing() -> list[Listed]:
    """Every catalogue operator, sorted by name."""
    summaries = catalogue_summaries()
    return [_read(name, summaries[name]) for name in catalogue_names()]


def _read(name: str, summary: str) -> Listed:
    tree = ast.parse((_CATALOGUE / f"{name}.py").read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    operands = {
        argument.arg: _text(argument.annotation) + (f" = {_text(default)}" if default else "")
        for argument, default in list(zip(arguments, defaults, strict=True))[1:]
    }
    returned = classes.get(_text(function.returns))
    if returned is None:
        return Listed(name, summary, operands, {"y": _text(function.returns)})
    fields = [node for node in returned.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return Listed(name, summary, operands, {_text(node.target): _text(node.annotation) for node in fields})


def _text(node: ast.expr | None) -> str:
    return ast.unparse(node).replace("'", '"') if node else ""
