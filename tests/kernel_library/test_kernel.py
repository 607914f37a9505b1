"""Calling a kernel on CPU tensors: what it returns, what it refuses and how, and how PyTorch sees it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from coda_agent.compiler import Description, generate
from coda_agent.sandbox import EXTENTS, Operand, Output, Signature, parse
from kernel_library.runtime import Config, Kernel, load

_COUNT = itertools.count()
TILE, TILE_OR_NOT = Output(EXTENTS["Tile"]), Output(EXTENTS["Tile"], optional=True)

SWIGLU = (
    "def epilogue(acc):\n    a, b = even_odd(acc)\n    store(z, acc)\n    store(y, silu(a) * b)\n",
    Signature({}, {"z": TILE_OR_NOT, "y": Output(EXTENTS["HalfTile"])}),
)
MANY = (
    """def epilogue(acc, r, b, c, cap, t, n):
    x = acc * load_col(r) + load_row(b) + load_tile(c) * load_scalar(cap) - load_scalar(n)
    store(y, x)
    store(s, row_sum(where(col_index() < num_cols(), x, 0.0)))
    store(d, col_sum(where(row_index() < num_rows(), x, 0.0)))
    store(p, pick(x, load_col(t)))
    store(m, running_max(where(col_index() < num_cols(), x, -inf)))
    store(e, online_logsumexp(where(col_index() < num_cols(), x, -inf)))
    store(w, col_max(where(row_index() < num_rows(), x, -inf)))
""",
    Signature(
        {
            "r": Operand(EXTENTS["ColVector"]),
            "b": Operand(EXTENTS["RowVector"]),
            "c": Operand(EXTENTS["Tile"]),
            "cap": Operand(EXTENTS["Scalar"]),
            "t": Operand(EXTENTS["ColVector"], "int"),
            "n": Operand(EXTENTS["Scalar"], "int"),
        },
        {
            "y": TILE,
            "s": Output(EXTENTS["ColVector"], "sum"),
            "d": Output(EXTENTS["RowVector"], "sum"),
            "p": Output(EXTENTS["ColVector"], "sum", optional=True),
            "m": Output(EXTENTS["ColVector"], "max"),
            "e": Output(EXTENTS["ColVector"], "logsumexp"),
            "w": Output(EXTENTS["RowVector"], "max"),
        },
    ),
)
PASSED_ON = (
    "def epilogue(acc, c):\n    store(y, load_tile(c))\n    store(z, acc)\n    store(q, acc)\n",
    Signature({"c": Operand(EXTENTS["Tile"])}, {"y": TILE, "z": TILE, "q": TILE}),
)


def make(folder: Path, program: tuple[str, Signature], *, register: bool = True) -> Kernel:
    """A freshly generated kernel, under a name no other test has."""
    name = f"tested_{next(_COUNT)}"
    (folder / name).mkdir()
    text = generate(parse(*program), Description(name, "A kernel."))
    (folder / name / "kernel.py").write_text(text, encoding="utf-8")
    kernel = load(folder / name)
    if register:
        kernel.register("tested")
    return kernel


@pytest.fixture(scope="module")
def swiglu(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return make(tmp_path_factory.mktemp("kernels"), SWIGLU)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return make(tmp_path_factory.mktemp("kernels"), MANY)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CPU tensors.*")
        yield


X, W = torch.randn(4, 5, 16), torch.randn(6, 16)


def operands(m: int = 5, n: int = 6, **changed: Any) -> list[Any]:
    values: dict[str, Any] = {
        "r": torch.randn(m),
        "b": torch.randn(n),
        "c": torch.randn(m, n),
        "cap": 0.5,
        "t": torch.randint(0, max(n, 1), (m,)),
        "n": 2,
    }
    return list({**values, **changed}.values())


# --- What it returns -------------------------------------------------------------------------------------------------


def test_one_output_is_a_tensor_and_several_are_a_named_tuple(swiglu: Kernel) -> None:
    y = swiglu(X, W)
    acc = X @ W.T
    torch.testing.assert_close(y, F.silu(acc[..., 0::2]) * acc[..., 1::2])
    both = swiglu(X, W, include=("z",))
    assert both._fields == ("z", "y")
    torch.testing.assert_close(both.z, acc)
    assert torch.equal(both.y, y)


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (2, 1, 3), (0, 3)])
def test_leading_dimensions_are_kept(swiglu: Kernel, many: Kernel, lead: tuple[int, ...]) -> None:
    x = torch.randn(*lead, 16)
    assert swiglu(x, W).shape == (*lead, 3)
    vector, tile = torch.randn(lead), torch.randn(*lead, 6)
    results = many(x, W, vector, torch.randn(6), tile, 0.5, torch.zeros(lead, dtype=torch.int64), 2, include=("p",))
    shapes = {name: tuple(value.shape) for name, value in results._asdict().items()}
    assert shapes == {"y": (*lead, 6), "s": lead, "d": (6,), "p": lead, "m": lead, "e": lead, "w": (6,)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_dtypes(many: Kernel, dtype: torch.dtype) -> None:
    x, w = X[0].to(dtype), W.to(dtype)
    r, b, c, cap, t, n = operands(r=torch.randn(5).to(dtype))
    result = many(x, w, r, b, c.to(dtype), cap, t, n, include=("p",))
    expected = (x.double() @ w.double().T) * r.double()[:, None] + b.double() + c.to(dtype).double() * cap - n
    assert result.y.dtype == dtype
    torch.testing.assert_close(result.y.double(), expected, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)
    exact = {
        "s": expected.sum(1),
        "d": expected.sum(0),
        "p": expected.gather(1, t[:, None])[:, 0],
        "m": expected.amax(1),
        "e": expected.logsumexp(1),
        "w": expected.amax(0),
    }
    for name, value in exact.items():
        found = getattr(result, name)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-4)


def test_strides_do_not_matter(swiglu: Kernel) -> None:
    wide = torch.randn(5, 40)
    for x, w in ((wide[:, 3:35:2], W), (X[0].T.contiguous().T, W.T.contiguous().T), (X[0], torch.randn(12, 16)[::2])):
        torch.testing.assert_close(swiglu(x, w), swiglu(x.contiguous(), w.contiguous()))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 6, 16), (5, 0, 16), (0, 0, 16), (5, 6, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_sizes(many: Kernel, m: int, n: int, k: int) -> None:
    x, w = torch.randn(m, k), torch.randn(n, k)
    values = operands(m, n)
    called = many(x, w, *values, include=("p",))
    evaluated = many.evaluate(x, w, dict(zip((o.name for o in many.operands), values, strict=True)))
    for name, value in called._asdict().items():
        assert torch.equal(value, evaluated[name])
    if not (m and n):
        assert not called.s.any()
        assert (called.m == -torch.inf).all()
        assert (called.e == -torch.inf).all()
        launched = many.run(x, w, dict(zip((o.name for o in many.operands), values, strict=True)), config=Config())
        for name, value in called._asdict().items():
            assert torch.equal(value, launched[name])


def test_k_of_zero_with_leading_dimensions(swiglu: Kernel) -> None:
    assert not swiglu(torch.zeros(2, 3, 0), torch.zeros(6, 0)).any()
    assert swiglu(torch.zeros(2, 0, 0), torch.zeros(6, 0)).shape == (2, 0, 3)


def test_results_share_no_memory(tmp_path: Path) -> None:
    kernel = make(tmp_path, PASSED_ON)
    c = torch.randn(5, 6)
    result = kernel(X[0], W, c)
    assert len({c.data_ptr(), *(value.data_ptr() for value in result)}) == 4
    one = torch.randn(1, 6)
    assert kernel(X[0, :1], W, one).y.data_ptr() != one.data_ptr()


def test_it_says_once_that_it_runs_unfused(tmp_path: Path) -> None:
    kernel = make(tmp_path, SWIGLU)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel(X, W)
        kernel(X, W)
    assert [str(w.message) for w in caught] == [f"{kernel.name}: CPU tensors run the kernel's PyTorch form, unfused"]


def test_two_kernels_of_one_name(tmp_path: Path) -> None:
    kernel = make(tmp_path, SWIGLU, register=False)
    again = load(tmp_path / kernel.name)
    assert torch.equal(kernel(X, W), again(X, W))


# --- What it refuses -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Kernel, Kernel], Any], type[Exception], tuple[str, ...]]] = {
    "x no tensor": (lambda s, m: s(None, W), TypeError, ("x", "NoneType")),
    "weight no tensor": (lambda s, m: s(X, [1.0]), TypeError, ("weight", "list")),
    "x 0-d": (lambda s, m: s(torch.tensor(1.0), W), ValueError, ("x", "(..., K)", "0-d")),
    "weight 3-d": (lambda s, m: s(X, W[None]), ValueError, ("weight", "(N, K)", "(1, 6, 16)")),
    "K differs": (lambda s, m: s(X, W[:, :3]), ValueError, ("weight", "K=16", "K=3")),
    "fp64": (lambda s, m: s(X.double(), W.double()), TypeError, ("x", "bfloat16", "float64")),
    "integers": (lambda s, m: s(X.long(), W.long()), TypeError, ("x", "bfloat16", "int64")),
    "mixed dtypes": (lambda s, m: s(X, W.half()), TypeError, ("weight", "float32", "float16")),
    "mixed devices": (lambda s, m: s(X, W.to("meta")), ValueError, ("weight", "cpu", "meta")),
    "odd N": (lambda s, m: s(X, W[:5]), ValueError, ("N must be even", "N=5")),
    "unknown output": (lambda s, m: s(X, W, include=("q",)), ValueError, ("q", "z")),
    "output that is always there": (lambda s, m: s(X, W, include=("y",)), ValueError, ("y", "z")),
    "too many operands": (lambda s, m: s(X, W, W), TypeError, ("operand", "1")),
    "too few operands": (lambda s, m: m(X[0], W, *operands()[:-1]), TypeError, ("operand", "6", "5", "cap")),
    "operand no tensor": (lambda s, m: m(X[0], W, *operands(r=1.0)), TypeError, ("r must", "(M,)", "float")),
    "operand missing": (lambda s, m: m(X[0], W, *operands(c=None)), TypeError, ("c must", "(M, N)", "NoneType")),
    "column vector too long": (lambda s, m: m(X[0], W, *operands(r=torch.ones(6))), ValueError, ("r must", "(5,)", "(6,)")),
    "column vector 2-d": (lambda s, m: m(X[0], W, *operands(r=torch.ones(5, 1))), ValueError, ("r must", "(5, 1)")),
    "row vector": (lambda s, m: m(X[0], W, *operands(b=torch.ones(5))), ValueError, ("b must", "(N,)", "(5,)")),
    "tile": (lambda s, m: m(X[0], W, *operands(c=torch.ones(6, 5))), ValueError, ("c must", "(5, 6)", "(6, 5)")),
    "tile's dtype": (lambda s, m: m(X[0], W, *operands(c=torch.ones(5, 6).long())), TypeError, ("c must", "int64")),
    "index's dtype": (lambda s, m: m(X[0], W, *operands(t=torch.ones(5))), TypeError, ("t must", "int64", "float32")),
    "operand's device": (lambda s, m: m(X[0], W, *operands(b=torch.ones(6, device="meta"))), ValueError, ("b must", "cpu", "meta")),
    "scalar tensor": (lambda s, m: m(X[0], W, *operands(cap=torch.tensor(0.5))), TypeError, ("cap must", "number", "Tensor")),
    "scalar text": (lambda s, m: m(X[0], W, *operands(cap="1")), TypeError, ("cap must", "number", "str")),
    "scalar missing": (lambda s, m: m(X[0], W, *operands(cap=None)), TypeError, ("cap must", "number", "NoneType")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument_the_expected_and_the_got(swiglu: Kernel, many: Kernel, name: str) -> None:
    call, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        call(swiglu, many)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).startswith((swiglu.name, many.name))


def test_missing_gradients_are_refused(swiglu: Kernel) -> None:
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no backward yet"):
        swiglu(x, W)
    with pytest.raises(RuntimeError, match="no backward yet"):
        swiglu(X, W.clone().requires_grad_())
    with torch.no_grad():
        assert not swiglu(x, W).requires_grad
    assert torch.equal(swiglu(x.detach(), W), swiglu(X, W))


def test_outputs_to_write_into_are_checked(swiglu: Kernel) -> None:
    for out, words in (
        (torch.empty(5, 4), r"\(5, 3\)"),
        (torch.empty(5, 3, dtype=torch.float16), "float16"),
        (torch.empty(3, 5).T, "contiguous columns"),
    ):
        with pytest.raises(ValueError, match=words):
            swiglu.run(X[0], W, {}, out={"y": out})
    with pytest.raises(ValueError, match="no optional output"):
        swiglu.run(X[0], W, {}, include=("y",))


def test_a_launch_is_not_confused_by_the_order_of_its_operands(tmp_path: Path) -> None:
    source = "def epilogue(acc, r, b):\n    store(y, acc * load_col(r) + load_row(b))\n"
    kernel = make(tmp_path, (source, Signature({n: MANY[1].operands[n] for n in ("r", "b")}, {"y": TILE})))
    x, none, six = X[0, :0], torch.ones(0), torch.ones(6)
    for _ in range(2):  # nothing is launched for M = 0, but all is checked
        assert kernel.run(x, W, {"r": none, "b": six}, config=Config())["y"].shape == (0, 6)
        with pytest.raises(ValueError, match="r must be"):
            kernel.run(x, W, {"b": none, "r": six}, config=Config())


def test_a_folder_without_a_kernel(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no kernel"):
        load(tmp_path)


# --- How PyTorch sees it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [(), ("z",)])
def test_meta_and_fake_tensors(swiglu: Kernel, include: tuple[str, ...]) -> None:
    from torch._subclasses import FakeTensorMode

    real = swiglu(X, W, include=include)
    meta = swiglu(X.to("meta"), W.to("meta"), include=include)
    with FakeTensorMode() as mode:
        fake = swiglu(mode.from_tensor(X), mode.from_tensor(W), include=include)
    for other in (meta, fake):
        for a, b in zip(real if include else (real,), other if include else (other,), strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(swiglu: Kernel, dynamic: bool) -> None:
    torch._dynamo.reset()

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        both = swiglu(x * 2, w, include=("z",))
        return both.y + swiglu(x, w) + both.z.sum()

    compiled = torch.compile(block, fullgraph=True, backend="eager", dynamic=dynamic)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for m, n in ((5, 6), (7, 8), (9, 12)):
        x, w = torch.randn(m, 16), torch.randn(n, 16)
        torch.testing.assert_close(compiled(x, w), block(x, w))
    if dynamic:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize("which", ["swiglu", "many", "passed on"])
def test_registration_passes_pytorchs_own_checks(which: str, swiglu: Kernel, many: Kernel, tmp_path: Path) -> None:
    kernel, arguments = {
        "swiglu": (swiglu, (X[0], W, True)),
        "many": (many, (X[0], W, *operands(), True)),
        "passed on": (make(tmp_path, PASSED_ON) if which == "passed on" else None, (X[0], W, torch.randn(5, 6))),
    }[which]
    assert kernel is not None
    op = getattr(torch.ops.tested, kernel.name).default
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
