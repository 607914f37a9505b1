"""The patched interpreter rounds as torch does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from verifier.interpreter import from_bf16, to_bf16, to_tf32

ROOT = Path(__file__).resolve().parents[2]


def patterns(count: int = 1_000_000) -> np.ndarray:
    """fp32 of every kind: random bits, all ties of bf16, subnormals, infinities and NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)) | np.uint32(0x8000)
    return np.concatenate([bits, ties, ties - np.uint32(1), ties + np.uint32(1)]).view(np.float32)


def test_bf16_is_bit_exact_with_torch() -> None:
    values = patterns()
    expected = torch.from_numpy(values).bfloat16()
    got = torch.from_numpy(to_bf16(values).view(np.int16)).view(torch.bfloat16)
    assert bool((got.isnan() == expected.isnan()).all())
    keep = ~expected.isnan()
    assert bool((got.view(torch.int16)[keep] == expected.view(torch.int16)[keep]).all())


def test_bf16_widens_exactly() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float()
    assert bool(torch.equal(torch.from_numpy(from_bf16(bits)).nan_to_num(7.0), expected.nan_to_num(7.0)))


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    values = np.ones(shape, dtype=np.float32).T
    assert to_bf16(values).shape == values.shape
    assert from_bf16(to_bf16(values)).shape == values.shape
    assert to_tf32(values).shape == values.shape


def test_tf32_keeps_ten_bits() -> None:
    values = np.array([1 + 2.0**-10, 1 + 2.0**-12, 1 + 2.0**-11 + 2.0**-20, np.inf, np.nan], dtype=np.float32)
    assert to_tf32(values)[:4].tolist() == [1 + 2.0**-10, 1.0, 1 + 2.0**-10, np.inf]
    assert np.isnan(to_tf32(values)[4])


def python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=120
    )


def test_the_self_test_passes_once_patched_twice() -> None:
    done = python("""
        from verifier import interpreter
        interpreter.patch()
        interpreter.patch()
        interpreter.self_test()
    """)
    assert done.returncode == 0, done.stderr


def test_the_self_test_refuses_an_unpatched_interpreter() -> None:
    done = python("""
        from verifier import interpreter
        interpreter.self_test()
    """)
    assert "InterpreterError" in done.stderr


def test_importing_the_package_is_cheap() -> None:
    done = python("import sys, verifier; sys.exit('torch' in sys.modules or 'hypothesis' in sys.modules)")
    assert done.returncode == 0, done.stderr
    done = python(
        "from verifier import verify, replay, Case, Report; import verifier; assert callable(verify) and callable(verifier.verify)"
    )
    assert done.returncode == 0, done.stderr
