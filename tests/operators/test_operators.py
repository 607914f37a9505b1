"""Declaring, finding and checking operators."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from coda_agent.operators import Operand, OperatorError, Output, catalogue_names, catalogue_summaries, load
from coda_agent.operators.checking import check, sample_operands, shape_of

PAPER = {
    "swiglu", "rope", "residual_rmsnorm", "rmsnorm", "rmsnorm_swiglu", "rmsnorm_rope", "cross_entropy", "rmsnorm_cross_entropy",
    "residual_rmsnorm_backward", "swiglu_backward",
}  # fmt: skip
BEYOND = {"bias", "gelu", "geglu", "relu2", "softcap"}
HEADER = "from typing import NamedTuple, Optional\nimport torch\nfrom coda_agent.operators import *\n"


def write(folder: Path, body: str, header: str = HEADER) -> str:
    path = folder / "ops.py"
    path.write_text(header + textwrap.dedent(body), encoding="utf-8")
    return str(path)


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from coda_agent.operators import catalogue_names, catalogue_summaries, load; import coda_agent.authors, coda_agent.authors.file;"
        "assert catalogue_names() and all(catalogue_summaries().values()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name_needs_no_torch() -> None:
    code = "import sys\nfrom coda_agent.operators import load\ntry: load('swigul')\nexcept ValueError as e: assert 'swiglu' in str(e)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_catalogue_is_complete() -> None:
    assert set(catalogue_names()) >= PAPER | BEYOND
    assert list(catalogue_names()) == sorted(catalogue_names())


@pytest.mark.parametrize("name", catalogue_names())
def test_catalogue_operator(name: str) -> None:
    operator = load(name)
    check(operator)
    assert (operator.name, operator.origin) == (name, "catalogue")
    assert operator.summary == catalogue_summaries()[name]
    assert operator.summary.endswith(".")
    for dtype in (torch.bfloat16, torch.float32):
        operands = sample_operands(operator, 3, 8, dtype=dtype)
        for output, value in zip(
            operator.outputs, operator(torch.randn(3, 8, dtype=dtype), *operands.values()), strict=True
        ):
            assert value.dtype == dtype, "a reference follows the dtype it is given"
            assert value.shape == shape_of(output.extent, 3, 8)


def test_declarations() -> None:
    operator = load("cross_entropy")
    assert operator.operands == (Operand("target", "ColVector", "int"), Operand("ignore_index", "Scalar", "int", -100))
    assert operator.outputs == (
        Output("logits", "Tile", None, True),
        Output("t", "ColVector", "sum"),
        Output("lse", "ColVector", "logsumexp"),
    )
    assert [output.name for output in load("residual_rmsnorm_backward").outputs] == ["o_out", "h", "dw"]
    assert load("swiglu").column_multiple == 2
    assert load("bias").column_multiple == 1


@pytest.mark.parametrize(
    "name", ["swiglu", "rope", "rmsnorm_swiglu", "rmsnorm_rope", "cross_entropy", "rmsnorm_cross_entropy"]
)
def test_optional_outputs(name: str) -> None:
    assert load(name).outputs[0].optional


def test_cross_entropy_is_torchs() -> None:
    logits, target = torch.randn(6, 10, dtype=torch.float64), torch.tensor([0, 3, 9, 3, 5, 1])
    for ignore_index in (-100, 3):
        _, t, lse = load("cross_entropy")(logits, target, torch.tensor(ignore_index))
        expected = torch.nn.functional.cross_entropy(logits, target, reduction="none", ignore_index=ignore_index)
        torch.testing.assert_close(torch.where(target == ignore_index, 0.0, lse - t), expected)
        assert (t[target == ignore_index] == 0).all()


def test_swiglu_backward_is_autograds() -> None:
    z = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(4, 6, dtype=torch.float64)
    y = load("swiglu")(z)[1]
    (expected,) = torch.autograd.grad(y, z, dy)
    dz, zdz, again = load("swiglu_backward")(dy, z.detach())
    torch.testing.assert_close(dz, expected)
    torch.testing.assert_close(zdz, (z * expected).sum(1).detach())
    torch.testing.assert_close(again, y.detach())


def test_residual_rmsnorm_backward_is_autograds() -> None:
    c = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    w = torch.randn(12, dtype=torch.float64, requires_grad=True)
    dh, o = torch.randn(4, 12, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64)
    r = torch.rsqrt(c.square().mean(1) + 1e-5)
    h = c * r[:, None] * w
    dc, dw = torch.autograd.grad(h, (c, w), dh)
    zdz = (h * dh).mean(1)
    o_out, again, dw_out = load("residual_rmsnorm_backward")(dh, c, w, r, zdz, o)
    torch.testing.assert_close(o_out, o + dc)
    torch.testing.assert_close(dw_out, dw)
    torch.testing.assert_close(again, h)


def test_rope_keeps_the_length_of_pairs() -> None:
    angle = torch.randn(3, 4, dtype=torch.float64)
    z, y = load("rope")(torch.randn(3, 8, dtype=torch.float64), angle.cos(), angle.sin())
    torch.testing.assert_close(y.unflatten(1, (-1, 2)).norm(dim=-1), z.unflatten(1, (-1, 2)).norm(dim=-1))


# -- a user's own file ------------------------------------------------------------------------------------------------

PLAIN = """
@operator
def twice(acc: Tile) -> Tile:
    '''Twice.'''
    return acc * 2
"""


@pytest.mark.parametrize("header", [HEADER, "from __future__ import annotations\n" + HEADER, "\ufeff" + HEADER])
def test_user_file(tmp_path: Path, header: str) -> None:
    body = """
    from helper_beside import factor

    class Both(NamedTuple):
        y: Tile | None
        s: Reduced[ColVector, "sum"]
        m: Optional[Reduced[RowVector, "max"]]

    @operator
    def scaled(acc: Tile, index: ColVector[int], k: Scalar = 2.5) -> Both:
        y = acc * factor * k
        return Both(y, y.sum(1), y.amax(0))
    """
    (tmp_path / "helper_beside.py").write_text("factor = 3\n")
    before = list(sys.path), set(sys.modules)
    operator = load(write(tmp_path, body, header) + ":scaled")
    check(operator)
    assert sys.path == before[0]
    assert operator.origin == str(tmp_path / "ops.py")
    assert "ops" not in sys.modules
    assert [output.optional for output in operator.outputs] == [True, False, True]
    assert operator.operands == (Operand("index", "ColVector", "int"), Operand("k", "Scalar", "float", 2.5))
    assert operator.source.startswith("@operator\ndef scaled")
    assert not (tmp_path / "__pycache__").joinpath("ops.cpython-311.pyc").exists()


def test_user_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    assert load(f"{path}:twice")(torch.ones(1, 2))[0][0, 0] == 2
    write(tmp_path, PLAIN.replace("acc * 2", "acc * 30"))
    operator = load(f"{path}:twice")
    assert operator(torch.ones(1, 2))[0][0, 0] == 30
    assert "acc * 30" in operator.source


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", ["no operator given", "swiglu", "path.py:name"]),
        ("swigul", ["unknown operator 'swigul'", "did you mean swiglu"]),
        ("zzzzzz", ["unknown operator", "known operators", "bias"]),
        ("missing.py:f", ["no such file: missing.py"]),
        ("missing.py", ["no such file: missing.py", "path.py:name"]),
        (":f", ["no file before the colon"]),
        ("folder:f", ["folder is a directory"]),
        ("folder/", ["is a directory"]),
        ("ops.py", ["say which operator", "ops.py:twice"]),
        ("ops.py:", ["say which operator", "ops.py:twice"]),
        ("ops.py:no name", ["'no name' is not a name"]),
        ("ops.py:twise", ["no operator 'twise'", "did you mean twice"]),
        ("ops.py:plain", ["'plain' in ops.py is a plain function", "put @operator above it", "line "]),
        ("ops.py:CONSTANT", ["'CONSTANT' in ops.py is a int", "it has twice"]),
        ("empty.py:f", ["empty.py has no 'f' and declares no operator"]),
        ("empty.py", ["empty.py declares no operator"]),
        ("latin.py:f", ["latin.py, line 2: not UTF-8", "0xe9"]),
        ("syntax.py:f", ["syntax.py, line 2: not valid Python"]),
        ("null.py:f", ["null.py", "not valid Python"]),
        ("raises.py:f", ["raises.py, line 3: importing the file raised ZeroDivisionError: division by zero"]),
        ("exits.py:f", ["exits.py, line 2: importing the file raised SystemExit"]),
        ("module.py:f", ["importing the file raised ModuleNotFoundError", "nowhere_to_be_found"]),
        ("declares.py:f", ["declares.py, line ", "f: operand 'b' needs an extent annotation"]),
    ],
)
def test_load_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    write(tmp_path, PLAIN + "\ndef plain(acc: Tile) -> Tile:\n    return acc\n\nCONSTANT = 3\n")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "latin.py").write_bytes(b"# one\n# caf\xe9\n")
    (tmp_path / "syntax.py").write_text("x = 1\ndef (:\n")
    (tmp_path / "null.py").write_bytes(b"x = 1\x00\n")
    (tmp_path / "raises.py").write_text("def g():\n    # why\n    1 / 0\ng()\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "module.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "declares.py").write_text(HEADER + "@operator\ndef f(acc: Tile, b) -> Tile:\n    return acc + b\n")
    path = list(sys.path)
    with pytest.raises(OperatorError) as caught:
        load(spec)
    for part in says:
        assert part in str(caught.value)
    assert sys.path == path


@pytest.mark.parametrize(
    ("declaration", "says"),
    [
        ("def f(x: Tile) -> Tile", "first parameter must be 'acc: Tile'"),
        ("def f() -> Tile", "first parameter must be 'acc: Tile'"),
        ("def f(acc: RowVector) -> Tile", "first parameter must be 'acc: Tile'"),
        ("def f(acc: Tile)", "output 'y' needs an extent annotation"),
        ("def f(acc: Tile) -> torch.Tensor", "output 'y' needs an extent annotation"),
        ("def f(acc: Tile) -> Scalar", "must be a floating-point tile or vector"),
        ("def f(acc: Tile) -> ColVector", 'Reduced[ColVector, "sum"]'),
        ("def f(acc: Tile) -> Reduced[Tile, 'sum']", "Reduced applies to ColVector"),
        ("def f(acc: Tile) -> Reduced[ColVector, 'mean']", "unknown reduction 'mean'"),
        ("def f(acc: Tile) -> Reduced[ColVector]", "Reduced takes an extent and a combination"),
        ("def f(acc: Tile) -> Tile | None", "at least one output must not be optional"),
        ("def f(acc: Tile) -> Tile[float]", "takes int"),
        ("def f(acc: Tile, b: int) -> Tile", "operand 'b' needs an extent annotation"),
        ("def f(acc: Tile, b: RowVector | None) -> Tile", "cannot be Reduced or optional"),
        ("def f(acc: Tile, b: RowVector = 1.0) -> Tile", "only Scalar operands may have a default"),
        ("def f(acc: Tile, b: Scalar = 'x') -> Tile", "only Scalar operands may have a default"),
        ("def f(acc: Tile, b: Scalar[int] = 0.5) -> Tile", "must be an integer"),
        ("def f(acc: Tile, *, b: Scalar) -> Tile", "ordinary positional parameter"),
        ("def f(acc: Tile, *b: Scalar) -> Tile", "ordinary positional parameter"),
        ("def f(acc: Tile, out: Tile) -> Tile", "cannot be called 'out'"),
        ("def f(acc: Tile, B: Tile) -> Tile", "operand 'B' must be named in lower-case"),
        ("def f(acc: Tile, _b: Tile) -> Tile", "operand '_b' must be named in lower-case"),
        ("def f(acc: Tile, y: Tile) -> Tile", "output 'y' has the name of an input"),
        ("def f(acc: Tile, b: 'Nonsense') -> Tile", "annotations cannot be read"),
    ],
)
def test_bad_declarations(tmp_path: Path, declaration: str, says: str) -> None:
    with pytest.raises(OperatorError) as caught:
        load(write(tmp_path, f"@operator\n{declaration}:\n    return acc\n") + ":f")
    assert says in str(caught.value)


def test_operator_with_parentheses(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="without parentheses"):
        load(
            write(tmp_path, "@operator(name='f')\ndef f(acc: Tile) -> Tile:\n    return acc\n".replace("name='f'", "3"))
            + ":f"
        )


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        ("HalfTile", "acc", "output 'y' is declared HalfTile (M, N/2) but the reference returned (M, N)"),
        ("Tile", "acc[:, ::2]", "output 'y' is declared Tile (M, N) but the reference returned (M, N/2)"),
        (
            "Reduced[ColVector, 'sum']",
            "acc.sum(0)",
            'declared Reduced[ColVector, "sum"] (M,) but the reference returned (N,)',
        ),
        ("Reduced[ColVector, 'sum']", "acc.sum(1, keepdim=True)", "returned (M, 1)"),
        ("Tile", "acc.unsqueeze(0).expand(7, -1, -1)", "returned (7, 5, 12) for M=5, N=12"),
        ("Tile", "acc > 0", "returned torch.bool elements"),
        ("Tile", "acc.long()", "returned torch.int64 elements"),
        ("Tile", "None", "returned a NoneType; return a tensor"),
        ("Tile", "(acc, acc)", "1 outputs are declared (y) but the reference returned 2"),
        ("Tile", "acc + torch.ones(3)", "the reference raised RuntimeError"),
        ("Tile", "acc.add_(1)", "changes its input 'acc' in place"),
        ("Tile", "acc + nope", "the reference raised NameError: name 'nope' is not defined"),
    ],
)
def test_check_errors(tmp_path: Path, annotation: str, value: str, says: str) -> None:
    operator = load(write(tmp_path, f"@operator\ndef f(acc: Tile) -> {annotation}:\n    return {value}\n") + ":f")
    with pytest.raises(OperatorError) as caught:
        check(operator)
    assert says in str(caught.value)
    if "raised" in says:
        assert f"{tmp_path / 'ops.py'}, line 6" in str(caught.value)


def test_sampled_operands() -> None:
    operator = load("rmsnorm_cross_entropy")
    first = sample_operands(operator, 4, 6, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    second = sample_operands(operator, 4, 6, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    assert list(first) == ["r", "target", "ignore_index"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["r"].dtype == torch.bfloat16
    assert first["target"].dtype == torch.int64
    assert ((first["target"] >= 0) & (first["target"] < 6)).all()
    assert first["ignore_index"].item() == -100
    cap = sample_operands(load("softcap"), 4, 6, dtype=torch.float64)["cap"]
    assert cap.shape == ()
    assert 0.5 <= cap.item() <= 2
