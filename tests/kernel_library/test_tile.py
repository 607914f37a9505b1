"""Numerics of the device functions: their formulas in fp32 beside the truth in fp64, and the pieces that move data."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernel_library.runtime import ops

ROOT = Path(__file__).resolve().parents[2]
TILE = ROOT / "kernel_library" / "runtime" / "tile.py"

# Runs on Triton's interpreter: applies every map to a grid of values, and folds logsumexp over pieces of a row.
SCRIPT = """
import json, sys
import torch, triton
import triton.language as tl
from kernel_library.runtime import tile

names = json.loads(sys.argv[1])

@triton.jit
def fold_kernel(x, y, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    m = tl.full((ROWS,), -float("inf"), tl.float32)
    s = tl.full((ROWS,), 0.0, tl.float32)
    r = tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    for i in range(COUNT):
        m, s = tile.update_logsumexp(m, s, tl.load(x + r[:, None] * COUNT * COLUMNS + i * COLUMNS + c[None, :]))
    tl.store(y + r, tile.finish_logsumexp(m, s))

def fold(pieces):
    y = torch.full((pieces.shape[0],), float("nan"))
    fold_kernel[(1,)](pieces, y, pieces.shape[1] // 4, pieces.shape[0], 4)
    return y

inf, nan = float("inf"), float("nan")
grid = torch.cat([torch.linspace(-12, 12, 4001), torch.linspace(-1, 1, 2001), torch.linspace(0.55, 0.65, 501),
                  *(s * torch.logspace(-38, 38, 400) for s in (1, -1)), torch.tensor([0.0, -0.0, 88.0, -88.0, 104.0, -104.0, inf, -inf, nan])])
result = {"x": grid}
for name in names:
    y = torch.full_like(grid, 123.0)
    globals()[f"{name}_kernel"][(triton.cdiv(len(grid), 1024),)](grid, y, len(grid), 1024)
    result[name] = y
rows = torch.tensor([
    [1.0, 2, 3, 4, 5, 6, 7, 8], [1000.0, 999, 998, 0, -1000, 5, 1001, 1], [-inf, -inf, -inf, -inf, -inf, 2, -inf, 3],
    [-inf] * 8, [1.0, 2, inf, 4, 5, 6, 7, 8], [3.0, 3, 3, 3, -inf, -inf, -inf, -inf], [-3e38, -3e38, 0, 0, 0, 0, 0, 3e38], [0.0, nan, 0, 0, 0, 0, 0, 0]])
result["rows"], result["folded"] = rows, fold(rows)
torch.save(result, sys.argv[2])
"""

KERNEL = """
@triton.jit
def {name}_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tile.{name}(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)
"""

MAPS = {
    "relu": torch.relu,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("tile")
    kernels = "".join(KERNEL.format(name=name) for name in MAPS)
    (folder / "script.py").write_text(SCRIPT.replace("\ninf, nan = ", kernels + "\ninf, nan = "), encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "script.py", json.dumps(list(MAPS)), "result.pt"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "result.pt")


@pytest.mark.parametrize("name", MAPS)
def test_maps_are_accurate_near_zero_and_in_the_tails(computed: dict[str, torch.Tensor], name: str) -> None:
    x, y = computed["x"], computed[name].double()
    expected = MAPS[name](x.double())
    finite = x.isfinite() & (expected.abs() < 3e38)
    # In its left tail gelu is a small difference of large terms, in fp32 as PyTorch computes it too.
    floor = 2e-7 * x.abs() if name.startswith("gelu") else 1e-37
    excess = (y - expected).abs() - 1e-6 * expected.abs() - floor
    worst = torch.where(finite, excess, -torch.inf).argmax()
    assert excess[worst] <= 0, (x[worst].item(), y[worst].item(), expected[worst].item())


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "relu", "softplus"])
def test_maps_keep_relative_accuracy_of_small_values(computed: dict[str, torch.Tensor], name: str) -> None:
    x, y = computed["x"].double(), computed[name].double()
    small = (x.abs() > 1e-37) & (x.abs() < 1)
    expected = MAPS[name](x)
    assert ((y - expected).abs() <= 3e-7 * expected.abs())[small].all()


@pytest.mark.parametrize("name", MAPS)
def test_maps_at_infinity_and_nan(computed: dict[str, torch.Tensor], name: str) -> None:
    x, y = computed["x"], computed[name]
    assert y[x.isnan()].isnan().all()
    assert torch.equal(y[x == torch.inf], MAPS[name](x.double())[x == torch.inf].float())
    below = y[x == -torch.inf]
    if name in ("silu", "gelu", "gelu_tanh"):
        assert (below.isnan() | (below == 0)).all()  # -inf * 0: PyTorch gives NaN too
    else:
        assert torch.equal(below, MAPS[name](x.double())[x == -torch.inf].float())


def test_online_logsumexp_over_pieces(computed: dict[str, torch.Tensor]) -> None:
    expected = torch.logsumexp(computed["rows"].double(), dim=1).float()
    finite = ~computed["rows"].isnan().any(1)
    torch.testing.assert_close(computed["folded"][finite], expected[finite], rtol=1e-6, atol=1e-6)
    assert computed["folded"][~finite].isnan().all()


def test_every_device_function_says_what_it_does_or_is_a_formula() -> None:
    """Maps are the formula they show; whatever moves data or keeps state is documented."""
    for node in ast.parse(TILE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node) or len(node.body) == 1, node.name


# --- The PyTorch side ------------------------------------------------------------------------------------------------


def test_pairs_are_inverse() -> None:
    x = torch.randn(3, 8)
    even, odd = ops.even_odd(x)
    assert torch.equal(ops.interleave(even, odd), x)
    assert torch.equal(even, x[:, ::2])
    assert torch.equal(ops.interleave(torch.zeros(3, 1), odd)[:, 1::2], odd)


def test_pick_is_zero_out_of_range() -> None:
    x = torch.arange(12.0).reshape(4, 3) + 1
    assert ops.pick(x, torch.tensor([[0], [2], [-1], [3]])).tolist() == [1, 6, 0, 0]
    assert ops.pick(torch.full((1, 2), torch.nan), torch.tensor([[5]])).tolist() == [0]


def test_minimum_and_maximum_take_numbers_and_keep_nan() -> None:
    x = torch.tensor([1.0, -1.0, torch.nan])
    for result in (ops.maximum(x, 0.0), ops.maximum(0.0, x), ops.maximum(x, torch.zeros(()))):
        torch.testing.assert_close(result, torch.tensor([1.0, 0.0, torch.nan]), equal_nan=True)
    for result in (ops.minimum(x, 0.0), ops.minimum(0.0, x), ops.minimum(torch.zeros(()), x)):
        torch.testing.assert_close(result, torch.tensor([0.0, -1.0, torch.nan]), equal_nan=True)


def test_indices() -> None:
    like = torch.zeros(3, 4)
    assert ops.row_index(like).tolist() == [[0], [1], [2]]
    assert ops.col_index(like).tolist() == [[0, 1, 2, 3]]
