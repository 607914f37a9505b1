"""Figures made of timings, and the problems that are timed. Timings themselves are never asserted."""

from __future__ import annotations

import pytest

from coda_agent.bench.shapes import MODELS, paper, problem
from coda_agent.bench.timing import Timings
from coda_agent.operators import catalogue_names


def test_ratios_are_taken_round_by_round() -> None:
    # The card slows by half from round to round; the ratio stays.
    slow = [1.0, 1.5, 2.0, 3.0, 4.0]
    timings = Timings({"kernel": slow, "baseline": [1.2 * t for t in slow]})
    ratio = timings.speedup("kernel", "baseline")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.2, 1.2, 1.2))


def test_the_interval_covers_what_rounds_disagree_on() -> None:
    timings = Timings({"kernel": [1.0] * 6, "baseline": [0.9, 1.1, 0.95, 1.05, 1.2, 0.8]})
    ratio = timings.speedup("kernel", "baseline")
    assert ratio.low < 1.0 < ratio.high


def test_problems_of_a_block() -> None:
    llama = MODELS["llama3-8b"]
    assert problem("swiglu", llama) == (28672, 4096)
    assert problem("swiglu_backward", llama) == (14336, 4096)
    assert problem("residual_rmsnorm_backward", llama) == (4096, 28672)
    assert problem("rmsnorm_cross_entropy", llama) == (128256, 4096)
    assert problem("an_operator_of_yours", paper(2048)) == (2048, 2048)


@pytest.mark.parametrize("name", catalogue_names())
def test_every_operator_has_even_problems(name: str) -> None:
    for d in (2048, 4096, 8192):
        n, k = problem(name, paper(d))
        assert n % 16 == 0
        assert k % 16 == 0
