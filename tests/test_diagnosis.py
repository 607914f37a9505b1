"""What experiments say about wrong epilogues."""

from __future__ import annotations

import pytest

from coda_agent.authors.contract import signature
from coda_agent.diagnosis import examine, of_counterexample
from coda_agent.operators import catalogue_names, load
from coda_agent.sandbox import parse

ROPE = """def epilogue(acc, r, cos, sin):
    z = acc * load_col(r)
    a, b = even_odd(z)
    c = load_tile(cos)
    s = load_tile(sin)
    store(z, z)
    store(y, interleave(a * c + b * s, b * c - a * s))
"""
ENTROPY = """def epilogue(acc, target, ignore_index):
    inside = where(col_index() < num_cols(), acc, -inf)
    index = load_col(target)
    store(logits, acc)
    store(t, pick(acc, where(index == load_scalar(ignore_index), -1, index)))
    store(lse, online_logsumexp(inside))
"""


@pytest.mark.parametrize(
    ("name", "source", "old", "new", "words"),
    [
        ("rmsnorm_rope", ROPE, "a * c + b", "a * c - b", "(sign): line 7"),
        ("rmsnorm_rope", ROPE, "c + b * s", "c", "wrong are `y` (50% of its elements); right: `z`"),
        ("rmsnorm_rope", ROPE, "= acc * load_col(r)", "= acc", "a factor `r` is missing"),
        ("rmsnorm_rope", ROPE, "store(y, ", "store(y, 2 * ", "`y` is 2 times what it must be"),
        ("rmsnorm_rope", ROPE, "store(y, ", "store(y, 0.5 + ", "`y` is +0.5 off everywhere"),
        ("rmsnorm_rope", ROPE, "store(y, ", "store(y, -", "`y` has the wrong sign everywhere"),
        ("rmsnorm_rope", ROPE, "interleave(a * c + b * s, b * c - a * s)", "interleave(b * c - a * s, a * c + b * s)", "swapped pair"),
        ("rmsnorm_rope", ROPE, "a, b =", "b, a =", "`y` would be right with `acc` with the columns of each pair exchanged"),
        ("rmsnorm_rope", ROPE, "s = load_tile(sin)", "s = -load_tile(sin)", "`sin` has the wrong sign"),
        ("rmsnorm_rope", ROPE, "c = load_tile(cos)\n    s = load_tile(sin)", "c = load_tile(sin)\n    s = load_tile(cos)", "`cos` and `sin` are exchanged"),
        ("rmsnorm_rope", ROPE, "acc * load_col(r)", "acc / load_col(r)", "reciprocal"),
        ("rmsnorm_rope", ROPE, "store(z, z)", "store(z, acc)", "a factor `r` is missing"),
        ("cross_entropy", ENTROPY, "(inside)", "(acc)", "a mask is missing"),
        ("bias", "def epilogue(acc, b):\n    store(y, acc + load_row(b))\n", "acc + load_row(b)", "acc", "a term `b` is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(name: str, source: str, old: str, new: str, words: str) -> None:
    operator = load(name)
    assert examine(operator, parse(source, signature(operator))).padded
    assert old in source
    found = examine(operator, parse(source.replace(old, new), signature(operator)))
    assert not found.padded
    assert any(words in guess for guess in found.guesses), found.guesses


@pytest.mark.parametrize("name", catalogue_names())
def test_right_epilogues_are_found_right(name: str) -> None:
    from coda_agent.authors.derive import derive

    operator = load(name)
    found = examine(operator, parse(derive(operator), signature(operator)))
    assert (found.exact, found.padded, found.guesses) == (True, True, ())


def test_numbers_add_what_fp64_cannot_see() -> None:
    operator = load("rmsnorm_rope")
    right = examine(operator, parse(ROPE, signature(operator)))
    assert "precision" in of_counterexample({"got": 1.0, "expected": 1.1}, right)[0]
    assert "overflows" in of_counterexample({"got": "nan", "expected": 1.1}, right)[0]
    assert of_counterexample({"got": None, "reason": "worker-hung"}, right) == ()
