"""Expressions of the epilogue language as a shared graph, built from a traced reference.

Equal expressions are one object, so that a value is computed once and named once. Types come from the language's
own table. Building simplifies what nobody would write by hand: constants, ``x * 1``, ``even_odd(interleave(a, b))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from coda_agent.sandbox.primitives import PRIMITIVES, loader_for
from coda_agent.sandbox.types import FULL, HALF, SCALAR, TILE, Combine, Element, Extent, Operand, Type

Number = bool | int | float


@dataclass(frozen=True, eq=False)
class Expr:
    """A leaf (``acc``, ``literal``, ``load``, ``undefined``), an ``item`` of a pair, or an application.

    Beside the primitives there are three forms of this module's own: ``power`` (payload: the exponent 2, 3 or 4),
    ``reduce`` (payload: axis and combination; not yet masked) and ``pick`` before it is stored.
    """

    op: str
    args: tuple[Expr, ...]
    type: Type
    payload: Any = None

    @property
    def number(self) -> Number | None:
        """The value of a literal, None for everything else."""
        return self.payload if self.op == "literal" else None

    def walk(self, seen: set[int] | None = None) -> Iterator[Expr]:
        """Every expression this one is made of and itself, each once, arguments first."""
        seen = set() if seen is None else seen
        if id(self) in seen:
            return
        seen.add(id(self))
        for arg in self.args:
            yield from arg.walk(seen)
        yield self


_FOLD: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "where": lambda c, a, b: a if c else b,
    "minimum": min,
    "maximum": max,
    "abs": abs,
    "square": lambda a: a * a,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "exp": math.exp,
    "exp2": lambda a: 2.0**a,
    "log": math.log,
    "log2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "erf": math.erf,
    "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "silu": lambda a: a / (1 + math.exp(-a)),
    "softplus": lambda a: math.log1p(math.exp(a)),
    "relu": lambda a: max(a, 0.0),
    "gelu": lambda a: a * 0.5 * (1 + math.erf(a / math.sqrt(2))),
    "gelu_tanh": lambda a: 0.5 * a * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
}


@dataclass
class Builder:
    """Makes expressions, each only once."""

    operands: dict[str, Operand]
    _known: dict[tuple[Any, ...], Expr] = field(default_factory=dict)

    def _make(self, op: str, args: tuple[Expr, ...], type_: Type, payload: Any = None) -> Expr:
        key = (op, tuple(map(id, args)), type_, type(payload), repr(payload))
        if key not in self._known:
            self._known[key] = Expr(op, args, type_, payload)
        return self._known[key]

    def literal(self, number: Number) -> Expr:
        element: Element = "bool" if isinstance(number, bool) else "int" if isinstance(number, int) else "float"
        if element == "int" and abs(number) > 2**31 - 1:  # integers of the language have 32 bits
            element, number = "float", float(number)
        return self._make("literal", (), Type(SCALAR, element), number)

    def acc(self) -> Expr:
        return self._make("acc", (), Type(TILE))

    def load(self, name: str) -> Expr:
        return self._make("load", (), self.operands[name].type, name)

    def undefined(self, extent: Extent) -> Expr:
        """Memory nobody has written yet; must not reach a store."""
        return self._make("undefined", (), Type(extent))

    def pair(self, x: Expr) -> tuple[Expr, Expr]:
        """The even and odd columns of ``x``; ``x`` itself twice where it does not vary along columns."""
        if not x.type.extent.columns:
            return x, x
        if x.op == "interleave":
            return x.args[0], x.args[1]
        if x.op == "undefined":
            half = self.undefined(Extent(x.type.extent.rows, x.type.extent.columns // 2))
            return half, half
        types = PRIMITIVES["even_odd"].rule([x.type])
        assert isinstance(types, tuple)
        split = self._make("even_odd", (x,), types[0])
        even, odd = (self._make("item", (split,), type_, index) for index, type_ in enumerate(types))
        return even, odd

    def interleave(self, even: Expr, odd: Expr, columns: int) -> Expr:
        """The inverse of :meth:`pair`, ``columns`` wide."""
        if even.op == odd.op == "item" and even.args == odd.args and (even.payload, odd.payload) == (0, 1):
            return even.args[0].args[0]
        if even.op == odd.op == "undefined":
            return self.undefined(Extent(even.type.extent.rows, columns))
        if not even.type.extent.columns and not odd.type.extent.columns:
            if even is odd:
                return even
            if columns == FULL:
                parity = self.apply("mod", self.apply("col_index"), self.literal(2))
                return self.apply("where", self.apply("eq", parity, self.literal(0)), even, odd)
        if even.type.element != odd.type.element:
            even, odd = self.floating(even), self.floating(odd)
        return self._apply("interleave", (even, odd))

    def floating(self, x: Expr) -> Expr:
        """``x`` as floating-point numbers: true and false become 1 and 0."""
        if x.type.element == "bool":
            return self.apply("where", x, self.literal(1.0), self.literal(0.0))
        if x.type.element == "int":
            return self.literal(float(x.payload)) if x.op == "literal" else self._apply("mul", (x, self.literal(1.0)))
        return x

    def numeric(self, x: Expr) -> Expr:
        return self.floating(x) if x.type.element == "bool" else x

    def power(self, x: Expr, exponent: int) -> Expr:
        if x.number is not None:
            return self.literal(float(x.number**exponent))
        return self._make("power", (x,), self._typed("square", (x,)), exponent)

    def reduce(self, x: Expr, over_columns: bool, combine: Combine, index: Expr | None = None) -> Expr:
        """A reduction that is to be stored; ``index`` makes it a pick."""
        extent = Extent(True, 0) if over_columns else Extent(False, x.type.extent.columns)
        type_ = Type(extent, "float", combine)
        if index is not None:
            return self._make("pick", (x, index), type_, (over_columns, combine))
        return self._make("reduce", (x,), type_, (over_columns, combine))

    def _typed(self, op: str, args: tuple[Expr, ...]) -> Type:
        type_ = PRIMITIVES[op].rule([arg.type for arg in args])
        assert isinstance(type_, Type)
        return type_

    def _apply(self, op: str, args: tuple[Expr, ...]) -> Expr:
        return self._make(op, args, self._typed(op, args))

    def apply(self, op: str, *args: Expr) -> Expr:
        """``op`` of ``args``, simplified. Raises ``RuleError`` where the language's type rules are broken."""
        if args and all(arg.op == "literal" for arg in args) and op in _FOLD:
            return self.literal(self._fold(op, [arg.payload for arg in args]))
        return self._simplified(op, args) or self._apply(op, args)

    def _fold(self, op: str, numbers: list[Number]) -> Number:
        try:
            result: Number = _FOLD[op](*numbers)
        except ZeroDivisionError:
            result = math.copysign(math.inf, numbers[0]) if numbers[0] else math.nan
        except OverflowError:
            result = math.inf
        except ValueError:
            result = math.nan
        return result

    def _simplified(self, op: str, args: tuple[Expr, ...]) -> Expr | None:
        numbers = [None if isinstance(arg.number, bool) else arg.number for arg in args]
        if op in ("add", "sub") and numbers[1] == 0 and args[0].type.element == "float":
            return args[0]
        if op == "add" and numbers[0] == 0 and args[1].type.element == "float":
            return args[1]
        if op in ("mul", "div") and numbers[1] == 1 and args[0].type.element == "float":
            return args[0]
        if op == "mul" and numbers[0] == 1 and args[1].type.element == "float":
            return args[1]
        if op == "mul":
            for one, other in (args, args[::-1]):  # 1 / x * k is k / x
                if one.op == "div" and one.args[0].number == 1:
                    return self.apply("div", other, one.args[1])
        if op == "neg" and args[0].op == "neg":
            return args[0].args[0]
        if op == "add" and args[1].op == "neg":
            return self.apply("sub", args[0], args[1].args[0])
        if op == "add" and args[0].op == "neg":
            return self.apply("sub", args[1], args[0].args[0])
        if op == "sub" and args[1].op == "neg":
            return self.apply("add", args[0], args[1].args[0])
        if op in ("add", "sub") and numbers[1] is not None and numbers[1] < 0:
            return self.apply("sub" if op == "add" else "add", args[0], self.literal(-numbers[1]))
        if op == "maximum" and 0 in numbers and not all(number == 0 for number in numbers):
            other = args[1 - numbers.index(0)]
            return self.apply("relu", other) if other.type.element == "float" else None
        if op in ("and", "or"):
            for known, other in (args, args[::-1]):
                if known.op == "literal":
                    return other if known.payload is (op == "and") else known
        if op == "not" and args[0].op == "not":
            return args[0].args[0]
        if op == "where":
            if args[0].op == "literal":
                return args[1] if args[0].payload else args[2]
            if args[1] is args[2]:
                return args[1]
        return None

    def loader(self, name: str) -> str:
        return loader_for(self.operands[name].extent)


# What is known of a value outside the bounds of the accumulator: a number, or one of these.
_NONZERO: Final = "nonzero"
_FINITE: Final = "finite"
_ANY: Final = "any"
_Known = Number | Literal["nonzero", "finite", "any"]


def zero_at_padding(x: Expr, over_columns: bool) -> bool:
    """Whether ``x`` is provably 0 in the padding of an edge tile: columns from N on (or rows from M on).

    Loads are 0 outside their bounds along the axes they have; along the other axis they are anything, also infinite,
    so ``0 * r`` is not known to be 0.
    """
    known: dict[int, _Known] = {}
    for expr in x.walk():
        known[id(expr)] = _at_padding(expr, [known[id(arg)] for arg in expr.args], over_columns)
    result = known[id(x)]
    return not isinstance(result, str) and result == 0


def _finite(value: _Known) -> bool:
    return value in (_NONZERO, _FINITE) or (not isinstance(value, str) and math.isfinite(value))


def _at_padding(expr: Expr, args: list[_Known], over_columns: bool) -> _Known:
    if expr.op == "literal":
        return expr.payload  # type: ignore[no-any-return]
    if expr.op in ("acc", "load"):
        extent = expr.type.extent
        if extent.columns if over_columns else extent.rows:
            return 0
        return _FINITE if expr.type.element == "int" else _ANY
    if expr.op in ("num_cols", "num_rows"):
        return _NONZERO
    if expr.op in ("col_index", "row_index"):
        return _FINITE
    if expr.op in ("item", "even_odd"):
        return args[0]
    if expr.op == "interleave":
        return args[0] if args[0] == args[1] else _FINITE if _finite(args[0]) and _finite(args[1]) else _ANY
    if _is_bounds_check(expr, over_columns):
        return False
    if all(not isinstance(arg, str) for arg in args):
        if expr.op == "power":
            return args[0] ** expr.payload  # type: ignore[operator, no-any-return]
        if expr.op in _FOLD:
            try:
                return _FOLD[expr.op](*args)  # type: ignore[no-any-return]
            except (ArithmeticError, ValueError):
                return _ANY
    if expr.op == "mul" and 0 in args and all(map(_finite, args)):
        return 0
    if expr.op == "div" and args[0] == 0 and args[1] == _NONZERO:
        return 0
    if expr.op == "and" and False in args:
        return False
    if expr.op == "or" and True in args:
        return True
    if expr.op == "where":
        condition, a, b = args
        if not isinstance(condition, str):
            return a if condition else b
        if a == b:
            return a
        return _FINITE if _finite(a) and _finite(b) else _ANY
    if expr.type.element == "bool":
        return _FINITE
    if expr.op in ("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "relu") and all(map(_finite, args)):
        return _FINITE if expr.type.element == "int" else _ANY  # finite floats may overflow
    return _ANY


def _is_bounds_check(expr: Expr, over_columns: bool) -> bool:
    """``col_index() < num_cols()`` of any width, or its like for rows: false in the padding."""
    if expr.op != "lt" or expr.args[1].op != ("num_cols" if over_columns else "num_rows"):
        return False
    index = expr.args[0]
    while index.op in ("item", "even_odd", "interleave") and index.args[0] is index.args[-1]:
        index = index.args[0]
    return index.op == ("col_index" if over_columns else "row_index")


def in_bounds(builder: Builder, columns: int | None) -> Expr:
    """The mask of values inside the accumulator: along columns of width ``columns``, along rows for None."""
    if columns is None:
        return builder.apply("lt", builder.apply("row_index"), builder.apply("num_rows"))
    index = builder.apply("col_index")
    if columns == HALF:
        index = builder.pair(index)[0]
    elif columns > FULL:
        index = builder.interleave(index, index, columns)
    return builder.apply("lt", index, builder.apply("num_cols"))
