"""Whatever text arrives, the only exception is SandboxError; whatever expression is accepted, it prints as it means."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox_programs import OPERANDS, SIGNATURE, VALID, errors, inputs, program

from coda_agent.compiler import Description, generate
from coda_agent.compiler.printer import Printer
from coda_agent.sandbox import PRIMITIVES, Epilogue, parse
from coda_agent.sandbox.evaluator import evaluate
from coda_agent.sandbox.ir import Store
from kernel_library.runtime import ops


def quiet(examples: int) -> settings:
    """The same examples every time, however slow the machine."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


# --- Any text --------------------------------------------------------------------------------------------------------


def _survives(source: str | bytes) -> None:
    if found := errors(source):
        assert found[0].rule
        return
    epilogue = parse(source, SIGNATURE)
    assert len(epilogue.digest) == 64
    compile(generate(epilogue, Description("target")), "kernel.py", "exec")


@quiet(150)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=300)))
def test_random_text(source: str | bytes) -> None:
    _survives(source)


@quiet(150)
@given(st.one_of(st.text(max_size=80), st.from_regex(r"\A[a-z(),.=+*\-/<>~&| 0-9\n\t'\"\[\]{}:@!%^]{0,80}\Z")))
def test_random_expression(text: str) -> None:
    _survives(program(f"store(y, {text})"))


_TOKENS = (
    *PRIMITIVES,
    *OPERANDS,
    "acc",
    "store",
    "inf",
    "x",
    "(",
    ")",
    ",",
    "=",
    "+",
    "-",
    "**",
    "//",
    "&",
    "~",
    "<",
    "==",
)
_TOKENS += (
    "0",
    "1.5",
    "1e400",
    "\n    ",
    "\n",
    "    ",
    ":",
    "lambda",
    "[",
    "]",
    ".",
    "if",
    "else",
    "def",
    "'",
    "#",
    "\\",
    "0.0",
)


@quiet(300)
@given(st.sampled_from(VALID), st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_programs(source: str, seed: int, edits: int) -> None:
    chance = random.Random(seed)
    for _ in range(edits):
        start = chance.randrange(len(source) + 1)
        end = min(len(source), start + chance.choice((0, 0, 1, 2, 5, 20)))
        inserted = chance.choice(("", chance.choice(_TOKENS), chr(chance.randrange(1, 0x250))))
        source = source[:start] + inserted + source[end:]
    _survives(source)


@quiet(200)
@given(st.lists(st.sampled_from(_TOKENS), max_size=25))
def test_random_tokens(tokens: list[str]) -> None:
    _survives(program(f"store(y, {' '.join(tokens)})"))


# --- Any expression --------------------------------------------------------------------------------------------------
#
# Expressions are written with every parenthesis, so that their meaning does not hang on precedence; the printers leave
# out what they hold redundant.

_LEAVES = ("acc", "load_tile(c)", "load_row(b)", "load_col(r)", "load_scalar(cap)")
_NUMBERS = ("0.5", "2", "-1.5", "3.0", "-2", "1e-3", "inf", "-inf")
_FUNCTIONS = tuple(
    p.name
    for p in PRIMITIVES.values()
    if p.family == "map" and p.infix is None and p.arity == 1 and p.name != "even_odd"
)


@st.composite
def _values(draw: st.DrawFn, depth: int = 4) -> str:
    """A value that is no constant."""
    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(_LEAVES))

    def value() -> str:
        return draw(_values(depth - 1))

    def any_value() -> str:
        return draw(st.sampled_from(_NUMBERS)) if draw(st.integers(0, 3)) == 0 else value()

    kind = draw(
        st.sampled_from(("binary", "binary", "number", "power", "negation", "function", "least", "where", "index"))
    )
    if kind == "binary":
        return f"({value()} {draw(st.sampled_from('+-*/'))} {value()})"
    if kind == "number":
        number, symbol = draw(st.sampled_from(_NUMBERS)), draw(st.sampled_from("+-*/"))
        return f"({value()} {symbol} {number})" if draw(st.booleans()) else f"({number} {symbol} {value()})"
    if kind == "power":
        return f"({value()} ** {draw(st.sampled_from('234'))})"
    if kind == "negation":
        return f"(-{value()})"
    if kind == "function":
        return f"{draw(st.sampled_from(_FUNCTIONS))}({value()})"
    if kind == "least":
        return f"{draw(st.sampled_from(('minimum', 'maximum')))}({value()}, {any_value()})"
    if kind == "where":
        return f"where({draw(_conditions(depth - 1))}, {any_value()}, {any_value()})"
    index = f"(col_index() {draw(st.sampled_from('+*-'))} {draw(st.sampled_from(('1', 'row_index()', 'load_col(t)')))})"
    return f"({value()} * ({index} {draw(st.sampled_from(('+', '*', '//', '%', '-')))} 2))"


@st.composite
def _conditions(draw: st.DrawFn, depth: int) -> str:
    kind = draw(st.sampled_from(("compare", "compare", "column", "and", "not")))
    if kind == "and" and depth > 0:
        return f"({draw(_conditions(depth - 1))} {draw(st.sampled_from('&|'))} {draw(_conditions(depth - 1))})"
    if kind == "not" and depth > 0:
        return f"(~{draw(_conditions(depth - 1))})"
    if kind == "column":
        bound = draw(st.sampled_from(("num_cols()", "load_col(t)", "3")))
        return f"(col_index() {draw(st.sampled_from(('<', '==')))} {bound})"
    symbol = draw(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")))
    return f"({draw(_values(min(depth, 1)))} {symbol} {draw(st.sampled_from(_NUMBERS))})"


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """Integers widen to PyTorch's default dtype in the printed form: make that fp64."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _printed(epilogue: Epilogue) -> str:
    printer = Printer(epilogue, "torch")
    lines, result = [], ""
    for item in printer.statements():
        if isinstance(item, Store):
            result = printer.expression(item.value)
        else:
            lines.append(item)
    return "\n".join(["M, N = acc.shape", *lines, f"result = {result}"])


def _run(text: str, acc: torch.Tensor, operands: dict[str, torch.Tensor]) -> torch.Tensor:
    scope = {"acc": acc, **operands, "torch": torch, "F": F, "ops": ops}
    exec(text, scope)
    return scope["result"]


def _agree(*lines: str) -> None:
    epilogue = parse(program(*lines), SIGNATURE)
    acc, operands = inputs()
    expected = evaluate(epilogue, acc, operands)["y"]
    text = _printed(epilogue)
    with _double():
        result = _run(text, acc, operands).expand(expected.shape)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12, equal_nan=True, msg=lambda m: f"{m}\n{text}")
    compile(generate(epilogue, Description("target")), "kernel.py", "exec")


@quiet(250)
@given(_values())
def test_expressions_print_as_they_mean(expression: str) -> None:
    _agree(f"store(y, {expression} + acc)")


@quiet(100)
@given(st.lists(st.tuples(st.sampled_from("xwxz"), _values()), min_size=2, max_size=5))
def test_programs_print_as_they_mean(assignments: list[tuple[str, str]]) -> None:
    lines, known = [], []
    for name, expression in assignments:
        lines.append(f"{name} = {expression} + {known[-1] if known else 'acc'}")
        lines.append(f"{name} *= {known[0] if known else name}")
        known.append(name)
    _agree(*lines, f"store(y, {' - '.join(known)})")


@quiet(60)
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=6), _values())
def test_pairs_print_as_they_mean(order: list[str], expression: str) -> None:
    lines = [f"x = {expression} + acc"]
    for item in order:
        lines += ["a, b = even_odd(x)", f"x = interleave({item}, a * b)"]
    _agree(*lines, "store(y, x)")


@pytest.mark.parametrize(
    "expression",
    [
        "acc - (acc - (acc - 1))",
        "acc / (acc / (acc * 2))",
        "acc * (acc / 3)",
        "-(acc + 1) * -(acc - 2)",
        "-(-acc) - -2.0",
        "(acc + 1) ** 3 - (-acc) ** 2",
        "where((acc < 0) | (acc > 1) & (load_tile(c) > 0), acc, 0.0)",
        "where(((acc < 0) | (acc > 1)) & (load_tile(c) > 0), acc, 0.0)",
        "where(~((acc < 0) | (acc > 1)), acc, 0.0)",
        "acc + (2 * col_index()) % 5 // 2 - 2 * (col_index() % 5 // 2)",
        "acc * ((col_index() + 1) * 2)",
        "acc * -0.5 - -0.5 * acc",
    ],
)
def test_precedence(expression: str) -> None:
    _agree(f"store(y, {expression})")
