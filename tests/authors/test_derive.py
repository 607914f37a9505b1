"""The built-in author: what it derives is the reference, and what it refuses it names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coda_agent.authors import Candidate
from coda_agent.authors.contract import signature
from coda_agent.authors.derive import DeriveAuthor, Unsupported, derive
from coda_agent.authors.file import LIMIT, EpilogueFileError, FileAuthor, read_epilogue
from coda_agent.operators import Operator, OperatorError, catalogue_names, load
from coda_agent.operators.checking import sample_operands
from coda_agent.sandbox.evaluator import evaluate
from coda_agent.sandbox.parser import parse

HERE = Path(__file__).parent


def declared(file: str) -> list[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]


def unseen(name: str) -> Operator:
    return load(f"{HERE / 'unseen.py'}:{name}")


def assert_same(operator: Operator, source: str, m: int, n: int, seed: int = 0) -> None:
    """The derived program and the reference agree in fp64."""
    epilogue = parse(source, signature(operator))
    generator = torch.Generator().manual_seed(seed)
    acc = torch.randn(m, n, generator=generator, dtype=torch.float64)
    operands = sample_operands(operator, m, n, dtype=torch.float64, generator=generator)
    if "ignore_index" in operands:
        operands["ignore_index"] = operands["target"][0].clone()
    actual = evaluate(epilogue, acc, operands)
    for output, expected in zip(operator.outputs, operator(acc.clone(), *operands.values()), strict=True):
        torch.testing.assert_close(actual[output.name], expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", catalogue_names())
def test_catalogue(name: str) -> None:
    operator = load(name)
    source = derive(operator)
    for m, n in ((1, 2), (7, 16), (37, 58), (64, 30)):
        assert_same(operator, source, m, n)


@pytest.mark.parametrize("name", declared("unseen.py"))
def test_unseen(name: str) -> None:
    operator = unseen(name)
    source = derive(operator)
    for m, n in ((2, 2), (7, 16), (37, 58), (65, 30)):
        assert_same(operator, source, m, n)


@pytest.mark.parametrize("name", [*catalogue_names(), *declared("unseen.py")])
def test_text(name: str) -> None:
    operator = load(name) if name in catalogue_names() else unseen(name)
    source = derive(operator)
    assert source == derive(operator), "the same text every time"
    lines = source.splitlines()
    assert all(len(line) <= 120 for line in lines)
    stores = [line.split("(")[1].split(",")[0] for line in lines if line.startswith("    store(")]
    assert stores == [output.name for output in operator.outputs]
    assert all(line.startswith("    store(") for line in lines[-len(stores) :])
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    if operator.summary:
        assert (ast.get_docstring(function) or "").strip() == operator.summary.strip()


def body(source: str) -> str:
    return "\n".join(line.strip() for line in source.splitlines()[2:])


def test_reads_as_written_by_hand() -> None:
    assert body(derive(load("rmsnorm_swiglu"))) == (
        "z = acc * load_col(r)\ngate, up = even_odd(z)\ny = silu(gate) * up\nstore(z, z)\nstore(y, y)"
    )
    assert body(derive(load("relu2"))) == "store(y, relu(acc) ** 2)"
    assert (
        body(derive(unseen("layer_scale"))) == "store(y, load_tile(residual) + load_row(gamma) * (acc + load_row(b)))"
    )
    assert body(derive(unseen("gated_softcap"))) == (
        "cap = load_scalar(cap)\ngate, up = even_odd(acc)\nstore(y, cap * tanh(silu(gate) * up / cap))"
    )


def test_masks_only_what_padding_would_spoil() -> None:
    assert "row_sum(x * x)" in derive(load("residual_rmsnorm"))
    assert "col_sum(acc * n)" in derive(load("residual_rmsnorm_backward"))
    assert "online_logsumexp(where(columns < num_cols(), acc, -inf))" in derive(load("cross_entropy"))
    assert "row_sum(g * dg + u * du)" in derive(load("swiglu_backward"))
    assert "pick(acc, target)" in derive(unseen("picked"))
    halves = derive(unseen("half_statistics"))
    assert "even_columns < num_cols()" in halves
    assert "row_index() < num_rows()" in halves
    assert "interleave(columns, columns) < num_cols()" in derive(unseen("quadratic_features"))


@pytest.mark.parametrize("name", [*catalogue_names(), *declared("unseen.py")])
def test_padding_does_not_count(name: str) -> None:
    """Reductions over a zero-padded tile equal those over the accumulator: what lies outside is masked or 0."""
    operator = load(name) if name in catalogue_names() else unseen(name)
    if not any(output.reduction for output in operator.outputs):
        pytest.skip("reduces nothing")
    m, n, extra = 5, 12, 4
    generator = torch.Generator().manual_seed(3)
    acc = torch.randn(m, n, generator=generator, dtype=torch.float64)
    operands = sample_operands(operator, m, n, dtype=torch.float64, generator=generator)
    # num_rows() and num_cols() are those of the accumulator, so they are written into the program of the padded tile.
    source = derive(operator).replace("num_cols()", str(n)).replace("num_rows()", str(m))
    padded = {}
    for operand in operator.operands:
        value = operands[operand.name]
        widths = {"Tile": extra, "HalfTile": extra // 2, "PairTile": 2 * extra, "RowVector": extra}
        pad = [0, widths.get(operand.extent, 0)] if operand.extent != "ColVector" else [0, extra]
        if operand.extent in ("Tile", "HalfTile", "PairTile"):
            pad += [0, extra]
        padded[operand.name] = torch.nn.functional.pad(value, pad) if value.dim() else value
        if operand.extent == "ColVector" and operand.element == "float":
            # Rows of the padding are never stored; anything may stand there, as long as loads give 0 beyond M.
            assert (padded[operand.name][m:] == 0).all()
    results = evaluate(parse(source, signature(operator)), torch.nn.functional.pad(acc, (0, extra, 0, extra)), padded)
    for output, expected in zip(operator.outputs, operator(acc.clone(), *operands.values()), strict=True):
        if output.reduction:
            torch.testing.assert_close(results[output.name][: len(expected)], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("softmax", ["aten._softmax", "logsumexp"]),
        ("matmul", ["aten.mm", "only matrix product"]),
        ("roll", ["aten.roll", "one tile at a time"]),
        ("cumsum", ["aten.cumsum"]),
        ("sort", ["aten.sort"]),
        ("halves", ["split into blocks", "interleaved pairs"]),
        ("half_slice", ["sliced into halves", "x[:, 0::2]"]),
        ("half_cat", ["concatenated in halves", "torch.stack"]),
        ("half_view", ["column halves", "interleaved pairs"]),
        ("reduction_used", ["a reduction is used in rsqrt", "next operator"]),
        ("z_loss", ["a reduction is raised to a power", "next operator"]),
        ("rms_norm", ["a reduction is used in"]),
        ("everything", ["rows and columns at once"]),
        ("branch", ["depends on the data", "torch.where"]),
        ("item", ["torch.where"]),
        ("rounding", ["aten.round", "no rounding"]),
        ("random", ["dropout", "deterministic"]),
        ("table", ["constant tensor", "operand"]),
        ("wrong_reduction", ['declared Reduced[ColVector, "max"]', 'Reduced[ColVector, "sum"]']),
        ("first_column", ["sliced"]),
        ("unwritten", ["never written"]),
    ],
)
def test_refused(name: str, says: list[str]) -> None:
    with pytest.raises(Unsupported) as caught:
        derive(load(f"{HERE / 'refused.py'}:{name}"))
    for part in [*says, "hint: "]:
        assert part in str(caught.value)
    source = (HERE / "refused.py").read_text(encoding="utf-8").splitlines()
    line = int(caught.value.line.split()[1])
    start = next(number for number, text in enumerate(source, 1) if text.startswith(f"def {name}("))
    assert start < line <= start + 4, "the line is the reference's own"


def test_size_turned_into_a_number() -> None:
    with pytest.raises(Unsupported, match="not the same function at every size"):
        derive(load(f"{HERE / 'refused.py'}:python_size"))


def test_every_refusal_is_tried() -> None:
    (marks,) = [mark for mark in test_refused.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert {name for name, _ in marks.args[1]} | {"python_size"} == set(declared("refused.py"))


def test_broken_reference(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(
        "from coda_agent.operators import operator, Tile, HalfTile\n@operator\ndef f(acc: Tile) -> HalfTile:\n    return acc\n"
    )
    with pytest.raises(OperatorError, match="declared HalfTile"):
        derive(load(f"{path}:f"))


def test_operand_with_a_name_of_the_language(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(
        "from coda_agent.operators import operator, Tile\n@operator\ndef f(acc: Tile, inf: Tile) -> Tile:\n    return acc\n"
    )
    with pytest.raises(OperatorError, match="'inf' has a meaning"):
        signature(load(f"{path}:f"))


# -- random programs --------------------------------------------------------------------------------------------------

_LEAVES = [
    "acc",
    "c",
    "b",
    "r[:, None]",
    "s",
    "torch.full((), 0.5, dtype=acc.dtype)",
    "torch.arange(acc.shape[1], dtype=acc.dtype)",
]
_UNARY = [
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "-{0}",
    "({0}).abs()",
    "torch.relu({0})",
    "({0}) ** 2",
    "torch.sin({0})",
]
_BINARY = [
    "({0} + {1})",
    "({0} - {1})",
    "({0} * {1})",
    "(2 * {0} - {1} / 3)",
    "({0} / (1.5 + ({1}) ** 2))",
    "torch.where({0} > {1}, {0}, 0.25)",
    "(({0} < {1}) * 1.0)",
]


def _tensors(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(str.format, st.sampled_from(_UNARY), inner),
            st.builds(str.format, st.sampled_from(_BINARY), inner, inner),
        ),
        max_leaves=12,
    )


@settings(max_examples=15, deadline=None)
@given(expression=_tensors(st.sampled_from(_LEAVES)), seed=st.integers(0, 9))
def test_random_expressions(tmp_path_factory: pytest.TempPathFactory, expression: str, seed: int) -> None:
    path = tmp_path_factory.mktemp("random") / "ops.py"
    path.write_text(
        "import torch\nfrom coda_agent.operators import *\nfrom typing import NamedTuple\n"
        'class Both(NamedTuple):\n    y: Tile\n    z: Tile\n    t: Reduced[ColVector, "sum"]\n'
        "@operator\ndef f(acc: Tile, c: Tile, b: RowVector, r: ColVector, s: Scalar) -> Both:\n"
        f"    y = acc + {expression}\n    e, o = y[:, 0::2], y[:, 1::2]\n"
        "    z = torch.stack((o * e, e - o), -1).flatten(-2)\n    return Both(y, z, torch.cos(y).sum(1))\n"
    )
    operator = load(f"{path}:f")
    assert_same(operator, derive(operator), 6, 10, seed)


# -- the other authors ------------------------------------------------------------------------------------------------


def test_authors(tmp_path: Path) -> None:
    operator = load("relu2")
    assert DeriveAuthor()(operator) == Candidate(derive(operator), "derive")
    path = tmp_path / "epilogue.py"
    path.write_bytes(b"def epilogue(acc):\n    store(y, acc)\n")
    assert FileAuthor(path)(operator) == Candidate(path.read_bytes(), "file", {"path": str(path)})


def test_epilogue_files(tmp_path: Path) -> None:
    with pytest.raises(EpilogueFileError, match="no such file"):
        read_epilogue(tmp_path / "missing.py")
    with pytest.raises(EpilogueFileError, match="is a directory"):
        read_epilogue(tmp_path)
    with pytest.raises(EpilogueFileError, match="cannot read"):
        read_epilogue("null\0byte")
    big = tmp_path / "big.py"
    big.write_bytes(b"#" * LIMIT)
    assert len(read_epilogue(big)) == LIMIT
    big.write_bytes(b"#" * (LIMIT + 1))
    with pytest.raises(EpilogueFileError, match="larger than 256 KiB"):
        read_epilogue(big)
