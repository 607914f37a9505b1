"""The primitives of the epilogue language: one table that every stage reads.

The parser takes names and type rules from it, the compiler the Triton lowering, the library's plain-PyTorch form
and the evaluator the torch meaning, the prompt the signatures and meanings, the cost model the cost. Adding a
primitive is one entry here, its function in ``kernel_library.runtime`` if no expression will do, and one test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .types import (
    COL_VECTOR,
    FULL,
    HALF,
    PAIR,
    ROW_VECTOR,
    SCALAR,
    Combine,
    Element,
    Extent,
    Type,
    broadcast,
)


class RuleError(Exception):
    """A type rule was broken; the message says what was expected, ``hint`` how to get there."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


Rule = Callable[[Sequence[Type]], "Type | tuple[Type, ...]"]

MAP, VECTOR, TILE_IO, REDUCTION, STATEFUL = "map", "vector", "tile", "reduction", "stateful"

FAMILIES = {
    MAP: "Maps: elementwise and pairwise",
    VECTOR: "Vector loads, indices and bounds",
    TILE_IO: "Tile loads and stores",
    REDUCTION: "Tile reductions, stored as partials",
    STATEFUL: "Stateful transforms, carried across sub-tiles",
}


@dataclass(frozen=True)
class Carry:
    """How a row reduction crosses the sub-tiles of a tile and then the tiles of a row.

    ``initial`` holds the value each state vector starts from; ``update`` turns states and one sub-tile into new
    states; ``finish`` turns the states into the partial that the tile stores.
    """

    initial: tuple[str, ...]
    update: str
    finish: str = "{s0}"


@dataclass(frozen=True)
class Primitive:
    """One entry of the table.

    ``triton`` and ``torch`` are expression templates over the printed arguments ``{0}``, ``{1}``, ...; templates may
    also use ``{rows}``, ``{cols}`` (indices of the tile at hand), ``{M}`` and ``{N}``. ``infix`` gives operators
    their symbol and precedence. ``cost`` is floating-point operations an element.
    """

    name: str
    family: str
    signature: str
    meaning: str
    rule: Rule
    triton: str
    torch: str
    cost: float = 1.0
    infix: tuple[str, int] | None = None
    carry: Carry | None = None
    arity: int = 1


def _elements(types: Sequence[Type], name: str, allowed: Sequence[Element]) -> None:
    for position, type_ in enumerate(types, 1):
        if type_.element not in allowed:
            raise RuleError(
                f"{name} takes {' or '.join(allowed)} values; argument {position} is {type_}",
                "compare to get a bool, and use where(condition, a, b) to turn a bool into numbers",
            )


def _extent(types: Sequence[Type], name: str) -> Extent:
    extent = broadcast(*(type_.extent for type_ in types))
    if extent is None:
        got = ", ".join(str(type_) for type_ in types)
        raise RuleError(
            f"{name} needs values of one width; got {got}",
            "even_odd halves a width and interleave doubles it",
        )
    return extent


def _floating(name: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        _elements(types, name, ("float", "int"))
        return Type(_extent(types, name))

    return rule


def _numeric(name: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        _elements(types, name, ("float", "int"))
        integers = all(type_.element == "int" for type_ in types)
        return Type(_extent(types, name), "int" if integers else "float")

    return rule


def _integer(name: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        _elements(types, name, ("int",))
        return Type(_extent(types, name), "int")

    return rule


def _comparison(name: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        _elements(types, name, ("float", "int"))
        return Type(_extent(types, name), "bool")

    return rule


def _logical(name: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        _elements(types, name, ("bool",))
        return Type(_extent(types, name), "bool")

    return rule


def _where(types: Sequence[Type]) -> Type:
    condition, *branches = types
    if condition.element != "bool":
        raise RuleError(
            f"where takes a bool condition first; got {condition}", "compare: where(col_index() < num_cols(), x, 0.0)"
        )
    _elements(branches, "where", ("float", "int"))
    integers = all(type_.element == "int" for type_ in branches)
    return Type(_extent(types, "where"), "int" if integers else "float")


def _even_odd(types: Sequence[Type]) -> tuple[Type, ...]:
    (type_,) = types
    if type_.extent.columns not in (FULL, PAIR):
        raise RuleError(
            f"even_odd takes a value of width N or 2N; got {type_} {type_.extent.shape}",
            "pairs can be split once: a HalfTile has no pairs left",
        )
    half = Type(Extent(type_.extent.rows, type_.extent.columns // 2), type_.element)
    return half, half


def _interleave(types: Sequence[Type]) -> Type:
    extent = _extent(types, "interleave")
    if extent.columns not in (HALF, FULL):
        raise RuleError(
            f"interleave takes values of width N/2 or N; got {types[0]} and {types[1]}",
            "at least one of them must vary along columns",
        )
    if types[0].element != types[1].element:
        raise RuleError(f"interleave takes two values of one element kind; got {types[0]} and {types[1]}")
    return Type(Extent(extent.rows, extent.columns * 2), types[0].element)


def _load(name: str, accepts: Callable[[Extent], bool], what: str) -> Rule:
    def rule(types: Sequence[Type]) -> Type:
        (type_,) = types
        if not accepts(type_.extent):
            raise RuleError(
                f"{name} loads {what}; the operand is a {type_} {type_.extent.shape}", f"use {loader_for(type_.extent)}"
            )
        return type_

    return rule


def loader_for(extent: Extent) -> str:
    """The name of the primitive that loads an operand of this extent."""
    if extent.is_tile:
        return "load_tile"
    return {ROW_VECTOR: "load_row", COL_VECTOR: "load_col"}.get(extent, "load_scalar")


def _constant(type_: Type) -> Rule:
    return lambda types: type_


def _reduce(name: str, over_columns: bool, combine: Combine) -> Rule:
    axis = "columns" if over_columns else "rows"

    def rule(types: Sequence[Type]) -> Type:
        type_ = types[0]
        _elements(types[:1], name, ("float",))
        if not type_.extent.is_tile:
            raise RuleError(
                f"{name} reduces a tile over its {axis}; got {type_}",
                "only values that vary along both axes can be reduced",
            )
        if over_columns:
            return Type(COL_VECTOR, "float", combine)
        return Type(Extent(False, type_.extent.columns), "float", combine)

    return rule


def _pick(types: Sequence[Type]) -> Type:
    if types[1].extent != COL_VECTOR or types[1].element != "int":
        raise RuleError(
            f"pick takes a ColVector[int] index, one column a row; got {types[1]}", "load it with load_col(target)"
        )
    return _reduce("pick", True, "sum")(types)  # type: ignore[return-value]


def _map(
    name: str,
    meaning: str,
    triton: str,
    torch: str,
    cost: float,
    arity: int = 1,
    rule: Callable[[str], Rule] = _floating,
) -> Primitive:
    arguments = ", ".join("xyz"[:arity])
    return Primitive(name, MAP, f"{name}({arguments})", meaning, rule(name), triton, torch, cost, arity=arity)


def _operator(
    name: str, symbol: str, precedence: int, meaning: str, rule: Callable[[str], Rule], cost: float = 1.0
) -> Primitive:
    template = f"{{0}} {symbol} {{1}}"
    return Primitive(
        name, MAP, f"x {symbol} y", meaning, rule(symbol), template, template, cost, (symbol, precedence), arity=2
    )


_TABLE = (
    # Precedence as in Python: comparisons < | < & < + - < * / // % < unary.
    _operator("or", "|", 2, "either holds", _logical),
    _operator("and", "&", 3, "both hold", _logical),
    _operator("lt", "<", 1, "less than", _comparison),
    _operator("le", "<=", 1, "less than or equal", _comparison),
    _operator("gt", ">", 1, "greater than", _comparison),
    _operator("ge", ">=", 1, "greater than or equal", _comparison),
    _operator("eq", "==", 1, "equal", _comparison),
    _operator("ne", "!=", 1, "not equal", _comparison),
    _operator("add", "+", 4, "sum", _numeric),
    _operator("sub", "-", 4, "difference", _numeric),
    _operator("mul", "*", 5, "product", _numeric),
    _operator("div", "/", 5, "quotient, in floating point", _floating, cost=4.0),
    _operator("floordiv", "//", 5, "quotient of non-negative integers", _integer, cost=4.0),
    _operator("mod", "%", 5, "remainder of non-negative integers", _integer, cost=4.0),
    Primitive("neg", MAP, "-x", "negation", _numeric("-"), "-{0}", "-{0}", 1.0, ("-", 6)),
    Primitive("not", MAP, "~x", "does not hold", _logical("~"), "~{0}", "~{0}", 1.0, ("~", 6)),
    Primitive(
        "where",
        MAP,
        "where(condition, x, y)",
        "x where the condition holds, else y",
        _where,
        "tl.where({0}, {1}, {2})",
        "torch.where({0}, {1}, {2})",
        arity=3,
    ),
    _map("minimum", "the smaller of two, NaN if either is", "minimum({0}, {1})", "ops.minimum({0}, {1})", 1, 2),
    _map("maximum", "the larger of two, NaN if either is", "maximum({0}, {1})", "ops.maximum({0}, {1})", 1, 2),
    _map("abs", "absolute value", "tl.abs({0})", "torch.abs({0})", 1, rule=_numeric),
    _map("square", "x * x", "square({0})", "torch.square({0})", 1),
    _map("sqrt", "square root", "tl.sqrt({0})", "torch.sqrt({0})", 4),
    _map("rsqrt", "1 / sqrt(x)", "tl.rsqrt({0})", "torch.rsqrt({0})", 4),
    _map("exp", "natural exponential", "tl.exp({0})", "torch.exp({0})", 4),
    _map("exp2", "2 to the power x", "tl.exp2({0})", "torch.exp2({0})", 4),
    _map("log", "natural logarithm", "tl.log({0})", "torch.log({0})", 4),
    _map("log2", "logarithm to base 2", "tl.log2({0})", "torch.log2({0})", 4),
    _map("sin", "sine, radians", "tl.sin({0})", "torch.sin({0})", 8),
    _map("cos", "cosine, radians", "tl.cos({0})", "torch.cos({0})", 8),
    _map("erf", "error function", "tl.erf({0})", "torch.erf({0})", 12),
    _map("tanh", "hyperbolic tangent, accurate near zero", "tanh({0})", "torch.tanh({0})", 12),
    _map("sigmoid", "1 / (1 + exp(-x))", "sigmoid({0})", "torch.sigmoid({0})", 8),
    _map("silu", "x * sigmoid(x)", "silu({0})", "F.silu({0})", 9),
    _map("softplus", "log(1 + exp(x)), accurate at both ends", "softplus({0})", "F.softplus({0})", 12),
    _map("relu", "max(x, 0)", "relu({0})", "torch.relu({0})", 1),
    _map("gelu", "x * Phi(x), by erf", "gelu({0})", "F.gelu({0})", 16),
    _map("gelu_tanh", "x * Phi(x), by the tanh approximation", "gelu_tanh({0})", 'F.gelu({0}, approximate="tanh")', 18),
    Primitive(
        "even_odd",
        MAP,
        "even, odd = even_odd(x)",
        "columns 0, 2, 4, ... and columns 1, 3, 5, ...: two values of half the width",
        _even_odd,
        "even_odd({0})",
        "ops.even_odd({0})",
        0,
    ),
    Primitive(
        "interleave",
        MAP,
        "interleave(even, odd)",
        "the inverse of even_odd: one value of twice the width",
        _interleave,
        "interleave({0}, {1})",
        "ops.interleave({0}, {1})",
        0,
        arity=2,
    ),
    Primitive(
        "load_row",
        VECTOR,
        "load_row(w)",
        "a RowVector operand, one value a column, broadcast down the rows; 0 beyond the last column",
        _load("load_row", lambda e: e == ROW_VECTOR, "a RowVector"),
        "load_row({0}_ptr, {cols}, {N})",
        "{0}[None, :]",
        0,
    ),
    Primitive(
        "load_col",
        VECTOR,
        "load_col(r)",
        "a ColVector operand, one value a row, broadcast along the columns; 0 beyond the last row",
        _load("load_col", lambda e: e == COL_VECTOR, "a ColVector"),
        "load_col({0}_ptr, {rows}, {M})",
        "{0}[:, None]",
        0,
    ),
    Primitive(
        "load_scalar",
        VECTOR,
        "load_scalar(cap)",
        "a Scalar operand",
        _load("load_scalar", lambda e: e == SCALAR, "a Scalar"),
        "{0}_value",
        "{0}",
        0,
    ),
    Primitive(
        "row_index",
        VECTOR,
        "row_index()",
        "index of each row, a ColVector[int]",
        _constant(Type(COL_VECTOR, "int")),
        "{rows}[:, None]",
        "ops.row_index({like})",
        0,
        arity=0,
    ),
    Primitive(
        "col_index",
        VECTOR,
        "col_index()",
        "index of each column of the accumulator, a RowVector[int]",
        _constant(Type(ROW_VECTOR, "int")),
        "{cols}[None, :]",
        "ops.col_index({like})",
        0,
        arity=0,
    ),
    Primitive(
        "num_rows",
        VECTOR,
        "num_rows()",
        "M, the number of rows",
        _constant(Type(SCALAR, "int")),
        "{M}",
        "ops.num_rows({like})",
        0,
        arity=0,
    ),
    Primitive(
        "num_cols",
        VECTOR,
        "num_cols()",
        "N, the number of columns of the accumulator",
        _constant(Type(SCALAR, "int")),
        "{N}",
        "ops.num_cols({like})",
        0,
        arity=0,
    ),
    Primitive(
        "load_tile",
        TILE_IO,
        "load_tile(c)",
        "a Tile, HalfTile or PairTile operand, widened to fp32; 0 outside its bounds",
        _load("load_tile", lambda e: e.is_tile, "a Tile, HalfTile or PairTile"),
        "load_tile({0}_ptr, row, {col}, {M}, {width}, {0}_stride, BLOCK_M, {block}, TMA_LOADS)",
        "{0}",
        0,
    ),
    Primitive(
        "row_sum",
        REDUCTION,
        "row_sum(x)",
        'sum of each row over the columns of the tile: Reduced[ColVector, "sum"]',
        _reduce("row_sum", True, "sum"),
        "",
        "{0}.sum(dim=1)",
        1,
        carry=Carry(("0.0",), "{s0} + tl.sum({0}, axis=1)"),
    ),
    Primitive(
        "col_sum",
        REDUCTION,
        "col_sum(x)",
        'sum of each column over the rows of the tile: Reduced[RowVector, "sum"]',
        _reduce("col_sum", False, "sum"),
        "tl.sum({0}, axis=0)",
        "{0}.sum(dim=0)",
        1,
    ),
    Primitive(
        "col_max",
        REDUCTION,
        "col_max(x)",
        'maximum of each column over the rows of the tile, NaN left out: Reduced[RowVector, "max"]',
        _reduce("col_max", False, "max"),
        "tl.max({0}, axis=0)",
        "{0}.amax(dim=0)",
        1,
    ),
    Primitive(
        "running_max",
        STATEFUL,
        "running_max(x)",
        'maximum of each row, NaN left out: Reduced[ColVector, "max"]',
        _reduce("running_max", True, "max"),
        "",
        "{0}.amax(dim=1)",
        1,
        carry=Carry(("-INFINITY",), "tl.maximum({s0}, tl.max({0}, axis=1))"),
    ),
    Primitive(
        "online_logsumexp",
        STATEFUL,
        "online_logsumexp(x)",
        'log(sum(exp(x))) of each row, without overflow: Reduced[ColVector, "logsumexp"]',
        _reduce("online_logsumexp", True, "logsumexp"),
        "",
        "torch.logsumexp({0}, dim=1)",
        6,
        carry=Carry(("-INFINITY", "0.0"), "update_logsumexp({s0}, {s1}, {0})", "finish_logsumexp({s0}, {s1})"),
    ),
    Primitive(
        "pick",
        STATEFUL,
        "pick(x, index)",
        'the element of each row at column index[row], 0 where the index is out of range: Reduced[ColVector, "sum"]',
        _pick,
        "",
        "ops.pick({0}, {1})",
        2,
        carry=Carry(
            ("0.0",),
            "{s0} + tl.sum(tl.where(({cols}[None, :] == {1}) & ({cols}[None, :] < {width}), {0}, 0.0), axis=1)",
        ),
        arity=2,
    ),
)

#: The table, by name. ``store`` is a statement and has no entry: see :data:`STORE`.
PRIMITIVES: dict[str, Primitive] = {primitive.name: primitive for primitive in _TABLE}

#: How ``store`` is documented beside the table.
STORE = (
    "store(y, value)",
    "the one statement that writes: stores a value, or a reduction, to the output of that name; each output exactly once",
)

#: Names a program may call; operators are written with their symbol instead.
CALLABLE = frozenset(name for name, primitive in PRIMITIVES.items() if primitive.infix is None)
