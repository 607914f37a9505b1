"""The worker survives what candidates do, and the gate rejects each misbehaviour by name."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from coda_agent.operators import ColVector, Reduced, RowVector, Tile, operator
from verifier import Case, replay, verify
from verifier.cases import Signature, Tiling
from verifier.isolation import Worker, WorkerFailure, environment
from verifier.properties import PROPERTIES, Failure, Judge

FAKES = Path(__file__).parent / "fakes"


class Outputs(NamedTuple):
    y: Tile
    s: Reduced[ColVector, "sum"]


@operator
def biased(acc: Tile, b: RowVector) -> Outputs:
    """y = acc + b, and its row sums."""
    y = acc + b
    return Outputs(y, y.sum(dim=1))


def _modes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("misbehaving", FAKES / "misbehaving" / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODES = _modes()


def new_worker(name: str = "misbehaving", timeout: float = 20.0) -> Worker:
    return Worker(FAKES / name, Signature.of(biased), timeout=timeout)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with new_worker() as worker:
        yield Judge(biased, worker)


def case(mode: str, **more: object) -> Case:
    return Case.from_dict({"m": getattr(MODES, mode), "n": 20, "k": 24, "seed": 8, **more})


def only(failures: list[Failure]) -> Failure:
    assert failures
    return failures[0]


@pytest.mark.parametrize("layout", ["given", "padded", "odd", "own"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_correct_kernel_passes(judge: Judge, dtype: str, layout: str) -> None:
    for regime in ("normal", "integers"):
        assert (
            judge.check(
                Case(m=7, n=9, k=33, dtype=dtype, output_layout=layout, regime=regime, relation="repeat", seed=2)
            )
            == []
        )


@pytest.mark.parametrize(
    ("mode", "prop", "fragment"),
    [
        ("RAISES", "contract", "tile sizes disagree"),
        ("GREEDY", "contract", "out-of-memory"),
        ("UNWRITTEN", "contract", "never written"),
        ("BEFORE", "contract", "before the output"),
        ("AFTER", "contract", "after the output"),
        ("MUTATES", "contract", "an input was changed"),
        ("ELSEWHERE", "contract", "buffer given"),
        ("DTYPE", "contract", "must be bfloat16"),
        ("SHAPE", "contract", "must be float32"),
        ("MISSING", "contract", "returned outputs ['y']"),
        ("NOT_FINITE", "contract", "not finite"),
        ("STALE", "contract", "not finite"),
        ("WRONG", "elementwise_bound", "beyond the element-wise bound"),
        ("ROUNDED_TWICE", "elementwise_bound", "beyond the element-wise bound"),
        ("BF16_SUM", "elementwise_bound", "beyond the element-wise bound"),
        ("PEEKS", "contract", "memory holds that nobody has written"),
        ("WRONG_FORM", "pytorch_form", "beyond the element-wise bound"),
    ],
)
def test_misbehaviour_is_named(judge: Judge, mode: str, prop: str, fragment: str) -> None:
    failure = only(judge.check(case(mode)))
    assert failure.prop == prop
    assert fragment in failure.line
    json.dumps(failure.as_dict(), allow_nan=False)


@pytest.mark.parametrize("layout", ["padded", "odd"])
def test_a_write_between_rows_is_seen(judge: Judge, layout: str) -> None:
    failure = only(judge.check(case("BETWEEN", output_layout=layout)))
    assert "between rows" in failure.message
    assert failure.index == (0, 20)


def test_the_worst_element_is_shown(judge: Judge) -> None:
    failure = only(judge.check(case("WRONG")))
    assert (failure.output, failure.index, failure.count) == ("y", (2, 1), 1)
    assert failure.ratio is not None
    assert failure.ratio > 10
    assert "y[2, 1]" in failure.line


def test_integers_are_compared_bitwise(judge: Judge) -> None:
    assert only(judge.check(case("ROUNDED_TWICE", regime="integers", k=200))).prop == "exact_integers"


def test_two_launches_must_agree(judge: Judge) -> None:
    assert only(judge.check(case("RANDOM", relation="repeat", dtype="fp32"))).prop == "determinism"


def test_the_pointer_form_is_judged_too(judge: Judge) -> None:
    tiling = Tiling(tma=None)
    assert judge.check(case("WRONG_POINTER", tiling=vars(tiling))) == []
    assert (
        only(judge.check(case("WRONG_POINTER", tiling=vars(tiling), relation="pointers"))).prop
        == "tma_and_pointer_agree"
    )


def test_outputs_must_not_share_memory(judge: Judge) -> None:
    assert "shares its memory with y" in only(judge.check(case("SHARES", dtype="fp32"))).message


@pytest.mark.parametrize(("relation", "prop"), [("rows", "rows_commute"), ("batches", "batches_agree")])
def test_where_a_row_lies_must_not_matter(judge: Judge, relation: str, prop: str) -> None:
    assert judge.check(case("NUDGED", dtype="fp32", seed=4)) == []
    assert only(judge.check(case("NUDGED", dtype="fp32", seed=4, relation=relation))).prop == prop


def test_another_tiling_keeps_the_bounds(judge: Judge) -> None:
    assert judge.check(case("TILED", relation="tiling", other=vars(Tiling(64, 16, 16)))) == []
    failure = only(judge.check(case("TILED", relation="tiling", other=vars(Tiling(32, 16, 16)))))
    assert failure.prop == "configurations_agree"


@pytest.mark.parametrize("relation", ["rows", "columns", "batches"])
@pytest.mark.parametrize("regime", ["normal", "heavy", "integers"])
def test_correct_kernels_keep_every_relation(judge: Judge, relation: str, regime: str) -> None:
    tried = judge.tally.tried.copy()
    # One multiplication a product: PyTorch's matrix product keeps no order of summation.
    assert judge.check(Case(m=37, n=21, k=1, dtype="fp32", regime=regime, relation=relation, seed=3)) == []
    assert sum(judge.tally.tried.values()) > sum(tried.values()) + 4


def test_a_configuration_too_large_is_no_verdict(judge: Judge) -> None:
    cases, skipped = judge.tally.cases, judge.tally.skipped
    assert judge.check(case("GREEDY_TILES")) == []
    assert (judge.tally.cases, judge.tally.skipped) == (cases, skipped + 1)


def test_no_rows_are_allowed(judge: Judge) -> None:
    before = judge.tally.tried["empty"]
    assert judge.check(Case(m=0, n=4, k=3)) == []
    assert judge.tally.tried["empty"] == before + 1


def test_what_a_candidate_prints_is_no_answer(judge: Judge) -> None:
    assert judge.check(case("PRINTS")) == []


def test_credentials_do_not_reach_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    assert not any("secret" in value for value in environment("cuda", "/nowhere").values())
    with new_worker() as worker:
        assert Judge(biased, worker).check(case("ENVIRONMENT")) == []


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("HANGS", "worker-hung"), ("CRASHES", "worker-crashed (signal 11)"), ("EXITS", "worker-crashed (exit 3)")],
)
def test_a_lost_worker_is_a_rejection_with_a_reason(mode: str, reason: str) -> None:
    with new_worker(timeout=4.0) as worker, pytest.raises(WorkerFailure) as caught:
        Judge(biased, worker).check(case(mode))
    assert caught.value.reason == reason
    assert caught.value.fatal


@pytest.mark.slow
def test_children_of_a_hung_worker_die_with_it() -> None:
    with new_worker(timeout=4.0) as worker:
        worker.submit(case("STARTS_CHILD"))
        assert worker._process is not None
        group = worker._process.pid
        with pytest.raises(WorkerFailure):
            worker.result()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    # A killed child whose parent is gone stays a zombie where no init reaps it.
    states = [path.read_text().rsplit(")", 1)[1].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    assert all(state[0] == "Z" for state in states if int(state[2]) == group)


def test_a_file_that_does_not_load_is_rejected() -> None:
    report = verify(biased, FAKES / "broken", backend="interpreter", examples=5, seed=1)
    assert not report.passed
    assert report.reason is not None
    assert "half a file" in report.reason
    assert report.counterexample is not None


def test_a_report_is_a_certificate() -> None:
    events: list[dict[str, object]] = []
    report = verify(biased, FAKES / "misbehaving", backend="interpreter", examples=20, seed=5, on_event=events.append)
    assert report.passed, report.reason
    assert set(report.properties) == set(PROPERTIES)
    assert all(entry["passed"] for entry in report.properties.values())
    assert report.properties["exact_integers"]["examples"] > 0
    assert 0.5 < report.max_error_ratio <= 1.0
    assert report.percent_of_torch_error is not None
    assert report.percent_of_torch_error < 100.0
    assert report.unjudged_share == 0.0
    assert report.mutation is None
    assert report.backend == "interpreter"
    assert all(report.versions.values())
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["seed"] == 5
    assert [events[0]["event"], events[-1]["event"]] == ["started", "finished"]
    assert events[-2]["done"] == events[0]["total"]


@pytest.mark.slow
def test_a_failure_is_shrunk_and_replays() -> None:
    tiling = Tiling(32, 32, 32)
    report = verify(biased, FAKES / "clipped", backend="interpreter", examples=60, seed=3, tilings=[tiling])
    assert not report.passed
    found = report.counterexample
    assert found is not None
    # Columns from the 33rd on are wrong: the smallest case with one has few rows and a short product.
    assert found["property"] in ("exact_integers", "elementwise_bound")
    assert found["shapes"]["N"] > 32
    assert found["shapes"]["M"] <= 2
    assert found["index"][1] >= 32
    again = replay(biased, FAKES / "clipped", found["case"], backend="interpreter")
    assert again.counterexample is not None
    assert again.counterexample["line"] == found["line"]
    assert (
        verify(biased, FAKES / "clipped", backend="interpreter", examples=0, cases=[found["case"]]).reason
        == report.reason
    )


@pytest.mark.slow
def test_time_runs_out() -> None:
    report = verify(biased, FAKES / "misbehaving", backend="interpreter", examples=1000, seed=1, timeout=6.0)
    assert not report.passed
    assert report.reason is not None
    assert report.reason.startswith("out-of-time")
    assert report.duration < 12.0
