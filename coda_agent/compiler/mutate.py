"""Mutants of a kernel: small wrong versions that a verifier worth its name must reject.

Two kinds of change. Changes of the epilogue are made in the IR, so that they type-check and compile: a flipped sign,
swapped operands, a dropped term or mask, another constant or function. Changes of the mainloop and of addressing have
no spelling in the language and are made in the generated text: bf16 accumulation, a dropped tail of K, a neighbour's
lane, a vector broadcast along the wrong axis. Changes that leave every result as it was are recognised by evaluating
both programs on padded data and left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..sandbox.ir import Assign, Epilogue, Store, Value
from ..sandbox.primitives import PRIMITIVES, RuleError
from ..sandbox.types import SCALAR, Type, broadcast
from .generate import Description, generate


@dataclass(frozen=True)
class Mutant:
    """One wrong kernel: the kind of mistake, what was changed, and the text of its ``kernel.py``."""

    kind: str
    change: str
    kernel: str


_SWAPPED = {"sub", "div", "interleave", "lt", "le", "gt", "ge"}
_SIBLINGS = {
    "silu": "sigmoid",
    "sigmoid": "tanh",
    "tanh": "sigmoid",
    "gelu": "gelu_tanh",
    "gelu_tanh": "gelu",
    "relu": "abs",
    "square": "abs",
    "exp": "exp2",
    "exp2": "exp",
    "log": "log2",
    "log2": "log",
    "rsqrt": "sqrt",
    "sqrt": "rsqrt",
    "erf": "tanh",
    "sin": "cos",
    "cos": "sin",
    "maximum": "minimum",
    "minimum": "maximum",
    "softplus": "relu",
    "col_sum": "col_max",
}  # fmt: skip


def mutants(epilogue: Epilogue, description: Description) -> Iterator[Mutant]:
    """Every mutant of a kernel that computes something else, duplicates left out."""
    original = generate(epilogue, description)
    seen = {epilogue.digest}
    for kind, change, mutated in epilogue_mutants(epilogue):
        if mutated.digest in seen or equivalent(epilogue, mutated):
            continue
        seen.add(mutated.digest)
        yield Mutant(kind, change, generate(mutated, description))
    yield from _text_mutants(original)


# --- In the IR -------------------------------------------------------------------------------------------------------


def epilogue_mutants(epilogue: Epilogue) -> Iterator[tuple[str, str, Epilogue]]:
    for value in list(epilogue.values()):
        where = f"line {value.location.line}"
        for kind, change, build in _changes(value, _sibling(epilogue, value)):
            mutated = _rewrite(epilogue, value, build)
            if mutated is not None:
                yield kind, f"{where}: {change}", mutated


def _sibling(epilogue: Epilogue, item: Value) -> Value | None:
    """The other item of a pair that one statement unpacks."""
    for statement in epilogue.statements:
        if isinstance(statement, Assign) and len(statement.values) == 2 and any(v is item for v in statement.values):
            return next((v for v in statement.values if v is not item), None)
    return None


def _changes(value: Value, sibling: Value | None) -> Iterator[tuple[str, str, Callable[[tuple[Value, ...]], Value]]]:
    """What can go wrong at one value, as functions of its (already rebuilt) arguments."""

    def other(op: str) -> Callable[[tuple[Value, ...]], Value]:
        return lambda args: _apply(op, args)

    op = value.op
    if op in ("add", "sub"):
        yield (
            "sign",
            f"{'+' if op == 'add' else '-'} became {'-' if op == 'add' else '+'}",
            other("sub" if op == "add" else "add"),
        )
    if op in ("add", "sub", "mul", "div", "and", "or"):
        what = "factor" if op in ("mul", "div") else "condition" if op in ("and", "or") else "term"
        yield f"dropped {what}", f"right {what} dropped", lambda args: args[0]
        if op != "div":
            yield f"dropped {what}", f"left {what} dropped", lambda args: args[1]
    if op == "neg":
        yield "sign", "negation dropped", lambda args: args[0]
    if op in _SWAPPED:
        yield "operand swap", f"arguments of {op} swapped", lambda args: _apply(op, args[::-1])
    if op == "item":
        yield (
            "neighbour lane",
            "the other column of the pair",
            lambda args: sibling or replace(value, args=args, payload=1 - int(value.payload or 0)),
        )
    if op == "where":
        kind = "missing mask" if _depends_on_index(value.args[0]) else "dropped condition"
        yield kind, "where became its first branch", lambda args: args[1]
        yield "operand swap", "branches of where swapped", lambda args: _apply("where", (args[0], args[2], args[1]))
    if op == "lt" and _depends_on_index(value):
        yield "missing mask", "< became <=", other("le")
    if op == "pick":
        one = Value("literal", (), Type(SCALAR, "int"), value.location, 1)
        yield (
            "neighbour lane",
            "the column after the one picked",
            lambda args: _apply("pick", (args[0], _apply("add", (args[1], one)))),
        )
    if op == "online_logsumexp":
        yield (
            "function",
            "online_logsumexp without its log",
            lambda args: _apply("online_logsumexp", (_apply("square", args),)),
        )
    if op in _SIBLINGS:
        yield "function", f"{op} became {_SIBLINGS[op]}", other(_SIBLINGS[op])
    if op == "literal" and isinstance(value.payload, (int, float)):
        if math.isinf(value.payload):
            changed: float | int = 0.0
        elif value.type.element == "int":
            changed = int(value.payload) + 1
        else:
            changed = value.payload * 1.01 if value.payload else 1.0
        yield "wrong constant", f"{value.payload} became {changed}", lambda args: replace(value, payload=changed)


def _depends_on_index(value: Value) -> bool:
    return value.op in ("row_index", "col_index") or any(_depends_on_index(argument) for argument in value.args)


def _apply(op: str, args: tuple[Value, ...]) -> Value:
    result = PRIMITIVES[op].rule([argument.type for argument in args])
    return Value(op, args, result[0] if isinstance(result, tuple) else result, args[0].location)


def _rewrite(epilogue: Epilogue, target: Value, build: Callable[[tuple[Value, ...]], Value]) -> Epilogue | None:
    """``epilogue`` with ``target`` replaced; None where the result no longer type-checks."""
    rebuilt: dict[int, Value] = {}

    def visit(value: Value) -> Value:
        known = rebuilt.get(id(value))
        if known is not None:
            return known
        args = tuple(visit(argument) for argument in value.args)
        if value is target:
            new = build(args)
        elif all(a is b for a, b in zip(args, value.args, strict=True)):
            new = value
        elif value.op == "item":
            half = PRIMITIVES[args[0].op].rule([a.type for a in args[0].args])
            assert isinstance(half, tuple)
            new = replace(value, args=args, type=half[int(value.payload or 0)])
        else:
            new = replace(_apply(value.op, args), location=value.location, payload=value.payload)
        rebuilt[id(value)] = new
        return new

    statements: list[Assign | Store] = []
    try:
        for statement in epilogue.statements:
            if isinstance(statement, Assign):
                # An unpacked pair keeps both of its names: what changes is which of them is used.
                kept = target if target.op == "item" and len(statement.values) == 2 else None
                statements.append(
                    Assign(statement.names, tuple(v if v is kept else visit(v) for v in statement.values))
                )
            else:
                value = visit(statement.value)
                output = epilogue.signature.outputs[statement.output]
                if value.type.partial != output.reduction or value.type.element == "bool":
                    return None
                if broadcast(value.type.extent, output.extent) != output.extent:
                    return None
                if output.reduction and value.type.extent != output.extent:
                    return None
                statements.append(Store(statement.output, value))
    except RuleError:
        return None
    mutated = replace(epilogue, statements=tuple(statements))
    # A pair whose width changed, or a value that lost its only use of an operand, is still a program; a pair
    # unpacked from something that is no pair is not.
    if any(value.op == "item" and value.args[0].op != "even_odd" for value in mutated.values()):
        return None
    return mutated


def equivalent(first: Epilogue, second: Epilogue, *, trials: int = 3) -> bool:
    """Whether two programs agree, in fp64, on random tiles that reach beyond the bounds of their problem.

    The data is zero-padded as a kernel's loads are, so that a missing mask shows.
    """
    import torch

    from ..sandbox.evaluator import evaluate

    for trial in range(trials):
        generator = torch.Generator().manual_seed(trial)
        m, n, rows, columns = 5, 6, 8, 8
        acc = torch.zeros(rows, columns, dtype=torch.float64)
        acc[:m, :n] = torch.randn(m, n, dtype=torch.float64, generator=generator) * (1, 4, 0.01)[trial]
        operands = _padded_operands(first, m, n, rows, columns, generator)
        a = evaluate(first, acc, operands, size=(m, n))
        b = evaluate(second, acc, operands, size=(m, n))
        for name, output in first.signature.outputs.items():
            x, y = a[name], b[name]
            if output.extent.rows:
                x, y = x[:m], y[:m]
            if output.extent.columns:
                width = n * output.extent.columns // 2
                x, y = x[..., :width], y[..., :width]
            if not torch.allclose(x, y, rtol=1e-11, atol=1e-300, equal_nan=True):
                return False
    return True


def _padded_operands(epilogue: Epilogue, m: int, n: int, rows: int, columns: int, generator: Any) -> Mapping[str, Any]:
    import torch

    operands: dict[str, Any] = {}
    for name, operand in epilogue.signature.operands.items():
        extent = operand.extent
        if extent == SCALAR:
            operands[name] = 3 if operand.element == "int" else 0.75
            continue
        full = ([rows] if extent.rows else []) + ([columns * extent.columns // 2] if extent.columns else [])
        inside = ([m] if extent.rows else []) + ([n * extent.columns // 2] if extent.columns else [])
        if operand.element == "int":
            padded = torch.zeros(full, dtype=torch.int64)
            values = torch.randint(n, inside, generator=generator)
        else:
            padded = torch.zeros(full, dtype=torch.float64)
            values = torch.randn(inside, dtype=torch.float64, generator=generator)
        padded[tuple(slice(0, size) for size in inside)] = values
        operands[name] = padded
    return operands


# --- In the text -----------------------------------------------------------------------------------------------------

_ROUNDED = "acc = acc.to(tl.bfloat16).to(tl.float32)"


def _text_mutants(text: str) -> Iterator[Mutant]:
    for kind, change, pattern, replacement in _EDITS:
        edited, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count:
            yield Mutant(kind, change, edited)
    for pattern, kind, change, edit in _EACH:
        for match in re.finditer(pattern, text):
            replaced = match.expand(edit)
            edited = text[: match.start()] + replaced + text[match.end() :]
            for name in ("load_row", "load_col"):
                if f"{name}(" in replaced and not re.search(rf"\b{name}\b", text):
                    edited = edited.replace("\n\n\n", f"\nfrom ..runtime.tile import {name}\n\n\n", 1)
            yield Mutant(kind, f"{change}: {match.group(0)}", edited)


# (kind, change, pattern, replacement), each applied wherever it matches.
_EDITS: tuple[tuple[str, str, str, str], ...] = (
    ("bf16 accumulation", "the accumulator is rounded to bf16 after each block of K", r"^( +)(acc = tl\.dot\(.*)$", rf"\1\2\n\1{_ROUNDED}"),
    ("rounding twice", "the accumulator is rounded to bf16 before the epilogue", r"^( +)(acc = tl\.dot\(.*)$", rf"\1\2\n        {_ROUNDED}"),
    ("dropped last K", "the last, partial block of K is dropped", r"range\(tl\.cdiv\(K, BLOCK_K\)\)", "range(K // BLOCK_K)"),
    ("dropped last K", "the last element of K is dropped", r"(load_operand\(\w, \w+, k \* BLOCK_K, \w), K,", r"\1, K - 1,"),
    ("stale tile", "the accumulator is not cleared between tiles",
     r"^( +)(for tile in .*\n(?:.*\n)*?)( +acc = tl\.zeros\(.*\n)", r"\1acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)\n\1\2"),
    ("stale tile", "a program takes only its first tile", r"tl\.range\(tl\.program_id\(0\), tiles_m \* tiles_n,", "tl.range(tl.program_id(0), tl.num_programs(0),"),
    ("neighbour lane", "columns of W one too far", r"load_operand\(W, col,", "load_operand(W, col + 1,"),
)  # fmt: skip

# (pattern, kind, change, replacement), one mutant a match.
_EACH: tuple[tuple[str, str, str, str], ...] = (
    (r"load_col\((\w+), rows, M\)", "wrong broadcast axis", "a column vector along the columns", r"load_row(\1, col + tl.arange(0, BLOCK_N), M)"),
    (r"load_row\((\w+), cols, N\)", "wrong broadcast axis", "a row vector down the rows", r"load_col(\1, row + tl.arange(0, BLOCK_M), N)"),
    (r"load_col\((\w+), rows, M\)", "neighbour lane", "a column vector one row too far", r"load_col(\1, rows + 1, M)"),
    (r"load_row\((\w+), cols, N\)", "neighbour lane", "a row vector one column too far", r"load_row(\1, cols + 1, N)"),
    (r"load_tile\((\w+), row, ([^,]+),", "neighbour lane", "a tile one column too far", r"load_tile(\1, row, \2 + 1,"),
    (r"(store_tile\((?:load_tile\([^()]*\)|(?!store_|load_tile)[\s\S])*?, row, [^,]+), M,", "unmasked edge", "a store one row too far", r"\1, M + 1,"),
    (r"(store_tile\((?:load_tile\([^()]*\)|(?!store_|load_tile)[\s\S])*?, row, [^,]+), M,", "unwritten edge", "a store one row short", r"\1, M - 1,"),
    (r"(store_tile\((?:load_tile\([^()]*\)|(?!store_|load_tile)[\s\S])*?, row, [^,]+, M, [^,]+),", "unmasked edge", "a store one column too far", r"\1 + 1,"),
    (r"(store_partial\((?:(?!store_)[\s\S])*?), row // BLOCK_M, cols, N\)", "stale tile", "every tile's partial in one slot", r"\1, row // BLOCK_M * 0, cols, N)"),
    (r"(store_partial\((?:(?!store_)[\s\S])*?), tile_n, rows, M\)", "stale tile", "every tile's partial in one slot", r"\1, tile_n * 0, rows, M)"),
)  # fmt: skip
