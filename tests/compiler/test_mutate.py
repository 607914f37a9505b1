"""Mutants differ from their kernel, are valid Python, and cover the kinds of mistake that are made."""

from __future__ import annotations

import ast

import pytest

from coda_agent.authors.contract import signature
from coda_agent.authors.derive import derive
from coda_agent.compiler import Description, generate
from coda_agent.compiler.mutate import Mutant, equivalent, mutants
from coda_agent.operators import load
from coda_agent.operators.listing import listing
from coda_agent.sandbox import parse
from coda_agent.sandbox.ir import Epilogue


def program(name: str) -> tuple[Epilogue, Description]:
    op = load(name)
    return parse(derive(op), signature(op)), Description(name, op.doc)


def of(name: str) -> list[Mutant]:
    return list(mutants(*program(name)))


@pytest.mark.parametrize("name", [entry.name for entry in listing()])
def test_mutants_are_distinct_programs(name: str) -> None:
    original = generate(*program(name))
    found = of(name)
    texts = [mutant.kernel for mutant in found]
    assert len(set(texts)) == len(texts)
    assert original not in texts
    for mutant in found:
        tree = ast.parse(mutant.kernel)
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        imported = {
            a.asname or a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names
        }
        assert called <= defined | imported | {"kernel", "range", "tuple", "min", "max"}
    kinds = {mutant.kind for mutant in found}
    assert kinds >= {"bf16 accumulation", "rounding twice", "dropped last K", "stale tile", "neighbour lane"}
    assert kinds >= {"unmasked edge", "unwritten edge"}


def test_kinds_that_depend_on_the_operator() -> None:
    assert {"sign", "dropped term", "wrong broadcast axis"} <= {m.kind for m in of("bias")}
    assert {"operand swap", "missing mask", "wrong constant"} <= {m.kind for m in of("cross_entropy")}
    dropped = [m.change for m in of("residual_rmsnorm_backward") if m.kind == "stale tile"]
    assert any("one slot" in change for change in dropped)


def test_the_other_column_of_a_pair_is_used() -> None:
    lanes = [m for m in of("swiglu") if m.change.endswith("the other column of the pair")]
    bodies = {line.strip() for m in lanes for line in m.kernel.splitlines() if "silu(" in line}
    assert any("silu(up) * up" in body for body in bodies)
    assert any("silu(gate) * gate" in body for body in bodies)


def test_equal_programs_are_recognised() -> None:
    op = load("bias")
    first = parse("def epilogue(acc, b):\n    store(y, acc + load_row(b))\n", signature(op))
    second = parse("def epilogue(acc, b):\n    store(y, load_row(b) + acc)\n", signature(op))
    third = parse("def epilogue(acc, b):\n    store(y, acc - load_row(b))\n", signature(op))
    assert equivalent(first, second)
    assert not equivalent(first, third)
