"""Making Triton's interpreter round as a GPU does, so that bounds measured on it mean something.

Three differences are removed, in this process only, by replacing methods of the interpreter's builder:

* a bf16 ``tl.dot`` multiplies raw 16-bit patterns (bf16 is stored as uint16): the operands are widened to fp32;
* fp32 → bf16 truncates: it is rounded to nearest even, NaN kept, as torch and the hardware do;
* ``input_precision="tf32"`` multiplies in full fp32, which would hide a kernel that forgot to ask for IEEE fp32: the
  operands lose the thirteen bits that TF32 drops.

Methods are looked for before they are replaced; triton 3.6 to 3.9 have them all. :func:`self_test` has the last word.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

_MARK = "_coda_rounding"


class InterpreterError(RuntimeError):
    """The interpreter of the installed triton cannot be trusted to round."""


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """fp32 → bf16 bit patterns, to nearest even; NaN stays NaN. Same shape. Bit-exact with torch, subnormals included."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(np.shape(values))
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    quiet = np.uint16(0x7FC0) | (bits >> np.uint32(16)).astype(np.uint16)
    return np.asarray(np.where(np.isnan(values), quiet, rounded), dtype=np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bf16 bit patterns → fp32, exactly. Same shape."""
    wide = np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)
    return np.asarray(wide.view(np.float32).reshape(np.shape(bits)))


def to_tf32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """fp32 with the mantissa of TF32, ten bits, to nearest (ties away). Infinities and NaN are kept."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(np.shape(values))
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.asarray(np.where(np.isfinite(values), rounded, values), dtype=np.float32)


def patch() -> None:
    """Replace the builder's casts and dot. Idempotent; needs ``TRITON_INTERPRET=1`` set before triton is imported."""
    import triton.language as tl
    from triton.runtime import interpreter

    np.seterr(all="ignore")
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    builder = interpreter.InterpreterBuilder
    if getattr(builder, _MARK, False):
        return
    missing = [name for name in ("cast_impl", "create_fp_to_fp", "create_dot") if not hasattr(builder, name)]
    if missing:
        raise InterpreterError(f"this triton's interpreter has no {', '.join(missing)}; use triton 3.6 to 3.9")
    handle = interpreter.TensorHandle
    plain_cast, plain_convert, plain_dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    def widen(source: Any) -> Any:
        return handle(from_bf16(source.data), tl.float32)

    def narrow(source: Any) -> Any:
        return handle(to_bf16(source.data), tl.bfloat16)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.bfloat16 and target != tl.bfloat16:
            wide = widen(src)
            return wide if target == tl.float32 else plain_cast(self, wide, dst_type)
        if target == tl.bfloat16 and source != tl.bfloat16:
            return narrow(src if source == tl.float32 else plain_cast(self, src, tl.float32))
        return plain_cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        # Only conversions that name a rounding mode come here; towards zero is what triton already does.
        source, target = src.dtype.scalar, dst_type.scalar
        if source == tl.float32 and target == tl.bfloat16 and "RTZ" not in str(rounding_mode):
            return narrow(src)
        return plain_convert(self, src, dst_type, rounding_mode)

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        a, b = (widen(x) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        both_fp32 = a.data.dtype == b.data.dtype == np.float32
        if both_fp32 and str(input_precision).rsplit(".", 1)[-1].upper() == "TF32":
            a, b = (handle(to_tf32(x.data), tl.float32) for x in (a, b))
        elif a.data.dtype == np.float16:
            # Exact, and spares numpy a slow mixed-precision loop.
            a, b = (handle(x.data.astype(np.float32), tl.float32) for x in (a, b))
        return plain_dot(self, a, b, d, input_precision, *rest)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.create_dot = create_dot
    setattr(builder, _MARK, True)


def self_test() -> None:
    """Run a tiny bf16 cast and dot through the interpreter; raise :class:`InterpreterError` unless bit-exact."""
    import torch

    from . import selftest_kernels

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, generator=generator) * torch.logspace(-30, 30, 256)
    x[:4] = torch.tensor([1.00390625, 1.01171875, float("inf"), float("nan")])  # two ties, which go to even
    rounded = torch.zeros(256, dtype=torch.bfloat16)
    selftest_kernels.cast[(1,)](x, rounded, 256)
    expected = x.to(torch.bfloat16)
    same = (rounded.view(torch.int16) == expected.view(torch.int16)) | (rounded.isnan() & expected.isnan())
    if not bool(same.all()):
        raise InterpreterError("the interpreter does not round fp32 to bf16 as torch does")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a = torch.randint(-8, 9, (16, 16), generator=generator).to(dtype)
        b = torch.randint(-8, 9, (16, 16), generator=generator).to(dtype)
        c = torch.zeros(16, 16)
        selftest_kernels.dot[(1,)](a, b, c)
        if not bool((c == a.float() @ b.float()).all()):
            raise InterpreterError(f"the interpreter multiplies {dtype} matrices wrongly")
