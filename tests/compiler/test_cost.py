"""The cost model against counts made by hand."""

from __future__ import annotations

import pytest

from coda_agent.authors.contract import signature
from coda_agent.authors.derive import derive
from coda_agent.compiler import GPUS, Cost, cost
from coda_agent.operators import catalogue_names, load
from coda_agent.sandbox import parse

M, N, K = 1024, 512, 256


def of(name: str) -> Cost:
    operator = load(name)
    return cost(parse(derive(operator), signature(operator)), M, N, K)


def test_bytes_of_a_residual_norm() -> None:
    found = of("residual_rmsnorm")
    gemm = 2 * (M * K + N * K)
    # c in; x and h out; w a row of bf16, s a column of fp32.
    assert found.fused_bytes == gemm + 3 * 2 * M * N + 2 * N + 4 * M
    assert found.two_kernel_bytes == found.fused_bytes + 2 * 2 * M * N
    assert found.gemm_flops == 2 * M * N * K


def test_half_and_pair_tiles_have_their_widths() -> None:
    gemm = 2 * (M * K + N * K)
    assert of("swiglu").fused_bytes == gemm + 2 * M * N + M * N
    assert of("swiglu_backward").fused_bytes == gemm + 2 * (2 * M * N) * 2 + 2 * M * N + 4 * M


@pytest.mark.parametrize("name", catalogue_names())
def test_fusing_never_moves_more(name: str) -> None:
    found = of(name)
    assert found.fused_bytes < found.two_kernel_bytes <= found.eager_bytes
    for gpu in GPUS.values():
        assert 0 < found.seconds(gpu) <= found.unfused_seconds(gpu)


def test_floors_follow_the_roofline() -> None:
    h200 = GPUS["H200"]
    operator = load("bias")
    epilogue = parse(derive(operator), signature(operator))
    large = cost(epilogue, 16384, 8192, 8192)
    assert large.seconds(h200) == pytest.approx(large.gemm_flops / 989e12)
    thin = cost(epilogue, 16, 8192, 8192)
    assert thin.seconds(h200) == pytest.approx(thin.fused_bytes / 4.8e12)
    assert thin.as_dict()["gpus"]["H200"]["bound"] == "memory"
