"""Expressions → source text, as a person would have written it."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from coda_agent.sandbox.primitives import PRIMITIVES

from .contract import taken
from .expression import Builder, Expr

_WIDTH = 96
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")

# Python's own precedence: comparisons bind weaker than | and &.
_PRECEDENCE = {"|": 2, "&": 3, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "~": 7, "**": 8}
_COMPARISON, _UNARY, _POWER, _ATOM = 1, 7, 8, 9
_WORDS = {"add": "total", "sub": "difference", "mul": "product", "div": "ratio", "where": "chosen", "interleave": "pairs", "power": "squared", "maximum": "larger", "minimum": "smaller"}  # fmt: skip


class Writer:
    """Writes one function from the expressions to store.

    ``names`` suggests names for values; ``outputs`` is in the operator's order. A value is bound to a name where it
    is used twice, where it is one of a pair, where the reference stores it by name, or where a line would get long.
    """

    def __init__(
        self,
        build: Builder,
        outputs: Mapping[str, Expr],
        names: Mapping[Expr, str],
        stored: Mapping[str, str],
        doc: str,
    ) -> None:
        self.build = build
        self.outputs = outputs
        self.hints = dict(names)
        self.doc = doc
        self.bound: dict[Expr, str] = {}
        self.values = list(self._values())
        self.operands = [
            name for name in build.operands if any(e.op == "load" and e.payload == name for e in self.values)
        ]
        self.used: set[str] = set()
        for name, expr in outputs.items():
            if name in stored:
                self.hints.setdefault(expr, stored[name])
        uses = Counter(arg for expr in self.values for arg in expr.args if expr.op != "item")
        uses.update(outputs.values())
        to_bind = {expr for expr in self.values if expr.op == "item" or (uses[expr] > 1 and not _trivial(expr))}
        for name, expr in outputs.items():
            if _trivial(expr) or expr.op == "load":
                continue
            if expr in self.hints or (len(outputs) > 1 and _size(expr) > 1):
                self.hints.setdefault(expr, name)
                to_bind.add(expr)
        self._name(to_bind)
        self._fold_long_lines()

    def _values(self) -> Iterator[Expr]:
        seen: set[int] = set()
        for expr in self.outputs.values():
            yield from expr.walk(seen)

    # -- names --------------------------------------------------------------------------------------------------

    def _name(self, exprs: set[Expr]) -> None:
        ordered = [expr for expr in self.values if expr in exprs]
        # The reference's own names first, so that an invented one never takes theirs.
        for expr in ordered:
            name = self._usable(self.hints.get(expr, ""))
            if name and self._free(name, expr):
                self._bind(expr, name)
        for expr in ordered:
            if expr not in self.bound:
                self._bind(expr, self._unique(self._invent(expr), expr))

    def _bind(self, expr: Expr, name: str) -> None:
        self.bound[expr] = name
        self.used.add(name)
        if expr.op == "item":  # its other half needs a name too, used or not
            pair = expr.args[0]
            for other in self._items(pair):
                if other not in self.bound and other not in self.values:
                    self.bound[other] = self._unique(self._invent(other), other)
                    self.used.add(self.bound[other])

    def _items(self, pair: Expr) -> tuple[Expr, Expr]:
        return self.build.pair(pair.args[0])

    def _usable(self, hint: str) -> str:
        name = hint.lower().lstrip("_")
        return (
            name
            if _NAME.match(name) and not keyword.iskeyword(name) and not taken(name) and name not in PRIMITIVES
            else ""
        )

    def _free(self, name: str, expr: Expr) -> bool:
        return name not in self.used and (name not in self.operands or (expr.op == "load" and expr.payload == name))

    def _unique(self, name: str, expr: Expr) -> str:
        base, count = self._usable(name) or "value", 2
        name = base
        while not self._free(name, expr):
            name = f"{base[:36]}_{count}"
            count += 1
        return name

    def _invent(self, expr: Expr) -> str:
        hint = self._usable(self.hints.get(expr, ""))
        if hint:
            return hint
        if expr.op == "load":
            name = str(expr.payload)
            return name if self._usable(name) else f"{name}_{self.build.loader(name).removeprefix('load_')}"
        if expr.op == "item":
            source = expr.args[0].args[0]
            side = "odd" if expr.payload else "even"
            if source.op == "col_index":
                return f"{side}_columns"
            return side if source.op == "acc" else f"{self._short(source)}_{side}"
        if expr.type.element == "bool":
            index = next((e for e in expr.walk() if e.op in ("num_cols", "num_rows")), None)
            return "inside" if index is not None and expr.op == "lt" else "condition"
        if expr.op in _WORDS:
            return _WORDS[expr.op]
        if len(expr.args) == 1:
            return f"{expr.op}_{self._short(expr.args[0])}"
        return {"col_index": "columns", "row_index": "rows"}.get(expr.op, "value")

    def _short(self, expr: Expr) -> str:
        """A word for ``expr``, to make names of."""
        if expr in self.bound or expr.op in ("acc", "load"):
            return self.bound.get(expr, str(expr.payload or "acc"))
        hint = self._usable(self.hints.get(expr, ""))
        if hint or not expr.args:
            return hint or "x"
        return self._short(expr.args[0])

    # -- text ---------------------------------------------------------------------------------------------------

    def _fold_long_lines(self) -> None:
        """Bind parts of statements that are too long: the reference's own intermediate values first, then the largest."""
        settled: set[Expr] = set()  # long lines with nothing left to take out
        while True:
            expr = next(
                (e for text, e in self._statements() if len(text) > _WIDTH and e is not None and e not in settled), None
            )
            if expr is None:
                return
            parts = [
                part for part in self._inner(expr) if not _trivial(part) and part.op != "load" and not part.type.partial
            ]
            lengths = {part: len(self.show(part)) for part in parts}
            named = [part for part in parts if self._usable(self.hints.get(part, ""))]
            short = [part for part in parts if 12 < lengths[part] <= _WIDTH - 24]
            candidates = named or short
            if candidates:
                self._name({max(candidates, key=lengths.__getitem__)})
            else:
                settled.add(expr)

    def _inner(self, expr: Expr) -> Iterator[Expr]:
        """What is written inside the statement that defines ``expr``."""
        for arg in expr.args:
            if arg not in self.bound:
                yield arg
                yield from self._inner(arg)

    def _statements(self) -> list[tuple[str, Expr | None]]:
        lines: list[tuple[str, Expr | None]] = []
        done: set[Expr] = set()
        for expr in self.values:
            if expr not in self.bound or expr in done:
                continue
            if expr.op == "item":
                items = self._items(expr.args[0])
                done.update(items)
                names = ", ".join(self.bound[item] for item in items)
                lines.append((f"    {names} = even_odd({self.show(expr.args[0].args[0])})", expr.args[0]))
            else:
                lines.append((f"    {self.bound[expr]} = {self.show(expr, define=True)}", expr))
        for name, expr in self.outputs.items():
            lines.append((f"    store({name}, {self.show(expr)})", None if expr in self.bound else expr))
        return lines

    def source(self) -> str:
        lines = [f"def epilogue({', '.join(['acc', *self.operands])}):"]
        if self.doc:
            lines.append(f'    """{_docstring(self.doc)}"""')
        lines += [text for text, _ in self._statements()]
        return "\n".join(lines) + "\n"

    def show(self, expr: Expr, define: bool = False) -> str:
        return self._show(expr, define)[0]

    def _show(self, expr: Expr, define: bool = False) -> tuple[str, int]:
        """Text and the precedence of its outermost operator."""
        if expr in self.bound and not define:
            return self.bound[expr], _ATOM
        if expr.op == "literal":
            text = repr(expr.payload)
            return (text, _UNARY) if text.startswith("-") else (text, _ATOM)
        if expr.op == "acc":
            return "acc", _ATOM
        if expr.op == "load":
            return f"{self.build.loader(expr.payload)}({expr.payload})", _ATOM
        if expr.op == "power":
            return f"{self._operand(expr.args[0], _POWER + 1)} ** {expr.payload}", _POWER
        if expr.op == "square":
            return f"{self._operand(expr.args[0], _POWER + 1)} ** 2", _POWER
        primitive = PRIMITIVES[expr.op]
        if primitive.infix is None:
            return f"{expr.op}({', '.join(self.show(arg) for arg in expr.args)})", _ATOM
        symbol = primitive.infix[0]
        if len(expr.args) == 1:
            return f"{symbol}{self._operand(expr.args[0], _UNARY)}", _UNARY
        precedence = _PRECEDENCE.get(symbol, _COMPARISON)
        left_floor = precedence + (precedence == _COMPARISON)  # comparisons do not chain
        left, right = self._operand(expr.args[0], left_floor), self._operand(expr.args[1], precedence + 1)
        return f"{left} {symbol} {right}", precedence

    def _operand(self, expr: Expr, floor: int) -> str:
        text, precedence = self._show(expr)
        return text if precedence >= floor else f"({text})"


def _trivial(expr: Expr) -> bool:
    """Whether naming ``expr`` would say no more than writing it."""
    return expr.op in ("literal", "acc", "num_rows", "num_cols", "even_odd")


def _size(expr: Expr) -> int:
    return sum(bool(part.args) for part in expr.walk())


def _docstring(text: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    return text + " " if text.endswith('"') else text
