"""Device functions that every generated kernel is made of: loads, stores, pairs and maps over one output tile.

Values are fp32 in registers. A tile is (BLOCK_M, BLOCK_N), a row vector (1, BLOCK_N), a column vector (BLOCK_M, 1), so
they broadcast as they do in PyTorch. Loads outside the bounds of a tensor give 0, stores outside are dropped.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))


# --- GEMM operands -----------------------------------------------------------------------------------------------


@triton.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile, ordered in groups of GROUP_M rows so that neighbours share W in the L2 cache."""
    group_size = GROUP_M * tiles_n
    first_m = (tile // group_size) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = tile % group_size
    return first_m + within % rows, within // rows


@triton.jit
def load_operand(
    src,
    row,
    k,
    rows,
    K,
    stride_row,
    stride_k,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TMA: tl.constexpr,
    K_MAJOR: tl.constexpr,
):
    """(BLOCK_R, BLOCK_K) of a GEMM operand (rows, K): by descriptor, in the order it lies in memory, or by pointers."""
    if TMA:
        if K_MAJOR:
            return src.load([row, k])
        else:
            return src.load([k, row]).T
    else:
        r = row + tl.arange(0, BLOCK_R)
        c = k + tl.arange(0, BLOCK_K)
        offsets = r.to(tl.int64)[:, None] * stride_row + c.to(tl.int64)[None, :] * stride_k
        return tl.load(src + offsets, mask=(r < rows)[:, None] & (c < K)[None, :], other=0.0)


# --- Epilogue loads and stores -----------------------------------------------------------------------------------


@triton.jit
def load_tile(src, row, col, rows, columns, stride, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, TMA: tl.constexpr):
    """(BLOCK_R, BLOCK_C) of a (rows, columns) tensor, widened to fp32."""
    if TMA:
        return src.load([row, col]).to(tl.float32)
    else:
        r = row + tl.arange(0, BLOCK_R)
        c = col + tl.arange(0, BLOCK_C)
        offsets = r.to(tl.int64)[:, None] * stride + c[None, :]
        return tl.load(src + offsets, mask=(r < rows)[:, None] & (c < columns)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_tile(
    dst, value, row, col, rows, columns, stride, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, TMA: tl.constexpr
):
    """Round (BLOCK_R, BLOCK_C) to the tensor's dtype and store it."""
    value = tl.broadcast_to(tl.cast(value, tl.float32), (BLOCK_R, BLOCK_C))
    if TMA:
        dst.store([row, col], value.to(dst.dtype))
    else:
        r = row + tl.arange(0, BLOCK_R)
        c = col + tl.arange(0, BLOCK_C)
        offsets = r.to(tl.int64)[:, None] * stride + c[None, :]
        tl.store(dst + offsets, value.to(dst.dtype.element_ty), mask=(r < rows)[:, None] & (c < columns)[None, :])


@triton.jit
def load_row(src, cols, columns):
    """(1, BLOCK_N) of a row vector; floats are widened to fp32."""
    return _widen(tl.load(src + cols, mask=cols < columns, other=0))[None, :]


@triton.jit
def load_col(src, rows, row_count):
    """(BLOCK_M, 1) of a column vector; floats are widened to fp32."""
    return _widen(tl.load(src + rows, mask=rows < row_count, other=0))[:, None]


@triton.jit
def store_partial(dst, value, slot, index, length):
    """Store one tile's part of a reduction: row ``slot`` of a (tiles, length) fp32 workspace."""
    tl.store(dst + slot.to(tl.int64) * length + index, value, mask=index < length)


@triton.jit
def _widen(x):
    if x.dtype.is_floating():
        return x.to(tl.float32)
    else:
        return x


# --- Pairs and sub-tiles: reshapes of registers, free because neighbouring columns sit in one thread ---------------


@triton.jit
def even_odd(x):
    """Columns 0, 2, 4, ... and columns 1, 3, 5, ..."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def interleave(even, odd):
    """The inverse of even_odd."""
    even, odd = tl.broadcast(even, odd)
    return tl.reshape(tl.join(even, odd), (even.shape[0], even.shape[1] * 2))


@triton.jit
def split_columns(x):
    """Left and right half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


# --- Maps ------------------------------------------------------------------------------------------------------------


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def square(x):
    return x * x


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # keeps NaN


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """max(x, 0) + log1p(exp(-|x|)); the quotient makes up for what 1 + e rounds away."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / (u - 1.0)))
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + log1p


@triton.jit
def tanh(x):
    """By exp where that loses nothing, by a minimax polynomial in x * x below 0.6, where 1 - 2 / (e + 1) cancels."""
    magnitude = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * magnitude) + 1.0)
    t = x * x
    poly = -0.006235520821064711 * t + 0.02109021134674549
    poly = poly * t + -0.053870074450969696
    poly = poly * t + 0.13332892954349518
    poly = poly * t + -0.3333333134651184
    small = x + x * t * poly
    return tl.where(magnitude < 0.6, small, tl.where(x < 0, -large, large))


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


# --- Online logsumexp --------------------------------------------------------------------------------------------


@triton.jit
def update_logsumexp(running_max, running_sum, x):
    """Fold the columns of ``x`` into max and sum(exp(x - max)) of each row.

    An infinite maximum (nothing but -inf so far, or a +inf) is shifted by 0 instead: inf - inf would be NaN.
    """
    new_max = tl.maximum(running_max, tl.max(x, axis=1))
    shift = tl.where(tl.abs(new_max) == INFINITY, 0.0, new_max)
    rescaled = running_sum * tl.exp(tl.where(running_max == -INFINITY, -INFINITY, running_max - shift))
    return new_max, rescaled + tl.sum(tl.exp(x - shift[:, None]), axis=1)


@triton.jit
def finish_logsumexp(running_max, running_sum):
    """log(sum(exp(x))) from the states of update_logsumexp."""
    return tl.where(tl.abs(running_max) == INFINITY, 0.0, running_max) + tl.log(running_sum)
