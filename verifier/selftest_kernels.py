"""Two tiny kernels that :func:`verifier.interpreter.self_test` runs. A module, since triton reads their source."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i, tl.load(x_ptr + i).to(tl.bfloat16))


@triton.jit
def dot(a_ptr, b_ptr, c_ptr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(c_ptr + at, c)
