"""Generated kernels: what the text looks like, and that it computes the epilogue whatever its author called things."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from catalogue_epilogues import EPILOGUES
from interpreted import Case, Launch, run

from coda_agent.authors.contract import signature
from coda_agent.compiler import Description, generate
from coda_agent.operators import load
from coda_agent.sandbox import parse

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[2]


def _catalogue(name: str) -> str:
    operator = load(name)
    defaults = {operand.name: operand.default for operand in operator.operands if operand.default is not None}
    return generate(parse(EPILOGUES[name], signature(operator)), Description(name, operator.doc, defaults))


def _source(operands: dict[str, tuple[str, str]], *lines: str) -> str:
    return f"def epilogue({', '.join(['acc', *operands])}):\n" + "".join(f"    {line}\n" for line in lines)


# --- Cases that are launched: each becomes a kernel, all in one interpreter process ----------------------------------

FLOAT = "float"
TILE, SUM, LSE, MAX = (
    ("Tile", None, False),
    ("ColVector", "sum", False),
    ("ColVector", "logsumexp", False),
    ("ColVector", "max", False),
)
DOWN, DOWN_MAX = ("RowVector", "sum", False), ("RowVector", "max", False)
CASES: dict[str, Case] = {}

_SIZES = (
    Launch(70, 50, 40),
    Launch(33, 66, 8, config={"block_n": 64, "subtiles": 4}),
    Launch(64, 64, 32, config={"block_n": 64, "subtiles": 2, "load_tma": True, "store_tma": True}),
    Launch(1, 2, 1, config={"tma": False}),
    Launch(35, 38, 0),
    Launch(0, 38, 16),
    Launch(40, 34, 21, "float16", config={"subtiles": 2, "load_tma": True, "store_tma": True}),
)
_LAYOUTS = (
    Launch(40, 48, 24, w="column"),
    Launch(40, 48, 24, a="column", w="column"),
    Launch(40, 48, 24, a="column", config={"tma": False}),
    Launch(40, 46, 23, a="odd", w="odd"),
    Launch(40, 48, 24, w="odd"),
    Launch(40, 48, 24, "float16", w="column", config={"block_m": 16, "block_n": 16, "block_k": 16, "group_m": 2}),
    Launch(100, 100, 40, config={"group_m": 3, "block_n": 16, "tma": False}),
    Launch(100, 100, 40, config={"group_m": 1, "block_m": 64, "block_n": 128, "subtiles": 4}),
)


def _add(case: Case) -> None:
    CASES[case.id] = case


def _case(
    id: str,
    lines: tuple[str, ...],
    operands: dict[str, tuple[str, str]] | None = None,
    outputs: dict | None = None,
    **more: object,
) -> None:
    _add(Case(id, _source(operands or {}, *lines), operands or {}, outputs or {"y": TILE}, **more))  # type: ignore[arg-type]


for _name, _text in EPILOGUES.items():
    _operator = load(_name)
    _add(
        Case(
            _name,
            _text,
            {o.name: (o.extent, o.element) for o in _operator.operands},
            {o.name: (o.extent, o.reduction, o.optional) for o in _operator.outputs},
            _name,
            _operator.doc,
            (*_SIZES, Launch(38, 0, 16), *(_LAYOUTS if _name in ("swiglu", "residual_rmsnorm_backward") else ())),
        )
    )

# Names, a few to a kernel, used in every way that the text spells out.
_LOCALS = [
    "row",
    "rows",
    "col",
    "cols",
    "half_cols",
    "pair_cols",
    "tl",
    "triton",
    "torch",
    "ops",
    "tile",
    "kernel",
    "z_ptr",
    "y_ptr",
    "s_partial",
    "b_ptr",
    "b_stride",
    "c_value",
    "y_stride",
    "s_acc",
    "e_max",
    "e_sum",
    "s_ptr",
    "shared",
    "shared_2",
    "x",
    "a",
    "w",
    "acc_",
    "left",
    "right",
    "store_tile",
    "load_operand",
    "store_partial",
    "split_columns",
    "tile_coordinates",
    "finish_logsumexp",
    "update_logsumexp",
    "infinity",
    "min",
    "max",
    "range",
    "print",
    "float",
    "int",
    "len",
    "type",
    "match",
    "target",
    "name",
]
_OPERANDS = [
    "M",
    "N",
    "K",
    "A",
    "W",
    "F",
    "M_ptr",
    "torch",
    "ops",
    "tl",
    "triton",
    "tile",
    "kernel",
    "row",
    "cols",
    "a",
    "w",
    "b_ptr",
    "gelu",
    "exp",
    "cos",
    "include",
    "Tensor",
    "Any",
    "Kernel",
    "INFINITY",
    "float",
    "int",
    "print",
    "TMA",
    "BLOCK_M",
    "s_acc",
    "z_ptr",
    "acc_",
    "rows",
    "partial",
]
_OUTPUTS = [
    "x",
    "M",
    "N",
    "K",
    "w",
    "c",
    "A",
    "F",
    "gelu",
    "tl",
    "torch",
    "ops",
    "kernel",
    "rows",
    "y_acc",
    "shared",
    "print",
    "Tensor",
    "float",
]
#: Operators may be called like a primitive, though the file then has two things of that name.
_FUNCTIONS = ["gelu", "silu", "maximum", "tanh", "even_odd", "load_row", "x", "tile", "print"]
_WITH = {"b": ("RowVector", FLOAT), "c": ("Scalar", FLOAT)}
_THREE = {"y": TILE, "s": ("ColVector", "sum", True), "e": LSE, "z": ("Tile", None, True)}


def _groups(names: list[str]) -> list[list[str]]:
    return [names[i : i + 10] for i in range(0, len(names), 10)]


for _group in _groups(_LOCALS):
    _lines: list[str] = []
    for _name, _last in zip(_group, ["acc", *_group], strict=False):
        _lines += [f"{_name} = {_last} * 0.5", f"{_name} = {_name} + load_row(b) * load_scalar(c)"]
    _all = " - ".join(_group)
    _case(
        f"locals: {' '.join(_group)}",
        (
            *_lines,
            f"value = ({_all}) ** 3 + exp({_group[0]}) * 0.001",
            "store(y, value)",
            "store(s, row_sum(value))",
            "store(e, online_logsumexp(where(col_index() < num_cols(), value * 0.01, -inf)))",
            f"store(z, {_all})",
        ),
        _WITH,
        _THREE,
    )
for _group in _groups(_OPERANDS):
    _case(
        f"operands: {' '.join(_group)}",
        (
            f"v = acc * ({' - '.join(f'load_row({name})' for name in _group)}) + silu(acc) * where(col_index() < num_cols(), 1.0, -inf)",
            "store(y, v)",
            "store(z, maximum(v, 0.5))",
            "store(s, row_sum(acc))",
        ),
        dict.fromkeys(_group, ("RowVector", FLOAT)),
        {"y": TILE, "s": ("ColVector", "sum", True), "z": ("Tile", None, True)},
    )
for _group in _groups(_OUTPUTS):
    _case(
        f"outputs: {' '.join(_group)}",
        (*(f"store({name}, acc * {i})" for i, name in enumerate(_group)), "store(y, silu(acc) + maximum(acc, 1.0))"),
        None,
        {**dict.fromkeys(_group, ("Tile", None, True)), "y": TILE},
    )
for _name in _FUNCTIONS:
    _case(
        f"function: {_name}",
        (
            "a, b = even_odd(acc)",
            "store(y, interleave(silu(a), tanh(b)) + square(gelu(acc)) + maximum(acc, load_row(b)))",
            "store(e, online_logsumexp(where(col_index() < num_cols(), acc, -inf)))",
        ),
        {"b": _WITH["b"]},
        {"y": TILE, "e": LSE},
        name=_name,
    )

# Values of every extent where the text expects a tile.
_V = {
    "r": ("ColVector", FLOAT),
    "b": ("RowVector", FLOAT),
    "t": ("ColVector", "int"),
    "cap": ("Scalar", FLOAT),
    "n": ("Scalar", "int"),
}


def _used(text: str) -> dict[str, tuple[str, str]]:
    return {name: kind for name, kind in _V.items() if f"({name})" in text}


for _text in (
        "1.5", "3", "load_scalar(cap)", "num_cols()", "col_index()", "load_row(b)", "load_col(r)", "where(acc > 0, 1, 0)",
        "acc * where(acc > 0, 0.1, 0.3)", "acc * sqrt(load_scalar(cap))", "acc * rsqrt(num_cols())", "sin(col_index()) + acc",
        "acc * maximum(load_scalar(cap), 0.5)", "where(load_scalar(cap) > 0.5, acc, -acc)",
        "where(~(load_scalar(cap) > 0.5), acc, acc + 1)", "where((num_cols() > 3) & (acc > 0), acc, 0.0)",
        "acc + col_index() / 3", "acc + square(col_index())", "acc + abs(col_index() - 5)", "maximum(col_index(), row_index()) * acc",
        "acc * load_scalar(n)", "exp(exp(-load_scalar(cap))) * acc", "minimum(0.5, load_row(b)) * acc", "(acc + 1) ** 3 - acc ** 4",
        "acc + (col_index() + 3) // 2 * (row_index() % 5)", "acc * tanh(load_scalar(n))",
):  # fmt: skip
    _case(f"value: {_text}", (f"store(y, {_text})",), _used(_text))
for _text in (
    "acc, 0.0",
    "1.5, acc",
    "load_scalar(cap), acc",
    "load_col(r), acc",
    "load_row(b), acc",
    "load_row(b), load_row(b)",
    "load_row(b), 1.0",
    "acc, -acc",
):
    _case(f"interleave: {_text}", (f"store(y, interleave({_text}))",), _used(_text), {"y": ("PairTile", None, False)})

_EDGES = (
    Launch(40, 34, 20),
    Launch(33, 70, 20, config={"block_n": 64, "subtiles": 4}),
    Launch(31, 16, 8, indices=(-5, 40)),
)
_case(
    "row reductions",
    (
        "inside = where(col_index() < num_cols(), acc + 3, -inf)",
        "store(m, running_max(inside))",
        "store(e, online_logsumexp(inside))",
        "store(s, row_sum(acc))",
    ),
    None,
    {"m": MAX, "e": LSE, "s": SUM},
    launches=_EDGES,
)
_case(
    "column reductions",
    (
        "inside = row_index() < num_rows()",
        "store(m, col_max(where(inside, acc - 9, -inf)))",
        "store(s, col_sum(where(inside, exp(acc * 0.1), 0.0)))",
    ),
    None,
    {"m": DOWN_MAX, "s": DOWN},
    launches=_EDGES,
)
_case(
    "half-wide reductions",
    ("a, b = even_odd(acc)", "store(s, row_sum(a * b))", "store(q, pick(a, load_col(t)))"),
    {"t": _V["t"]},
    {"s": SUM, "q": SUM},
    launches=_EDGES,
)
_case(
    "pair-wide reductions",
    ("x = interleave(acc, 2 * acc)", "store(s, row_sum(x))", "store(q, pick(x, load_col(t)))"),
    {"t": _V["t"]},
    {"s": SUM, "q": SUM},
    launches=_EDGES,
)
_case(
    "pick out of range",
    ("store(s, pick(exp(acc), load_col(t)))",),
    {"t": _V["t"]},
    {"s": SUM},
    launches=(Launch(indices=(-5, 5)), *_EDGES),
)
_case(
    "pick an expression",
    ("store(s, pick(acc, load_col(t) + 1))",),
    {"t": _V["t"]},
    {"s": SUM},
    launches=(Launch(indices=(-5, 5)),),
)
_case(
    "one reduction, two outputs",
    ("total = row_sum(acc)", "store(s, total)", "store(q, total)"),
    None,
    {"s": SUM, "q": ("ColVector", "sum", True)},
)
_case(
    "infinite logits",
    (
        "x = where(col_index() > row_index(), acc, -inf)",
        "store(e, online_logsumexp(where(col_index() < num_cols(), x, -inf)))",
    ),
    None,
    {"e": LSE},
    launches=(Launch(50, 34, 20), Launch(50, 34, 20, config={"subtiles": 4})),
)
_case(
    "an output that ignores acc", ("store(y, load_row(b) * 2)", "store(z, acc)"), {"b": _V["b"]}, {"y": TILE, "z": TILE}
)
_case("operands that are not read", ("q = load_row(b)", "store(y, acc)"), _V)
_case(
    "a long expression",
    (
        f"x = silu(acc) * minimum(acc, {' + '.join(['exp(acc) * 0.123456'] * 6)}) * (acc + 1.0)",
        "store(y, x + (" + " + ".join(["acc * 0.123456"] * 9) + ") * (acc + minimum(acc, 2.0)))",
    ),
)
_case(
    "names reused",
    ("x = acc", "x_2 = x + 1", "x = x * 2", "x = x + x_2", "y = x", "y = y * y", "store(y, y - x)", "store(z, x)"),
    None,
    {"y": TILE, "z": TILE},
)
_case(
    "pairs swapped",
    (
        "a, b = even_odd(acc)",
        "b, a = even_odd(interleave(b, a))",
        "a, c = even_odd(interleave(b, a))",
        "store(y, interleave(c, c * 2))",
    ),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run(list(CASES.values()), tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_its_epilogue(name: str, results: dict[str, list[str]]) -> None:
    assert results[name] == []


# --- The text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_text_is_plain_python_of_moderate_width(name: str) -> None:
    text = CASES[name].generate()
    tree = ast.parse(text)
    assert max(map(len, text.splitlines())) <= 120
    assert text.endswith("\n")
    assert "\n\n\n\n" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert modules <= {"torch", "torch.nn.functional", "triton", "triton.language", "runtime", "runtime.tile", "typing"}
    names = [alias.asname or alias.name for node in imports for alias in node.names]
    assert len(names) == len(set(names))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    reductions = ["_start", "_finish"] if "_start" in functions else []
    assert functions[: 4 + len(reductions)] == ["_epilogue", *reductions, "_subtiles", "_gemm", "_torch_epilogue"]


def test_text_is_clean_to_ruff(tmp_path: Path) -> None:
    for name in EPILOGUES:
        (tmp_path / f"{name}.py").write_text(_catalogue(name), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No module named" in done.stderr:
        pytest.skip("ruff is not installed")
    assert done.returncode == 0, done.stdout


def _function(text: str, name: str) -> ast.FunctionDef:
    return next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)


def test_names_of_the_author_are_kept_in_both_forms() -> None:
    text = _catalogue("swiglu_backward")
    for function in ("_epilogue", "_torch_epilogue"):
        stored = {
            node.id
            for node in ast.walk(_function(text, function))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        assert {"g", "u", "sig", "act", "dg", "du"} <= stored


def test_operands_that_are_not_read_are_absent_from_the_kernel() -> None:
    text = CASES["operands that are not read"].generate()
    for function in ("_epilogue", "_subtiles", "_gemm"):
        assert not {f"{name}_{what}" for name in _V for what in ("ptr", "stride", "value")} & {
            a.arg for a in _function(text, function).args.args
        }
    assert [a.arg for a in _function(text, "_torch_epilogue").args.args] == ["acc", *_V]
    assert "load_row" not in text


def test_the_same_epilogue_gives_the_same_text() -> None:
    assert _catalogue("rope") == _catalogue("rope")


@pytest.mark.parametrize(
    "doc",
    ['Has """ inside.', 'Ends with "', 'A "quoted" word.', "A back\\slash \\alpha.", "Ends with \\", "{{ 7 * 7 }} {% if %}", "Two\n\nparagraphs.\n  Indented.", "''' x", "", "word " * 60, "Schrödinger's ψ"],
)  # fmt: skip
def test_documentation_cannot_break_the_text(doc: str) -> None:
    import warnings

    text = Case("case", "def epilogue(acc):\n    store(y, acc)\n", doc=doc).generate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = ast.parse(text)
        compile(text, "kernel.py", "exec")
    shown = ast.get_docstring(tree) or ""
    assert " ".join(doc.split()) in " ".join(shown.split())
    assert [type(node) for node in tree.body[1:3]] == [ast.Import, ast.Import]


@pytest.mark.parametrize("default", [1e-5, -100, 0.0, float("inf"), float("-inf")])
def test_defaults_of_scalars_are_python(default: float) -> None:
    case = Case("case", "def epilogue(acc, cap):\n    store(y, acc * load_scalar(cap))\n", {"cap": ("Scalar", FLOAT)})
    text = generate(parse(case.source, case.signature), Description("target", "Doc.", {"cap": default}))
    node = _function(text, "target").args.defaults[0]
    assert eval(compile(ast.Expression(node), "default", "eval"), {"float": float}) == default


@pytest.mark.parametrize("name", ["swiglu", "rmsnorm_cross_entropy", "swiglu_backward"])
def test_golden(name: str) -> None:
    """Set CODA_UPDATE_GOLDEN=1 to rewrite the files, then read the difference."""
    path, text = GOLDEN / f"{name}.py", _catalogue(name)
    if os.environ.get("CODA_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} is out of date; CODA_UPDATE_GOLDEN=1 rewrites it"
