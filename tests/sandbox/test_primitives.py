"""Every primitive of the table means in fp64 what PyTorch says it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from sandbox_programs import M, N, check, inputs

from coda_agent.sandbox import EXTENTS, FAMILIES, PRIMITIVES, Output
from coda_agent.sandbox.evaluator import evaluate


@dataclass(frozen=True)
class Meaning:
    """An expression that uses one primitive, and what it is worth."""

    expression: str
    expected: Callable[[SimpleNamespace], torch.Tensor | float]
    extent: str = "Tile"
    reduction: str | None = None


def _both(v: SimpleNamespace) -> torch.Tensor:
    return torch.where((v.acc > 0) & (v.c > 0), 1.0, 0.0)


def _either(v: SimpleNamespace) -> torch.Tensor:
    return torch.where((v.acc > 0) | (v.c > 0), 1.0, 0.0)


def _picked(v: SimpleNamespace) -> torch.Tensor:
    return torch.stack([v.acc[i, j] if 0 <= j < N else v.acc.new_zeros(()) for i, j in enumerate(v.t.tolist())])


def _compare(symbol: str, function: Callable[..., torch.Tensor]) -> Meaning:
    return Meaning(f"where(acc {symbol} load_tile(c), 1.0, 0.0)", lambda v: function(v.acc, v.c).double())


def _map(name: str, function: Callable[[torch.Tensor], torch.Tensor], argument: str = "acc") -> Meaning:
    return Meaning(f"{name}({argument})", lambda v: function(v.acc.abs() if argument == "abs(acc)" else v.acc))


MEANINGS = {
    "or": Meaning("where((acc > 0) | (load_tile(c) > 0), 1.0, 0.0)", _either),
    "and": Meaning("where((acc > 0) & (load_tile(c) > 0), 1.0, 0.0)", _both),
    "lt": _compare("<", torch.lt),
    "le": _compare("<=", torch.le),
    "gt": _compare(">", torch.gt),
    "ge": _compare(">=", torch.ge),
    "eq": Meaning("where(col_index() == load_col(t), 1.0, 0.0)", lambda v: v.columns == v.t[:, None]),
    "ne": Meaning("where(col_index() != load_col(t), 1.0, 0.0)", lambda v: v.columns != v.t[:, None]),
    "add": Meaning("acc + load_row(b)", lambda v: v.acc + v.b),
    "sub": Meaning("acc - load_row(b)", lambda v: v.acc - v.b),
    "mul": Meaning("acc * load_col(r)", lambda v: v.acc * v.r[:, None]),
    "div": Meaning("acc / load_tile(c)", lambda v: v.acc / v.c),
    "floordiv": Meaning("acc + col_index() // 5", lambda v: v.acc + v.columns // 5),
    "mod": Meaning("acc + col_index() % 5", lambda v: v.acc + v.columns % 5),
    "neg": Meaning("-acc", lambda v: -v.acc),
    "not": Meaning("where(~(acc > 0), 1.0, 0.0)", lambda v: ~(v.acc > 0)),
    "where": Meaning("where(acc > 0, acc, load_col(r))", lambda v: torch.where(v.acc > 0, v.acc, v.r[:, None])),
    "minimum": Meaning("minimum(acc, load_row(b))", lambda v: torch.minimum(v.acc, v.b.expand(M, N))),
    "maximum": Meaning("maximum(0.25, acc)", lambda v: v.acc.clamp(min=0.25)),
    "abs": _map("abs", torch.abs),
    "square": _map("square", torch.square),
    "sqrt": _map("sqrt", torch.sqrt, "abs(acc)"),
    "rsqrt": _map("rsqrt", torch.rsqrt, "abs(acc)"),
    "exp": _map("exp", torch.exp),
    "exp2": _map("exp2", torch.exp2),
    "log": _map("log", torch.log, "abs(acc)"),
    "log2": _map("log2", torch.log2, "abs(acc)"),
    "sin": _map("sin", torch.sin),
    "cos": _map("cos", torch.cos),
    "erf": _map("erf", torch.erf),
    "tanh": _map("tanh", torch.tanh),
    "sigmoid": _map("sigmoid", torch.sigmoid),
    "silu": _map("silu", lambda x: x * torch.sigmoid(x)),
    "softplus": _map("softplus", F.softplus),
    "relu": _map("relu", torch.relu),
    "gelu": _map("gelu", lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2),
    "gelu_tanh": _map("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    "even_odd": Meaning("odd * 2 - even", lambda v: 2 * v.acc[:, 1::2] - v.acc[:, 0::2], "HalfTile"),
    "interleave": Meaning(
        "interleave(acc, load_row(b))",
        lambda v: torch.stack((v.acc, v.b.expand(M, N)), dim=2).reshape(M, 2 * N),
        "PairTile",
    ),
    "load_row": Meaning("load_row(b)", lambda v: v.b.expand(M, N)),
    "load_col": Meaning("load_col(r)", lambda v: v.r[:, None].expand(M, N)),
    "load_scalar": Meaning("load_scalar(cap)", lambda v: torch.full((M, N), 0.75)),
    "row_index": Meaning("acc * row_index()", lambda v: v.acc * torch.arange(M)[:, None]),
    "col_index": Meaning("acc * col_index()", lambda v: v.acc * torch.arange(N)),
    "num_rows": Meaning("acc / num_rows()", lambda v: v.acc / M),
    "num_cols": Meaning("acc / num_cols()", lambda v: v.acc / N),
    "load_tile": Meaning("load_tile(p)", lambda v: v.p, "PairTile"),
    "row_sum": Meaning("row_sum(acc)", lambda v: v.acc.sum(1), "ColVector", "sum"),
    "col_sum": Meaning("col_sum(acc)", lambda v: v.acc.sum(0), "RowVector", "sum"),
    "col_max": Meaning("col_max(acc)", lambda v: v.acc.amax(0), "RowVector", "max"),
    "running_max": Meaning("running_max(acc)", lambda v: v.acc.amax(1), "ColVector", "max"),
    "online_logsumexp": Meaning(
        "online_logsumexp(acc * 300)", lambda v: torch.logsumexp(v.acc * 300, 1), "ColVector", "logsumexp"
    ),
    "pick": Meaning("pick(acc, load_col(t))", _picked, "ColVector", "sum"),
}


def test_every_primitive_has_a_meaning_here() -> None:
    assert set(MEANINGS) == set(PRIMITIVES)
    assert {primitive.family for primitive in PRIMITIVES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", MEANINGS)
def test_meaning(name: str) -> None:
    meaning = MEANINGS[name]
    output = Output(EXTENTS[meaning.extent], meaning.reduction)  # type: ignore[arg-type]
    lines = ["even, odd = even_odd(acc)"] if name == "even_odd" else []
    epilogue = check(*lines, f"store(y, {meaning.expression})", outputs={"y": output})
    assert name in {value.op for value in epilogue.values()}
    acc, operands = inputs()
    result = evaluate(epilogue, acc, operands)["y"]
    values = SimpleNamespace(acc=acc, columns=torch.arange(N), **operands)
    expected = torch.as_tensor(meaning.expected(values)).to(torch.float64)
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("acc * exp(load_scalar(cap))", lambda v: v.acc * torch.exp(v.cap)),
        ("acc * maximum(load_scalar(cap), 0.5)", lambda v: v.acc * 0.75),
        ("where(load_scalar(cap) > 0.5, acc, 0.0)", lambda v: v.acc),
        ("where(~(load_scalar(cap) > 0.5), acc, 0.1)", lambda v: torch.full((M, N), 0.1, dtype=torch.float64)),
        ("acc * rsqrt(num_cols())", lambda v: v.acc * N**-0.5),
        ("acc + col_index() / 3", lambda v: v.acc + torch.arange(N, dtype=torch.float64) / 3),
        ("sin(row_index()) + acc", lambda v: torch.arange(M, dtype=torch.float64)[:, None].sin() + v.acc),
        (
            "acc * where(acc > 0, 0.1, 0.3)",
            lambda v: v.acc * torch.where(v.acc > 0, 0.1, 0.3).double().round(decimals=1),
        ),
        ("0.1", lambda v: torch.full((M, N), 0.1, dtype=torch.float64)),
        ("num_rows()", lambda v: torch.full((M, N), float(M), dtype=torch.float64)),
        ("acc * load_scalar(n)", lambda v: v.acc * 3),
    ],
)
@pytest.mark.parametrize("numbers", [False, True])
def test_scalars_and_integers_keep_the_precision_of_the_evaluation(expression, expected, numbers) -> None:
    acc, operands = inputs()
    values = SimpleNamespace(acc=acc, **operands)
    given = {**operands, "cap": 0.75, "n": 3} if numbers else operands
    result = evaluate(check(f"store(y, {expression})"), acc, given)["y"]
    torch.testing.assert_close(result, expected(values), rtol=1e-14, atol=1e-14)


def test_half_wide_reductions_and_picks() -> None:
    outputs = {"y": Output(EXTENTS["ColVector"], "sum"), "q": Output(EXTENTS["ColVector"], "sum")}
    epilogue = check(
        "a, b = even_odd(acc)", "store(y, row_sum(a * b))", "store(q, pick(a, load_col(t)))", outputs=outputs
    )
    acc, operands = inputs()
    results = evaluate(epilogue, acc, operands)
    torch.testing.assert_close(results["y"], (acc[:, 0::2] * acc[:, 1::2]).sum(1))
    assert results["q"].tolist() == [acc[0, 0].item(), 0, 0, 0, acc[4, 6].item()]
