"""Relations between launches: how inputs are rearranged, and where the reference allows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coda_agent.operators import Operator, Tile, load, operator
from verifier import bounds
from verifier.cases import Case, Form, Tiling, compilations, forms, materialise, rearrange, revealing, strategy
from verifier.properties import draw
from verifier.relations import Rearranged, commutes, launches, split


@operator
def numbered(acc: Tile) -> Tile:
    """Adds the number of the row."""
    return acc + torch.arange(acc.shape[0], device=acc.device)[:, None]


def commutes_on(op: Operator, case: Case) -> list[bool]:
    inputs = materialise(case, op)
    values = bounds.analyse(op, inputs.a, inputs.w, inputs.operands).values
    return [commutes(op, inputs, values, Rearranged(other)) for other in launches(case)]


@pytest.mark.parametrize("relation", ["rows", "columns", "batches"])
def test_swiglu_commutes(relation: str) -> None:
    assert all(commutes_on(load("swiglu"), Case(m=9, n=12, k=5, relation=relation)))


def test_indices_do_not() -> None:
    assert commutes_on(load("cross_entropy"), Case(m=9, n=12, k=5, relation="rows")) == [True]
    assert commutes_on(load("cross_entropy"), Case(m=9, n=12, k=5, relation="columns")) == [False]
    assert commutes_on(numbered, Case(m=9, n=12, k=5, relation="rows")) == [False]
    assert commutes_on(numbered, Case(m=9, n=12, k=5, relation="batches")) == [True, False]


@pytest.mark.parametrize("m", range(2, 200))
def test_batches_keep_the_alignment(m: int) -> None:
    first = split(m)
    assert 0 < first < m
    if m % 32 == 0:
        assert first % 16 == 0
    elif m > 5:
        assert first % 16
        assert (m - first) % 16


def test_another_form_need_not_give_the_same_bits() -> None:
    (y,) = (o for o in load("bias").outputs)
    for layout, same in (("row", True), ("column", False)):
        (moved,) = list(launches(Case(m=7, n=8, k=9, a_layout=layout, relation="batches")))[:1]
        assert Rearranged(moved).bitwise(y) is same


def test_inputs_are_the_same_rows_and_columns() -> None:
    op = load("swiglu_backward")
    case = Case(m=11, n=6, k=4, relation="batches", seed=9)
    whole = materialise(case, op)
    parts = [materialise(other, op) for other in launches(case)]
    assert bool((torch.cat([p.a for p in parts]) == whole.a).all())
    assert bool((torch.cat([p.operands["z"] for p in parts]) == whole.operands["z"]).all())
    (moved,) = launches(replace(case, relation="columns"))
    inputs = materialise(moved, op)
    assert bool((inputs.w == rearrange(whole.w.t(), "RowVector", moved).t()).all())
    assert bool((inputs.operands["z"] == rearrange(whole.operands["z"], "PairTile", moved)).all())
    # Pairs stay together, and stay in the order of w.
    pairs = whole.w.unflatten(0, (3, 2))
    assert all(bool((pairs == pair).all(dim=(1, 2)).any()) for pair in inputs.w.unflatten(0, (3, 2)))


def specialised(case: Case, operator: Operator) -> tuple[object, ...]:
    """What Triton compiles anew for: constants, dtypes, and each integer's being 1 or a multiple of 16."""
    inputs = materialise(case, operator)
    tensors = [inputs.a, inputs.w, *(t for t in inputs.operands.values() if isinstance(t, torch.Tensor))]
    numbers = [case.m, case.n, case.k, *(s for t in tensors for s in t.stride())]
    widths = {"Tile": case.n, "HalfTile": case.n // 2, "PairTile": 2 * case.n}
    numbers += [case.pitch(widths[o.extent]) for o in operator.outputs if o.extent in widths]
    offsets = [t.storage_offset() * t.element_size() % 16 for t in tensors]
    kinds = [1 if x == 1 else 16 if x % 16 == 0 else 0 for x in numbers]
    return (case.tiling, case.dtype, case.optional, *kinds, *offsets)


@pytest.mark.parametrize("name", ["swiglu", "swiglu_backward", "residual_rmsnorm_backward", "rope", "cross_entropy"])
def test_a_gpu_compiles_little_and_ahead(name: str) -> None:
    op = load(name)
    ahead = {specialised(case, op) for case in compilations(op)}
    assert len(ahead) <= 20  # a compilation takes a second or more; of the second mainloop there are three
    late = set()
    for case in draw([(strategy(op, backend="cuda"), 150)], seed=1):
        for one in (case, *(other for other in launches(case) if case.relation != "batches" or case.m > 5)):
            late.add(specialised(one, op))
    assert late <= ahead


def test_tuned_tilings_are_forms() -> None:
    tuned = Tiling(128, 256, 64, num_warps=8, subtiles=4, tma=None)
    found = forms(load("swiglu"), [tuned])
    assert found[0] == Form(tuned)
    assert not found[-1].aligned


@pytest.mark.parametrize("backend", ["interpreter", "cuda"])
def test_revealing_cases_suit_the_operator(backend: str) -> None:
    for case in revealing(load("rope"), backend, 3):  # type: ignore[arg-type]
        assert case.n % 2 == 0
        assert Case.from_dict(case.as_dict()) == case
