"""The ping-pong mainloop's own forms of functions of ``tile``, so that one epilogue text serves both mainloops.

In Gluon every tensor has a layout: which thread holds which element. The accumulator brings its own, and what the
epilogue makes of the accumulator inherits it; index vectors begin without one and take that of the tensor they meet.
So an epilogue compiles as it stands, but for the functions that reach memory or pair columns.
"""

import types
from typing import Any

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.core import _aggregate as aggregate

from . import tile


def gluon_form(function: Any) -> Any:
    """A Triton function's own source as a Gluon function, with this module's functions for those of ``tile``."""
    source = function.fn
    replaced = {id(tl): gl, **{id(getattr(tile, form.fn.__name__)): form for form in _FORMS}}
    namespace = {name: replaced.get(id(value), value) for name, value in source.__globals__.items()}
    twin = types.FunctionType(source.__code__, namespace, source.__name__)
    twin.__module__, twin.__qualname__, twin.__doc__ = source.__module__, source.__qualname__, source.__doc__
    twin.__annotations__ = source.__annotations__
    return gluon.jit(twin)


# --- Pairs -----------------------------------------------------------------------------------------------------------


@gluon.jit
def linear(x):
    """``x`` with its layout spelled out, as that of every tile is: equal layouts then compare equal."""
    layout: gl.constexpr = gl.to_linear_layout(x.type.layout, x.shape)
    return gl.convert_layout(x, layout, assert_trivial=True)


@gluon.jit
def even_odd(x):
    """Columns 0, 2, 4, ... and columns 1, 3, 5, ..."""
    even, odd = tile.even_odd(x)
    return linear(even), linear(odd)


@gluon.jit
def interleave(even, odd):
    """The inverse of even_odd."""
    return linear(tile.interleave(even, odd))


@gluon.jit
def split_columns(x):
    """Left and right half of the columns."""
    left, right = tile.split_columns(x)
    return linear(left), linear(right)


# --- Memory ----------------------------------------------------------------------------------------------------------


@aggregate
class LoadedTile:
    """A sub-tile of an operand, in shared memory by the time its epilogue begins, and the layout to read it in."""

    buffer: gl.shared_memory_descriptor
    layout: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, buffer, layout):
        self.buffer = buffer
        self.layout = gl.constexpr(layout)


@gluon.jit
def load_tile(src, row, col, rows, columns, stride, BLOCK_R: gl.constexpr, BLOCK_C: gl.constexpr, TMA: gl.constexpr):
    """The sub-tile that the loader fetched, widened to fp32."""
    return src.buffer.load(src.layout).to(gl.float32)


@gluon.jit
def store_tile(
    dst, value, row, col, rows, columns, stride, BLOCK_R: gl.constexpr, BLOCK_C: gl.constexpr, TMA: gl.constexpr
):
    """Round to the tensor's dtype and store by TMA, from a staging buffer that is free again on return."""
    value = tl.broadcast_to(gl.cast(value, gl.float32), (BLOCK_R, BLOCK_C)).to(dst.dtype)
    staging = gl.allocate_shared_memory(dst.dtype, dst.block_type.shape, dst.layout, value)
    fence_async_shared()
    tma.async_copy_shared_to_global(dst, [row, col], staging)
    tma.store_wait(0)


@gluon.jit
def store_partial(dst, value, slot, index, length):
    """Store one tile's part of a reduction: row ``slot`` of a (tiles, length) fp32 workspace."""
    index = gl.set_auto_layout(index, value.type.layout)
    gl.store(dst + slot.to(gl.int64) * length + index, value, mask=index < length)


_FORMS = (even_odd, interleave, load_tile, store_tile, store_partial)
