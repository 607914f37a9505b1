"""What the language accepts, and what it says about the rest: rules, positions, hints, limits."""

from __future__ import annotations

import pytest
import torch
from sandbox_programs import HEAD, OPERANDS, SIGNATURE, VALID, check, inputs, program, refused

from coda_agent.sandbox import EXTENTS, Operand, Output, Signature, parse
from coda_agent.sandbox.evaluator import evaluate
from coda_agent.sandbox.parser import MAX_DEPTH, MAX_OPERATIONS, MAX_SOURCE


@pytest.mark.parametrize("source", VALID)
def test_valid_programs_are_accepted_as_text_and_bytes(source: str) -> None:
    epilogue = parse(source, SIGNATURE)
    assert epilogue.digest == parse(source.encode(), SIGNATURE).digest
    assert epilogue.digest == parse("\ufeff" + source.replace("\n", "\r\n"), SIGNATURE).digest
    assert epilogue.source == source


# --- Type rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        ("store(y, acc + load_tile(h))", "type", "one width"),
        ("store(y, acc * (acc > 0))", "type", "where"),
        ("store(y, where(acc, acc, 0.0))", "type", "bool condition"),
        ("store(y, where(acc > 0, acc > 1, acc))", "type", "where takes float"),
        ("store(y, where((acc > 0) & acc, acc, 0.0))", "type", "& takes bool"),
        ("store(y, where(~acc, acc, 0.0))", "type", "~ takes bool"),
        ("store(y, exp(acc > 0))", "type", "exp takes"),
        ("store(y, acc // 2)", "type", "// takes int"),
        ("store(y, acc % 2)", "type", "% takes int"),
        ("store(y, acc > 0)", "type", "takes numbers"),
        ("store(y, load_tile(h))", "type", "HalfTile"),
        ("store(y, interleave(acc, acc))", "type", "PairTile"),
        ("store(y, row_sum(acc))", "type", "store the values themselves"),
        ("store(y, row_sum(load_row(b)))", "type", "reduces a tile"),
        ("store(y, row_sum(acc > 0))", "type", "row_sum takes float"),
        ("store(y, pick(acc, load_col(r)))", "type", "ColVector[int]"),
        ("store(y, load_col(b))", "type", "use load_row"),
        ("store(y, load_row(r))", "type", "use load_col"),
        ("store(y, load_tile(cap))", "type", "use load_scalar"),
        ("store(y, load_scalar(c))", "type", "use load_tile"),
        ("store(y, interleave(load_tile(p), acc))", "type", "one width"),
        ("store(y, interleave(load_tile(p), load_tile(p)))", "type", "width N/2 or N"),
        ("store(y, interleave(load_col(r), load_scalar(cap)))", "type", "width N/2 or N"),
        ("store(y, interleave(col_index(), acc))", "type", "one element kind"),
        ("a, b = even_odd(load_tile(h))", "type", "width N or 2N"),
        ("a, b = even_odd(load_col(r))", "type", "width N or 2N"),
        ("store(y, acc / row_sum(acc))", "partial", "store it"),
        ("store(y, even_odd(acc))", "pair", "unpack"),
        ("store(y, acc + even_odd(acc))", "pair", "unpack"),
        ("x = even_odd(acc)", "pair", "even_odd gives two values"),
        ("a, b = acc", "pair", "only even_odd"),
        ("a, b, d = even_odd(acc)", "pair", "3 names"),
        ("store(y, exp(2.0))", "constant", "constants only"),
        ("store(y, acc * (1 / 0))", "constant", "not finite"),
        ("store(y, acc + col_index() // 0)", "constant", "zero"),
        ("store(y, acc + col_index() % 0)", "constant", "zero"),
        ("store(y, acc * (inf - inf))", "constant", "not finite"),
        ("store(y, acc * (2147483647 * 2))", "constant", "32 bits"),
        ("store(y, acc * 4294967296)", "constant", "32 bits"),
        ("store(y, acc * 1e400)", "constant", "inf"),
        ("store(y, acc * 1e39)", "constant", "inf"),
        ("store(y, acc * 1j)", "constant", "not a number"),
        ("store(y, acc * True)", "constant", "not a number"),
        ("store(y, acc * 'a')", "constant", "not a number"),
        ("store(y, acc * b'a')", "constant", "not a number"),
        ("store(y, acc * None)", "constant", "not a number"),
        ("store(y, acc * ...)", "constant", "not a number"),
        ("store(y, acc * nan)", "unknown-name", "not defined"),
        ("store(y, acc ** 0.5)", "power", "sqrt"),
        ("store(y, acc ** True)", "power", "exponents"),
        ("store(y, acc ** -2)", "power", "exponents"),
        ("store(y, acc ** 5)", "power", "exponents"),
        ("store(y, 2 ** acc)", "power", "exponents"),
        ("store(y, r * acc)", "unloaded", "load_col(r)"),
        ("store(y, exp)", "unknown-name", "call it"),
        ("store(y, acc, acc)", "arguments", "store(y, value)"),
        ("store('y', acc)", "unknown-output", "bare name"),
        ("store(w, acc)", "unknown-output", "not an output"),
        ("store(y, exp(acc, acc))", "arguments", "takes 1 argument"),
        ("store(y, exp(x=acc))", "arguments", "positional"),
        ("store(y, exp(*acc))", "arguments", "positional"),
        ("store(y, load_col(acc))", "unknown-operand", "not an operand"),
        ("store(y, load_col(load_col(r)))", "arguments", "bare name"),
        ("store(y, -1 < acc < 1)", "comparison", "(a < b) & (b < c)"),
        ("store(y, acc is acc)", "forbidden", "compare"),
        ("store(y, acc in acc)", "forbidden", "compare"),
        ("store(y, acc @ acc)", "forbidden", "arithmetic"),
        ("store(y, acc << 2)", "forbidden", "arithmetic"),
        ("store(y, not acc)", "forbidden", "~"),
        ("store(y, acc and acc)", "forbidden", "&"),
        ("acc = acc + 1", "name", "taken"),
        ("acc += 1", "name", "taken"),
        ("exp = acc", "name", "taken"),
        ("X = acc", "name", "lower-case"),
        ("_x = acc", "name", "lower-case"),
        ("x = z = acc", "statement", "one assignment a line"),
        ("x[0] = acc", "statement", "plain name"),
        ("*x, z = even_odd(acc)", "statement", "plain name"),
        ("exp(acc)", "statement", "thrown away"),
        ("x = store(y, acc)", "statement", "line of its own"),
        ("x += acc", "unknown-name", "not defined"),
        ("x: Tile = acc", "forbidden", "without an annotation"),
        ("return acc", "forbidden", "store(name, value)"),
    ],
)
def test_refusals(line: str, rule: str, words: str) -> None:
    found = [d for d in refused(program(line)) if d.rule == rule]
    assert found, refused(program(line))
    assert any(words in f"{d.message} {d.hint}" for d in found), found
    assert all(d.line == 2 for d in found)


@pytest.mark.parametrize(
    ("head", "rule", "words"),
    [
        ("def epilogue():", "parameters", "first parameter is acc"),
        ("def epilogue(r, acc):", "parameters", "first parameter is acc"),
        ("def epilogue(acc, q):", "unknown-operand", "not an operand"),
        ("def epilogue(acc, r, r):", "syntax", "duplicate"),
        ("def epilogue(acc, r=1):", "parameters", "no defaults"),
        ("def epilogue(acc, *r):", "parameters", "plain parameter"),
        ("def epilogue(acc, **r):", "parameters", "plain parameter"),
        ("def epilogue(acc, *, r):", "parameters", "plain parameter"),
        ("def epilogue(acc, /, r):", "parameters", "plain parameter"),
        ("def epilogue(acc: HalfTile):", "annotation", "is a Tile"),
        ("def epilogue(acc, t: ColVector):", "annotation", "ColVector[int]"),
        ("def epilogue(acc) -> Tile:", "annotation", "returns nothing"),
        ("def kernel(acc):", "function-name", "call it epilogue"),
        ("@decorated\ndef epilogue(acc):", "forbidden", "decorators"),
        ("async def epilogue(acc):", "forbidden", "only one function"),
        ("class epilogue:", "forbidden", "only one function"),
    ],
)
def test_refused_heads(head: str, rule: str, words: str) -> None:
    found = refused(f"{head}\n    store(y, acc)\n")
    if rule == "syntax":  # the parser of Python refuses some of these itself, with words of its own
        assert found[0].rule in ("syntax", "parameters")
        return
    assert any(d.rule == rule and words in f"{d.message} {d.hint}" for d in found), found


def test_annotations_of_the_right_type_are_allowed() -> None:
    source = "def epilogue(acc: Tile, t: ColVector[int], cap: Scalar):\n    store(y, acc)\n"
    assert parse(source, SIGNATURE).parameters == ("acc", "t", "cap")


def test_an_operand_must_be_a_parameter_to_be_loaded() -> None:
    (found,) = refused("def epilogue(acc):\n    store(y, acc * load_col(r))\n")
    assert found.rule == "unknown-operand"
    assert "def epilogue(acc, r):" in found.hint


# --- Diagnostics -----------------------------------------------------------------------------------------------------


def test_all_errors_are_reported_at_once_in_order_with_positions() -> None:
    found = refused(program("x = foo(acc)", "store(y, acc +  load_tile(h))", "z = acc.T", "q = [acc]", "store(w, x)"))
    assert [(d.line, d.column, d.rule) for d in found] == [
        (2, 9, "unknown-primitive"),
        (3, 14, "type"),
        (4, 9, "forbidden"),
        (5, 9, "forbidden"),
        (6, 11, "unknown-output"),
    ]


def test_an_error_is_not_repeated_by_its_uses() -> None:
    found = refused(program("x = foo(acc)", "z = x + 1", "a, b = even_odd(z)", "store(y, interleave(a, b))"))
    assert [d.rule for d in found] == ["unknown-primitive"]


def test_a_missing_store_is_reported_beside_other_errors() -> None:
    assert {d.rule for d in refused(program("x = foo(acc)"))} == {"unknown-primitive", "missing-store"}


def test_stored_twice_names_the_first_line() -> None:
    (found,) = refused(program("store(y, acc)", "store(y, acc)"))
    assert found.rule == "stored-twice"
    assert "line 2" in found.message


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("store(y, sigmod(acc))", "sigmoid"),
        ("store(y, logsumexp(acc))", "online_logsumexp"),
        ("store(y, relu2(acc))", "relu"),
        ("store(y, load_columns(r))", "load_col"),
        ("store(y, load_col(rr))", "r"),
        ("value = acc\n    store(y, valeu)", "value"),
    ],
)
def test_hints_name_what_was_meant(line: str, name: str) -> None:
    assert any(f"'{name}'" in d.hint for d in refused(program(line)))


def test_diagnostics_print_and_serialise() -> None:
    (found,) = refused(program("store(y, sigmod(acc))"))
    assert str(found).startswith(
        "2:14: unknown-primitive: 'sigmod' is not a primitive\n    hint: did you mean 'sigmoid'"
    )
    assert set(found.as_dict()) == {"line", "column", "rule", "message", "hint"}


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_source_length() -> None:
    valid = program("store(y, acc)")
    assert parse(valid + "#" * (MAX_SOURCE - len(valid)), SIGNATURE)
    for source in (valid + "#" * (MAX_SOURCE - len(valid) + 1), b"#" * 2**20, "x" * 2**20):
        assert [d.rule for d in refused(source)] == ["too-long"]


def test_operation_count() -> None:
    assert check("x = acc", *["x += 1.0"] * (MAX_OPERATIONS - 1), "store(y, x)")
    found = refused(program("x = acc", *["x += 1.0"] * (MAX_OPERATIONS + 1), "store(y, x)"))
    assert [d.rule for d in found] == ["too-many-operations"]
    assert found[0].line == MAX_OPERATIONS + 3


def test_nesting() -> None:
    def nested(levels: int) -> str:
        return program(f"store(y, {'exp(' * levels}acc{')' * levels})")

    assert parse(nested(MAX_DEPTH - 1), SIGNATURE)
    assert [d.rule for d in refused(nested(MAX_DEPTH + 1))] == ["too-deep"]


def test_the_deepest_graph_is_walked_without_recursion() -> None:
    lines = ["a, b = even_odd(x)", "x = interleave(a, b)"] * (MAX_OPERATIONS // 2)
    epilogue = check("x = acc", *lines, "store(y, x)")
    depth = 0

    def deeper() -> str:
        nonlocal depth
        depth += 1
        return epilogue.digest if depth == 600 else deeper()

    assert len(deeper()) == 64
    acc, operands = inputs()
    assert torch.equal(evaluate(epilogue, acc, operands)["y"], acc)


# --- Names and statements --------------------------------------------------------------------------------------------


def _value(*lines: str) -> torch.Tensor:
    acc, operands = inputs()
    return evaluate(check(*lines), acc, operands)["y"]


def test_rebinding_a_name_does_not_change_earlier_values() -> None:
    acc, _ = inputs()
    assert torch.equal(
        _value("x = acc", "z = x + 1", "x = x * 2", "x = x * x", "store(y, z - x)"), acc + 1 - (acc * 2) ** 2
    )


def test_a_local_may_be_called_like_an_operand_or_output() -> None:
    acc, operands = inputs()
    result = _value("r = load_col(r)", "y = acc * r", "b = load_row(b) + load_row(b)", "store(y, y + b * load_col(r))")
    torch.testing.assert_close(result, acc * operands["r"][:, None] + 2 * operands["b"] * operands["r"][:, None])


def test_swapping_the_items_of_a_pair() -> None:
    acc, _ = inputs()
    result = _value("a, b = even_odd(acc)", "b, a = even_odd(interleave(a, b))", "store(y, interleave(a, b))")
    assert torch.equal(result, acc.reshape(5, 6, 2).flip(2).reshape(5, 12))


@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
def test_augmented_assignment(operator: str) -> None:
    acc, operands = inputs()
    assert torch.equal(
        _value("x = acc", f"x {operator}= load_tile(c)", "store(y, x)"), eval(f"a {operator} c", {"a": acc, **operands})
    )


@pytest.mark.parametrize("exponent", [2, 3, 4])
def test_powers(exponent: int) -> None:
    torch.testing.assert_close(_value(f"store(y, (acc + 1) ** {exponent})"), (inputs()[0] + 1) ** exponent)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2", -2),
        ("--2", 2),
        ("+2.5", 2.5),
        ("1 / 4", 0.25),
        ("2 * 3 - 1", 5),
        ("-(1 + 2) * 1e-3", -3e-3),
        ("0x10", 16),
        ("1_000", 1000),
    ],
)
def test_constants(text: str, value: float) -> None:
    torch.testing.assert_close(_value(f"store(y, acc * ({text}))"), inputs()[0] * value)


def test_infinity() -> None:
    assert torch.equal(_value("store(y, minimum(maximum(acc, -inf), inf))"), inputs()[0])


# --- Identity --------------------------------------------------------------------------------------------------------

_BASE = ("x = acc * load_col(r)", "z = x + load_row(b)", "store(y, silu(z))", "store(s, row_sum(x))")
_TWO = {"y": Output(EXTENTS["Tile"]), "s": Output(EXTENTS["ColVector"], "sum")}


@pytest.mark.parametrize(
    "lines",
    [
        ("q = acc * load_col(r)", "w = q + load_row(b)", "store(y, silu(w))", "store(s, row_sum(q))"),
        ("x = acc * load_col(r)", "store(s, row_sum(x))", "dead = exp(x)", "z = x + load_row(b)", "store(y, silu(z))"),
        ("k = load_col(r)", "store(y, silu((acc * k) + load_row(b)))", "store(s, row_sum(acc * k))"),
        ("x = acc", "x *= load_col(r)", "store(s, row_sum(x))", "x += load_row(b)", "store(y, silu(x))"),
    ],
)
def test_digest_ignores_names_order_and_layout(lines: tuple[str, ...]) -> None:
    assert check(*lines, outputs=_TWO).digest == check(*_BASE, outputs=_TWO).digest
    spaced = HEAD.replace(", ", " ,  ") + '    "doc"\n    # note\n' + "".join(f"    {line} ;\n\n" for line in lines)
    assert parse(spaced, Signature(OPERANDS, _TWO)).digest == check(*_BASE, outputs=_TWO).digest


@pytest.mark.parametrize(
    "lines",
    [
        ("x = acc * load_col(r)", "z = x - load_row(b)", "store(y, silu(z))", "store(s, row_sum(x))"),
        ("x = acc * load_col(r)", "z = load_row(b) + x", "store(y, silu(z))", "store(s, row_sum(x))"),
        ("x = acc * load_col(r)", "z = x + load_row(b)", "store(y, gelu(z))", "store(s, row_sum(x))"),
        ("x = acc * load_col(r)", "z = x + load_row(b)", "store(y, silu(z))", "store(s, row_sum(z))"),
        ("x = acc * load_col(r)", "z = x + load_row(b) + 0.0", "store(y, silu(z))", "store(s, row_sum(x))"),
    ],
)
def test_digest_tells_programs_apart(lines: tuple[str, ...]) -> None:
    assert check(*lines, outputs=_TWO).digest != check(*_BASE, outputs=_TWO).digest


def test_digest_tells_pairs_constants_and_operands_apart() -> None:
    def digest(*lines: str) -> str:
        return check(*lines).digest

    assert digest("a, b = even_odd(acc)", "store(y, interleave(a, b))") != digest(
        "a, b = even_odd(acc)", "store(y, interleave(b, a))"
    )
    assert digest("store(y, acc * 2)") != digest("store(y, acc * 2.0)")
    assert digest("store(y, acc * 0.0)") != digest("store(y, acc * -0.0)")
    two = {**OPERANDS, "b2": Operand(EXTENTS["RowVector"])}
    one, other = (
        parse(f"def epilogue(acc, {o}):\n    store(y, acc + load_row({o}))\n", Signature(two, SIGNATURE.outputs))
        for o in ("b", "b2")
    )
    assert one.digest != other.digest


def test_only_operands_that_matter_are_loaded() -> None:
    assert check("x = load_col(r)", "q = load_tile(c)", "store(y, acc + q * load_row(b))").loads == ("c", "b")
