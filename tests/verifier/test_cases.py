"""Cases: JSON, drawing, and the tensors made from them."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from coda_agent.operators import load
from verifier.cases import AMPLITUDE, REGIMES, Case, Signature, Tiling, materialise, strategy

CROSS_ENTROPY = load("cross_entropy")
SWIGLU_BACKWARD = load("swiglu_backward")
ROPE = load("rope")

lenient = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@lenient
@given(strategy(ROPE))
def test_cases_travel_as_json(case: Case) -> None:
    assert Case.from_dict(json.loads(json.dumps(case.as_dict()))) == case


@lenient
@given(strategy(ROPE))
def test_columns_come_in_pairs_where_the_operator_needs_them(case: Case) -> None:
    assert case.n % 2 == 0
    assert case.m >= 1


@lenient
@given(strategy(ROPE, backend="cuda"))
def test_gpu_tiles_are_large_enough_for_its_dot(case: Case) -> None:
    assert min(case.tiling.block_m, case.tiling.block_n, case.tiling.block_k) >= 16
    assert case.dtype != "fp32" or case.tiling.block_m * case.tiling.block_n <= 64 * 64


def test_empty_cases_have_no_rows() -> None:
    @lenient
    @given(strategy(ROPE, empty=True))
    def check(case: Case) -> None:
        assert case.m == 0

    check()


def test_wrong_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="regime"):
        Case(regime="nice")
    with pytest.raises(ValueError, match="unknown fields color"):
        Case.from_dict({"color": 1})
    with pytest.raises(ValueError, match="n >= 1"):
        Case(n=0)


def test_signatures_travel_as_json() -> None:
    signature = Signature.of(CROSS_ENTROPY)
    assert Signature.from_dict(json.loads(json.dumps(signature.as_dict()))) == signature


@lenient
@given(strategy(SWIGLU_BACKWARD))
def test_tensors_depend_on_the_case_alone(case: Case) -> None:
    first, second = materialise(case, SWIGLU_BACKWARD), materialise(case, Signature.of(SWIGLU_BACKWARD))
    assert first.digest() == second.digest()
    assert first.a.shape == (case.m, case.k)
    assert first.w.shape == (case.n, case.k)
    assert first.operands["z"].shape == (case.m, 2 * case.n)
    assert first.operands["z"].stride(-1) == 1
    for tensor in (first.a, first.w, first.operands["z"]):
        assert bool(torch.isfinite(tensor).all())


def test_every_write_shows_in_the_digest() -> None:
    inputs = materialise(Case(m=3, n=4, k=5, a_layout="padded"), ROPE)
    before = inputs.digest()
    inputs.placed["a"].storage[0] = 1.0  # outside the tensor itself
    assert inputs.digest() != before


def test_layouts() -> None:
    row, column, padded, offset = (
        materialise(Case(m=3, n=4, k=5, a_layout=layout), ROPE).a for layout in ("row", "column", "padded", "offset")
    )
    assert row.stride() == (5, 1)
    assert column.stride() == (1, 3)
    assert padded.stride() == (32, 1)
    assert offset.stride() == (8, 1)
    assert row.data_ptr() % 16 == 0
    assert offset.data_ptr() % 16 != 0
    assert all(bool((x == row).all()) for x in (column, padded, offset))


def test_integers_keep_the_accumulation_exact() -> None:
    inputs = materialise(Case(m=8, n=8, k=1024, regime="integers", dtype="bf16"), ROPE)
    for tensor in (inputs.a, inputs.w):
        assert bool((tensor == tensor.round()).all())
        assert float(tensor.abs().max()) == AMPLITUDE
    assert float((inputs.a.double().abs() @ inputs.w.double().abs().T).max()) < 2**24


def test_cancelling_products_are_small_beside_their_terms() -> None:
    inputs = materialise(Case(m=16, n=16, k=64, regime="cancelling", dtype="fp32"), ROPE)
    a, w = inputs.a.double(), inputs.w.double()
    assert float((a @ w.T).abs().mean() / (a.abs() @ w.abs().T).mean()) < 0.02


def test_targets_meet_tile_borders_and_the_ignored_index() -> None:
    case = Case(m=200, n=40, k=1, tiling=Tiling(block_n=16))
    targets = set(materialise(case, CROSS_ENTROPY).operands["target"].tolist())
    assert {0, 15, 16, 31, 32, 39, -100} <= targets
    assert all(t == -100 or 0 <= t < 40 for t in targets)


@pytest.mark.parametrize("regime", REGIMES)
def test_column_operands_are_fp32_and_rows_have_the_dtype(regime: str) -> None:
    operands = materialise(Case(m=4, n=4, k=4, dtype="bf16", regime=regime), load("residual_rmsnorm_backward")).operands
    assert operands["r"].dtype == torch.float32
    assert operands["w"].dtype == torch.bfloat16
