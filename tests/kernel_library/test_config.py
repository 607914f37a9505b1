"""Launch configurations: what is valid, and what is chosen where nobody tuned."""

from __future__ import annotations

import itertools

import pytest

from kernel_library.runtime import Config
from kernel_library.runtime.config import default_config

H200, A100 = {"multiprocessors": 132, "hopper": True}, {"multiprocessors": 108, "hopper": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_m": 0}, "block_m"),
        ({"block_m": -16}, "block_m"),
        ({"block_m": 48}, "power of two"),
        ({"block_n": 100}, "block_n"),
        ({"block_k": 33}, "block_k"),
        ({"block_m": 8}, "at least 16"),
        ({"block_k": 8}, "at least 16"),
        ({"block_m": 32.0}, "block_m"),
        ({"subtiles": 3}, "subtiles"),
        ({"subtiles": 0}, "subtiles"),
        ({"num_warps": 3}, "num_warps"),
        ({"num_warps": 64}, "num_warps"),
        ({"group_m": 0}, "group_m"),
        ({"num_stages": 0}, "num_stages"),
        ({"block_n": 16, "subtiles": 4}, "8 columns"),
    ],
)
def test_invalid(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**changes)  # type: ignore[arg-type]


def test_valid() -> None:
    assert Config() == Config(128, 128, 64)
    assert Config(block_n=32, subtiles=4).subtiles == 4


_SIZES = (0, 1, 2, 7, 16, 33, 100, 128, 1000, 4096, 16384, 32768, 131072)


@pytest.mark.parametrize("gpu", [H200, A100], ids=["hopper", "ampere"])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_defaults_fit_the_machine(gpu: dict[str, int], itemsize: int) -> None:
    for m, n, extra in itertools.product(_SIZES, _SIZES, range(6)):
        config = default_config(m, n, itemsize, **gpu, extra_tiles=extra)  # type: ignore[arg-type]
        operands = (config.block_m + config.block_n) * config.block_k * itemsize * config.num_stages
        assert operands <= (227 if gpu["hopper"] else 163) * 1024
        # The accumulator takes at most 128 registers of a thread's 255.
        assert config.block_m * config.block_n / (32 * config.num_warps) <= 128
        assert config.block_m * config.num_warps >= 64 or config.block_m == 16


def test_defaults_follow_the_shape() -> None:
    def tile(m: int, n: int, itemsize: int = 2, extra: int = 1) -> tuple[int, int]:
        config = default_config(m, n, itemsize, **H200, extra_tiles=extra)  # type: ignore[arg-type]
        return config.block_m, config.block_n

    assert tile(16384, 16384) == (128, 256)
    assert tile(1, 4096)[0] == 16
    assert tile(32, 4096)[0] <= 32
    assert max(tile(4096, 4096, itemsize=4)) <= 64
    large, small = tile(8192, 8192), tile(512, 512)
    assert large[0] * large[1] > small[0] * small[1]


def test_epilogues_with_many_tiles_are_cut_finer() -> None:
    few, many = (default_config(16384, 16384, 2, **H200, extra_tiles=extra) for extra in (1, 4))  # type: ignore[arg-type]
    assert many.subtiles >= few.subtiles
    assert many.block_n // many.subtiles <= few.block_n // few.subtiles
