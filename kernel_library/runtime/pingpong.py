"""The second mainloop, for Hopper: two warp groups take turns on the tensor cores.

One program runs on each multiprocessor, in four parts. The *producer* (one warp) streams blocks of A and W through
shared memory. Two *consumers* (four warps each) take every other tile: while one multiplies, the other runs the
epilogue of its last tile, which then costs no time on the tensor cores. The *loader* (one warp) fetches the tiles that
epilogues read, a sub-tile at a time and ahead of need.

The epilogue is the plain mainloop's, from the same text (see ``gluon_tile``), and the results are verified against it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .gluon_tile import LoadedTile, even_odd, gluon_form, interleave, linear, split_columns
from .launch import COLUMNS, Plan, descriptor_allowed, shape_of, width_of
from .tile import tile_coordinates

if TYPE_CHECKING:
    from .config import Config
    from .kernel import Kernel
    from .spec import Output

#: Tiles that an epilogue may load, and as many that it may store: each is an argument of the kernel.
TILES = 4
#: Registers of a thread: of the second consumer, of the producer and of the loader. The first consumer has the rest.
_REGISTERS = gl.constexpr((232, 24, 24))


# --- Rings of buffers ------------------------------------------------------------------------------------------------
# A slot is *ready* once it was filled and *empty* once it was read: two barriers, whose phase turns over with each
# round through the ring.


@gluon.jit
def _ring(descriptor, STAGES: gl.constexpr):
    block: gl.constexpr = descriptor.block_type.shape
    return gl.allocate_shared_memory(descriptor.dtype, [STAGES, block[0], block[1]], descriptor.layout)


@gluon.jit
def _rings(descriptors, STAGES: gl.constexpr):
    if len(descriptors) == 0:
        return ()
    else:
        return (_ring(descriptors[0], STAGES),) + _rings(descriptors[1:], STAGES)


@gluon.jit
def _barriers(COUNT: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=1)
    return barriers


@gluon.jit
def _after(slot, phase, STAGES: gl.constexpr):
    """The slot after this one, and its phase."""
    slot += 1
    wrap = slot == STAGES
    return gl.where(wrap, 0, slot), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _before(slot, STAGES: gl.constexpr):
    """The slot before this one. Computed: a loop would not carry ``last = slot`` along but keep its first value."""
    return gl.where(slot == 0, STAGES - 1, slot - 1)


# --- The producer and the loader -------------------------------------------------------------------------------------


@gluon.jit
def _produce(A, ws, a_ring, w_rings, ready, empty, sizes, GROUP_M: gl.constexpr, W_K_MAJOR: gl.constexpr):
    """Keep the rings of A and W filled, for one tile after the other. W comes in one piece or in two."""
    BLOCK_K: gl.constexpr = a_ring.shape[2]
    BLOCK_N: gl.constexpr = _columns(w_rings, W_K_MAJOR)
    tiles_m, tiles_n, steps = sizes
    slot = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * a_ring.shape[1]
        for step in range(steps):
            k = step * BLOCK_K
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(ready.index(slot), (a_ring.shape[1] + BLOCK_N) * BLOCK_K * 2)
            tma.async_copy_global_to_shared(A, [row, k], ready.index(slot), a_ring.index(slot))
            for i in gl.static_range(len(ws)):
                col = tile_n * BLOCK_N + i * _columns(w_rings[:1], W_K_MAJOR)
                if W_K_MAJOR:
                    tma.async_copy_global_to_shared(ws[i], [col, k], ready.index(slot), w_rings[i].index(slot))
                else:
                    tma.async_copy_global_to_shared(ws[i], [k, col], ready.index(slot), w_rings[i].index(slot))
            slot, phase = _after(slot, phase, STAGES=a_ring.shape[0])


@gluon.jit
def _load(
    loads, rings, ready, empty, sizes, BLOCK_M: gl.constexpr, GROUP_M: gl.constexpr, SUBTILES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch what the epilogues read, in the order in which their sub-tiles come."""
    tiles_m, tiles_n, _ = sizes
    tiles = tiles_m * tiles_n if len(loads) > 0 else 0
    slot = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        for i in range(SUBTILES):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(ready.index(slot), _bytes(loads))
            for j in gl.static_range(len(loads)):
                col = (tile_n * SUBTILES + i) * loads[j].block_type.shape[1]
                tma.async_copy_global_to_shared(
                    loads[j], [tile_m * BLOCK_M, col], ready.index(slot), rings[j].index(slot)
                )
            slot, phase = _after(slot, phase, STAGES)


@gluon.constexpr_function
def _bytes(descriptors):
    return sum(descriptor.block_type.nbytes for descriptor in descriptors)


@gluon.constexpr_function
def _columns(w_rings, W_K_MAJOR):
    return sum(ring.shape[1 if W_K_MAJOR else 2] for ring in w_rings)


# --- The consumers ---------------------------------------------------------------------------------------------------


@gluon.jit
def _consume(
    a_ring, w_rings, ready, empty, turn, rings, loaded, released, order, stores, vectors, partials, sizes, M, N,
    GROUP_M: gl.constexpr, SUBTILES: gl.constexpr, W_K_MAJOR: gl.constexpr, LOAD_STAGES: gl.constexpr,
    epilogue: gl.constexpr, start: gl.constexpr, finish: gl.constexpr, FLAGS: gl.constexpr, FINISH_FLAGS: gl.constexpr,
    WHO: gl.constexpr,
):  # fmt: skip
    """Multiply every other tile, then run its epilogue while the other consumer multiplies."""
    BLOCK_M: gl.constexpr = a_ring.shape[1]
    BLOCK_N: gl.constexpr = _columns(w_rings, W_K_MAJOR)
    WIDTH: gl.constexpr = BLOCK_N // SUBTILES
    tiles_m, tiles_n, steps = sizes
    programs = gl.num_programs(0)
    phase = 1 - WHO
    number = WHO
    for tile in range(gl.program_id(0) + WHO * programs, tiles_m * tiles_n, 2 * programs):
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * BLOCK_M
        col = tile_n * BLOCK_N
        mbarrier.wait(turn.index(WHO), phase)
        if len(w_rings) == 1:
            acc = _multiply(a_ring, w_rings[0], ready, empty, turn.index(1 - WHO), number, steps, W_K_MAJOR)
            pieces = _pieces(acc, WIDTH)
        else:
            acc, tail = _multiply_two(a_ring, w_rings, ready, empty, turn.index(1 - WHO), number, steps, W_K_MAJOR)
            pieces = _pieces(acc, WIDTH) + _pieces(tail, WIDTH)
        if start is not None:
            states = start(BLOCK_M)
        if len(rings) > 0:
            mbarrier.wait(order.index(WHO), phase)  # the loader serves the tiles one after the other
        for i in gl.static_range(SUBTILES):
            place = number * SUBTILES + i
            slot = place % LOAD_STAGES
            if len(rings) > 0:
                mbarrier.wait(loaded.index(slot), place // LOAD_STAGES & 1)
            tiles = _loaded(rings, slot, pieces[i])
            if start is not None:
                states = epilogue(
                    pieces[i], *states, row, col + i * WIDTH, M, N, *tiles, *stores, *vectors, BLOCK_M, WIDTH,
                    *gl.tuple(FLAGS),
                )  # fmt: skip
            else:
                epilogue(
                    pieces[i], row, col + i * WIDTH, M, N, *tiles, *stores, *vectors, BLOCK_M, WIDTH, *gl.tuple(FLAGS)
                )
            if len(rings) > 0:
                mbarrier.arrive(released.index(slot))
        if len(rings) > 0:
            mbarrier.arrive(order.index(1 - WHO))
        if finish is not None:
            finish(*states, tile_n, row, M, *partials, BLOCK_M, *gl.tuple(FINISH_FLAGS))
        phase ^= 1
        number += 2


@gluon.jit
def _multiply(a_ring, w_ring, ready, empty, other, number, steps, W_K_MAJOR: gl.constexpr):
    """The product of one tile; the tensor cores go to the ``other`` consumer once its last step is under way."""
    ORDER: gl.constexpr = (1, 0) if W_K_MAJOR else (0, 1)
    STAGES: gl.constexpr = a_ring.shape[0]
    slot = number * steps % STAGES
    phase = number * steps // STAGES & 1
    acc = _accumulator(a_ring, w_ring, W_K_MAJOR)
    for step in range(steps):
        mbarrier.wait(ready.index(slot), phase)
        acc = warpgroup_mma(a_ring.index(slot), w_ring.index(slot).permute(ORDER), acc, is_async=True, use_acc=step > 0)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(acc,)))
        mbarrier.arrive(empty.index(_before(slot, STAGES)), pred=step > 0)
        slot, phase = _after(slot, phase, STAGES)
    mbarrier.arrive(other)
    result = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index(_before(slot, STAGES)))
    return linear(result)


@gluon.jit
def _multiply_two(a_ring, w_rings, ready, empty, other, number, steps, W_K_MAJOR: gl.constexpr):
    """The same of a tile in two pieces, whose width together is no power of two."""
    ORDER: gl.constexpr = (1, 0) if W_K_MAJOR else (0, 1)
    STAGES: gl.constexpr = a_ring.shape[0]
    slot = number * steps % STAGES
    phase = number * steps // STAGES & 1
    acc = _accumulator(a_ring, w_rings[0], W_K_MAJOR)
    tail = _accumulator(a_ring, w_rings[1], W_K_MAJOR)
    for step in range(steps):
        mbarrier.wait(ready.index(slot), phase)
        a = a_ring.index(slot)
        acc = warpgroup_mma(a, w_rings[0].index(slot).permute(ORDER), acc, is_async=True, use_acc=step > 0)
        tail = warpgroup_mma(a, w_rings[1].index(slot).permute(ORDER), tail, is_async=True, use_acc=step > 0)
        acc_done, tail_done = warpgroup_mma_wait(2, deps=(acc, tail))
        acc = warpgroup_mma_init(acc_done)
        tail = warpgroup_mma_init(tail_done)
        mbarrier.arrive(empty.index(_before(slot, STAGES)), pred=step > 0)
        slot, phase = _after(slot, phase, STAGES)
    mbarrier.arrive(other)
    result, tail_result = warpgroup_mma_wait(0, deps=(acc, tail))
    mbarrier.arrive(empty.index(_before(slot, STAGES)))
    return linear(result), linear(tail_result)


@gluon.jit
def _accumulator(a_ring, w_ring, W_K_MAJOR: gl.constexpr):
    ROWS: gl.constexpr = a_ring.shape[1]
    WIDTH: gl.constexpr = w_ring.shape[1] if W_K_MAJOR else w_ring.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    return warpgroup_mma_init(gl.zeros((ROWS, WIDTH), gl.float32, layout))


@gluon.jit
def _pieces(acc, WIDTH: gl.constexpr):
    """Sub-tiles of WIDTH columns, left to right."""
    if acc.shape[1] == WIDTH:
        return (acc,)
    else:
        left, right = split_columns(acc)
        return _pieces(left, WIDTH) + _pieces(right, WIDTH)


@gluon.jit
def _loaded(rings, slot, piece):
    """What the epilogue loads for one sub-tile: as wide as it, half as wide, or twice."""
    if len(rings) == 0:
        return ()
    else:
        if rings[0].shape[2] == piece.shape[1]:
            layout: gl.constexpr = piece.type.layout
        elif rings[0].shape[2] < piece.shape[1]:
            even, _ = even_odd(piece)
            layout: gl.constexpr = even.type.layout
        else:
            pair = interleave(piece, piece)
            layout: gl.constexpr = pair.type.layout
        return (LoadedTile(rings[0].index(slot), layout),) + _loaded(rings[1:], slot, piece)


# --- The program -----------------------------------------------------------------------------------------------------


@gluon.jit
def gemm(
    A, W, W_tail, load0, load1, load2, load3, store0, store1, store2, store3, vectors, partials, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, SUBTILES: gl.constexpr,
    STAGES: gl.constexpr, LOAD_STAGES: gl.constexpr, W_K_MAJOR: gl.constexpr, PARTS: gl.constexpr, LOADS: gl.constexpr,
    STORES: gl.constexpr, epilogue: gl.constexpr, start: gl.constexpr, finish: gl.constexpr, FLAGS: gl.constexpr,
    FINISH_FLAGS: gl.constexpr,
):  # fmt: skip
    """A (M, K) @ W.T, W (N, K), and its epilogue; matrices, tiles loaded and tiles stored are TMA descriptors.

    ``vectors`` and ``partials`` are what else the epilogue and ``finish`` take, in their order.
    """
    ws = (W, W_tail)[:PARTS]
    loads = (load0, load1, load2, load3)[:LOADS]
    stores = (store0, store1, store2, store3)[:STORES]
    sizes = (gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), gl.cdiv(K, BLOCK_K))
    a_ring = _ring(A, STAGES)
    w_rings = _rings(ws, STAGES)
    ready = _barriers(STAGES)
    empty = _barriers(STAGES)
    turn = _barriers(2)
    rings = _rings(loads, LOAD_STAGES)
    loaded = _barriers(LOAD_STAGES)
    released = _barriers(LOAD_STAGES)
    order = _barriers(2)
    gl.warp_specialize(
        [
            (_consume, (a_ring, w_rings, ready, empty, turn, rings, loaded, released, order, stores, vectors, partials, sizes, M, N, GROUP_M, SUBTILES, W_K_MAJOR, LOAD_STAGES, epilogue, start, finish, FLAGS, FINISH_FLAGS, 0)),
            (_consume, (a_ring, w_rings, ready, empty, turn, rings, loaded, released, order, stores, vectors, partials, sizes, M, N, GROUP_M, SUBTILES, W_K_MAJOR, LOAD_STAGES, epilogue, start, finish, FLAGS, FINISH_FLAGS, 1)),
            (_produce, (A, ws, a_ring, w_rings, ready, empty, sizes, GROUP_M, W_K_MAJOR)),
            (_load, (loads, rings, loaded, released, sizes, BLOCK_M, GROUP_M, SUBTILES, LOAD_STAGES)),
        ],
        [4, 1, 1],
        _REGISTERS,
    )  # fmt: skip


# --- On the host -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """A kernel's epilogue in Gluon, and the names of its parameters by kind."""

    epilogue: Any
    start: Any
    finish: Any
    loads: tuple[str, ...]
    stores: tuple[str, ...]
    vectors: tuple[str, ...]
    partials: tuple[str, ...]
    flags: tuple[str, ...]
    finish_flags: tuple[str, ...]


@functools.cache
def _form(kernel: "Kernel") -> _Form:
    names = kernel.epilogue.arg_names
    passed = names[names.index("N") + 1 : names.index("BLOCK_M")]
    loads = [f"{operand.name}_ptr" for operand in kernel.operands if operand.extent in COLUMNS]
    stores = [f"{output.name}_ptr" for output in kernel.outputs if not output.reduction]
    ends = kernel.finish.arg_names if kernel.finish else []
    return _Form(
        gluon_form(kernel.epilogue),
        gluon_form(kernel.start) if kernel.start else None,
        gluon_form(kernel.finish) if kernel.finish else None,
        tuple(name for name in passed if name in loads),
        tuple(name for name in passed if name in stores),
        tuple(name for name in passed if name not in loads and name not in stores),
        tuple(name for name in ends if name.endswith("_partial")),
        tuple(names[names.index("BLOCK_N") + 1 :]),
        tuple(ends[ends.index("BLOCK_M") + 1 :]) if ends else (),
    )


def fits(
    kernel: "Kernel",
    a: Tensor,
    w: Tensor,
    operands: Mapping[str, Any],
    config: "Config",
    selected: Sequence["Output"],
    out: Mapping[str, Tensor],
) -> bool:
    """Whether this mainloop can run the problem: half precision, A along K, everything as TMA asks."""
    if kernel.epilogue is None or a.dtype not in (torch.bfloat16, torch.float16):
        return False
    if not descriptor_allowed(a) or not descriptor_allowed(w if w.stride(1) == 1 else w.T):
        return False
    form = _form(kernel)
    m, n = a.shape[0], w.shape[0]
    tiles = {name: operands[name] for name in (pointer.removesuffix("_ptr") for pointer in form.loads)}
    for output in selected:
        if not output.reduction:
            empty = a.new_empty(shape_of(output.extent, m, n), device="meta")
            tiles[f"({output.name})"] = out.get(output.name, empty)
    return len(form.loads) <= TILES and len(form.stores) <= TILES and all(_tile_fits(tile) for tile in tiles.values())


def _tile_fits(tile: Tensor) -> bool:
    return descriptor_allowed(tile if tile.stride(1) == 1 else tile.contiguous())


class PingPongPlan(Plan):
    """A launch behind this mainloop."""

    def __init__(
        self,
        kernel: "Kernel",
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: "Config",
        selected: Sequence["Output"],
        out: Mapping[str, Tensor],
    ) -> None:
        super().__init__(kernel, a, w, operands, config, selected, out)
        self.gemm = gemm
        self.options = {"num_warps": 4}

    def _arguments(
        self,
        kernel: "Kernel",
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: "Config",
        out: Mapping[str, Tensor],
    ) -> list[Any]:
        form = _form(kernel)
        w_k_major = w.stride(1) == 1
        stores = [name if name.removesuffix("_ptr") in self.tiles else None for name in form.stores]
        blocks: list[tuple[str | None, list[int]]] = [("(a)", [config.block_m, config.block_k])]
        for columns in (config.block_n - config.tail, config.tail):
            block = [columns, config.block_k] if w_k_major else [config.block_k, columns]
            blocks.append(("(w)" if columns else None, block))
        for names in (form.loads, stores):
            for name in (*names, *[None] * (TILES - len(names))):
                source = name.removesuffix("_ptr") if name else None
                blocks.append((source, [config.block_m, width_of(kernel, source, config)] if source else []))
        for position, (source, block) in enumerate(blocks):
            if source:
                self.slots.append((position, source, block, source == "(w)" and not w_k_major))
        self.copied += [o.name for o in kernel.operands if _scattered(operands[o.name])]
        stored = {f"STORE_{o.name.upper()}": o.name in self.tiles or o.name in self.workspaces for o in kernel.outputs}
        #: Position and names of the two tuples of further arguments.
        self.tuples = tuple(enumerate((form.vectors, form.partials), len(blocks)))
        self.integers = {operand.name for operand in kernel.operands if operand.element == "int"}
        return [
            *[None] * (len(blocks) + len(self.tuples)),
            *(a.shape[0], w.shape[0], a.shape[1]),
            *(config.block_m, config.block_n, config.block_k, config.group_m, config.subtiles),
            *(config.num_stages, config.load_stages, w_k_major, 2 if config.tail else 1),
            *(len(form.loads), len(form.stores), form.epilogue, form.start, form.finish),
            *(tuple(stored.get(flag, True) for flag in flags) for flags in (form.flags, form.finish_flags)),
        ]

    def _filled(self, tensors: Mapping[str, Any]) -> list[Any]:
        values = super()._filled(tensors)
        for position, names in self.tuples:
            values[position] = tuple(self._value(name, tensors) for name in names)
        return values

    def _value(self, name: str, tensors: Mapping[str, Any]) -> Any:
        source, _, kind = name.rpartition("_")
        if kind == "stride":
            return 0  # a descriptor knows its own
        if kind == "value":
            return (int if source in self.integers else float)(tensors[source])
        return tensors.get(source)

    def _descriptor(self, tensor: Tensor, block: list[int]) -> TensorDescriptor:
        shape, strides = list(tensor.shape), list(tensor.stride())
        return TensorDescriptor(tensor, shape, strides, block, _layout(block[0], block[1], tensor.dtype))


def _scattered(value: Any) -> bool:
    """Whether an operand's last dimension is not contiguous: no form reads it as it is."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.stride(-1) != 1 and value.shape[-1] > 1


@functools.cache
def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    types = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
    return gl.NVMMASharedLayout.get_default_for([rows, columns], types[dtype])
