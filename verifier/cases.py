"""What a kernel is tried on: compact specs that hypothesis draws, and the tensors made from them.

A :class:`Case` is a few numbers and names; it travels as JSON and never holds a tensor. :func:`materialise` turns it
into tensors, the same ones in the parent and in the worker, because both seed the same CPU generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

if TYPE_CHECKING:
    import torch
    from hypothesis.strategies import SearchStrategy

Backend = Literal["interpreter", "cuda"]

DTYPES = ("bf16", "fp16", "fp32")
A_LAYOUTS = ("row", "column", "padded", "offset")
W_LAYOUTS = ("nk", "kn", "padded", "offset")
TILE_LAYOUTS = ("contiguous", "padded", "offset")
OUTPUT_LAYOUTS = ("given", "padded", "odd", "own")
REGIMES = ("normal", "integers", "heavy", "equal", "cancelling", "zeros")
SCALES = (1.0, 1e-3, 16.0)

#: What a case may be followed by: further launches whose results must agree with its own.
RELATIONS = ("", "repeat", "pointers", "tiling", "rows", "columns", "batches")

#: Elements before and after every tensor, so that a stray access meets poison (inputs) or a canary (outputs).
#: 64 elements keep the 16-byte alignment that TMA asks for, in every dtype.
MARGIN = 64

#: Largest amplitude of the integer regime: ±1 and ±2 are exact even with bf16 accumulation, ±8 is not.
AMPLITUDE = 8


class OperandLike(Protocol):
    """An input beside A and W, as operators and kernels describe it."""

    @property
    def name(self) -> str: ...
    @property
    def extent(self) -> str: ...
    @property
    def element(self) -> str: ...
    @property
    def default(self) -> float | int | None: ...


class OutputLike(Protocol):
    """A result, as operators and kernels describe it."""

    @property
    def name(self) -> str: ...
    @property
    def extent(self) -> str: ...
    @property
    def reduction(self) -> str | None: ...
    @property
    def optional(self) -> bool: ...


class SignatureLike(Protocol):
    """The part of an operator that making inputs needs."""

    @property
    def operands(self) -> Sequence[OperandLike]: ...
    @property
    def outputs(self) -> Sequence[OutputLike]: ...


@dataclass(frozen=True)
class Operand:
    """See :class:`OperandLike`."""

    name: str
    extent: str
    element: str = "float"
    default: float | int | None = None


@dataclass(frozen=True)
class Output:
    """See :class:`OutputLike`."""

    name: str
    extent: str
    reduction: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """An operator without its reference: what the worker is told, so that it never imports the user's code."""

    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def of(cls, operator: SignatureLike) -> Signature:
        return cls(
            tuple(Operand(o.name, o.extent, o.element, o.default) for o in operator.operands),
            tuple(Output(o.name, o.extent, o.reduction, o.optional) for o in operator.outputs),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Signature:
        return cls(tuple(Operand(**o) for o in data["operands"]), tuple(Output(**o) for o in data["outputs"]))


@dataclass(frozen=True)
class Tiling:
    """How one launch cuts the problem; the fields of ``kernel_library.runtime.Config``. Never part of the truth."""

    block_m: int = 16
    block_n: int = 16
    block_k: int = 16
    group_m: int = 8
    subtiles: int = 1
    num_warps: int = 4
    num_stages: int = 3
    tma: bool | None = False
    load_tma: bool = False
    store_tma: bool = False
    pingpong: bool = False
    load_stages: int = 2


@dataclass(frozen=True)
class Case:
    """One trial. ``acc`` is (m, n) over a reduction of length k; ``optional`` asks for the optional outputs too.

    ``relation`` names what is launched besides and compared: the same again, the pointer form of a TMA case, another
    tiling (``other``), rows or columns in another order, the rows in two batches. The last fields make the inputs of
    those launches from the inputs of the case: in another ``order``, or rows ``window[0]``, ... of ``window[1]``.
    """

    m: int = 1
    n: int = 2
    k: int = 1
    dtype: str = "bf16"
    regime: str = "normal"
    scale: float = 1.0
    a_layout: str = "row"
    w_layout: str = "nk"
    tile_layout: str = "contiguous"
    output_layout: str = "given"
    optional: bool = True
    relation: str = ""
    tiling: Tiling = Tiling()
    other: Tiling | None = None
    seed: int = 0
    order: str = ""
    window: tuple[int, int] | None = None
    #: Distance between the columns that indices favour; 0: the width of the tiling's sub-tiles.
    border: int = 0

    def __post_init__(self) -> None:
        for value, allowed, what in (
            (self.dtype, DTYPES, "dtype"),
            (self.regime, REGIMES, "regime"),
            (self.a_layout, A_LAYOUTS, "layout of a"),
            (self.w_layout, W_LAYOUTS, "layout of w"),
            (self.tile_layout, TILE_LAYOUTS, "layout of tile operands"),
            (self.output_layout, OUTPUT_LAYOUTS, "layout of outputs"),
            (self.relation, RELATIONS, "relation"),
            (self.order, ("", "rows", "columns"), "order"),
        ):
            if value not in allowed:
                raise ValueError(f"unknown {what} {value!r}: one of {', '.join(allowed)}")
        if self.m < 0 or self.n < 1 or self.k < 1:
            raise ValueError(f"a case needs m >= 0, n >= 1, k >= 1; got {(self.m, self.n, self.k)}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"not a case: unknown fields {', '.join(unknown)}")
        values = dict(data)
        for name in ("tiling", "other"):
            if values.get(name) is not None:
                values[name] = Tiling(**values[name])
        if values.get("window") is not None:
            values["window"] = tuple(values["window"])
        return cls(**values)

    def pitch(self, width: int) -> int:
        """Elements from one row of an output of ``width`` columns to the next."""
        return {"padded": -(-width // 16) * 16 + 16, "odd": width + 3}.get(self.output_layout, width)

    @property
    def step(self) -> int:
        """Columns between the borders that indices favour."""
        return self.border or max(1, self.tiling.block_n // self.tiling.subtiles)

    @property
    def work(self) -> int:
        """A rough size, to tell which of two failing cases is the smaller one."""
        plain = sum(
            (
                self.regime != "normal",
                self.scale != 1.0,
                self.a_layout != "row",
                self.w_layout != "nk",
                self.tile_layout != "contiguous",
                self.output_layout != "given",
                self.relation != "",
                self.tiling != Tiling(),
            )
        )
        return self.m * self.n + (self.m + self.n) * self.k + plain


def extent_shape(extent: str, m: int, n: int) -> tuple[int, ...]:
    """The full shape of an extent, for an accumulator of shape (m, n)."""
    shapes: dict[str, tuple[int, ...]] = {
        "Tile": (m, n),
        "HalfTile": (m, n // 2),
        "PairTile": (m, 2 * n),
        "RowVector": (n,),
        "ColVector": (m,),
        "Scalar": (),
    }
    return shapes[extent]


def is_tile(extent: str) -> bool:
    return extent in ("Tile", "HalfTile", "PairTile")


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "int64": torch.int64}[name]


def column_multiple(signature: SignatureLike) -> int:
    """What n must be divisible by: 2 where columns come in pairs, else 1."""
    extents = [o.extent for o in signature.operands] + [o.extent for o in signature.outputs]
    return 2 if "HalfTile" in extents else 1


# --- drawing ---------------------------------------------------------------------------------------------------------

_BLOCKS = ((16, 16, 16), (16, 32, 16), (32, 16, 32), (32, 32, 32), (32, 64, 32), (64, 32, 16))

#: Block-steps (one tile of one block of K) an interpreted launch may take; each costs 3 to 10 ms.
_INTERPRETER_BUDGET = 72


def _lengths(block: int) -> list[int]:
    """Lengths that meet every edge of a tile of ``block``, simplest first: one, odd, prime, tile ± 1, several tiles."""
    return [1, 2, 3, 5, 7, block - 1, block, block + 1, block + 5, 2 * block, 2 * block + 3, 3 * block + 1]


def _tilings() -> list[Tiling]:
    """For the interpreter: small, so that edges are met."""
    tilings = []
    for m, n, k in _BLOCKS:
        tilings.append(Tiling(m, n, k))
        tilings.append(Tiling(m, n, k, group_m=1, tma=None))
        if n >= 32:
            tilings.append(Tiling(m, n, k, group_m=2, subtiles=2))
            tilings.append(Tiling(m, n, k, subtiles=2, tma=None, store_tma=True, load_tma=n == 32))
    return tilings


@dataclass(frozen=True)
class Form:
    """Everything that one compilation for a GPU is specialised on, so that cases of a form share it.

    ``aligned`` lengths are all multiples of 32, the others are not even multiples of 8, nor are rows that are padded to
    an odd stride: Triton compiles anew for every integer that becomes divisible by 16. ``others`` are tilings that
    occur with the same dtype and layouts; ``pointers`` allows the comparison with the pointer form, ``single`` one row.
    """

    tiling: Tiling
    dtype: str = "bf16"
    aligned: bool = True
    a_layout: str = "row"
    w_layout: str = "nk"
    tile_layout: str = "contiguous"
    output_layout: str = "given"
    optional: bool = True
    others: tuple[Tiling, ...] = ()
    pointers: bool = False
    single: bool = False


def forms(operator: SignatureLike, tilings: Sequence[Tiling] | None = None) -> list[Form]:
    """The forms a kernel is compiled in for a GPU: few, since a compilation takes a second or more."""
    extents = [o.extent for o in operator.operands] + [o.extent for o in operator.outputs]
    tiles = sum(map(is_tile, extents))
    small, medium = Tiling(64, 64, 64), Tiling(128, 128, 64, num_warps=8)
    wide = Tiling(128, 256, 64, num_warps=8, subtiles=4 if tiles >= 3 else 2, tma=None, store_tma=True)
    tma = replace(medium, tma=None, load_tma=True, store_tma=True, subtiles=2)
    # The second mainloop; where a GPU cannot run it, the library runs the plain one instead.
    turns = Tiling(128, 128, 64, num_stages=4, subtiles=4, tma=None, pingpong=True)
    wider = replace(turns, block_n=192, subtiles=6 if tiles >= 3 else 3)
    single = Tiling(64, 64, 32)  # IEEE fp32 multiplies on the CUDA cores: larger accumulators spill, slowly
    if tilings is not None:
        chosen = tuple(dict.fromkeys(tilings))
        return [
            *(Form(t, others=tuple(x for x in chosen if x != t)) for t in chosen),
            *(Form(replace(t, block_m=min(t.block_m, 64), block_n=min(t.block_n, 64), subtiles=1, num_warps=4), aligned=False) for t in chosen[:1]),
        ]  # fmt: skip
    main = (small, replace(medium, tma=None), wide, tma, turns, wider)
    return [
        *(Form(t, others=tuple(x for x in main if x != t), pointers=t == tma) for t in main),
        Form(small, aligned=False, others=(replace(small, block_n=128),), single=True),
        Form(replace(small, block_n=128), aligned=False, others=(small,)),
        Form(tma, "bf16", False, "padded", "padded", "padded", "padded"),
        Form(replace(small, block_n=128, subtiles=2), "bf16", False, "offset", "kn", "offset", "odd", optional=False),
        Form(replace(medium, tma=None, store_tma=True), "fp16", True, "column", "kn"),
        Form(turns, "fp16", True, "row", "kn", optional=False),
        Form(small, "fp16", False, "row", "offset", "padded", "padded"),
        Form(single, "fp32"),
        Form(replace(single, subtiles=2), "fp32", False, "column", "padded", "offset", "odd", optional=False),
    ]


def _aligned(multiples: Sequence[int]) -> list[int]:
    return [32 * x for x in multiples]


def _form_lengths(form: Form, multiple: int) -> tuple[list[int], list[int], list[int]]:
    """Lengths of M, N and K that keep to a form's compilation, simplest first."""
    bm, bn = form.tiling.block_m, form.tiling.block_n
    if form.aligned:
        # Beside a tile, half a tile: the last tile of a row or column is a partial one.
        m, n = (_aligned((1, 2, b // 32 - 1, b // 32, b // 32 + 1, 2 * b // 32 + 1, 4 * b // 32, 24)) for b in (bm, bn))
        return [x for x in m if x], [x for x in n if x], _aligned((1, 2, 3, 5, 8, 16, 33))
    m = [1] * form.single + [3, 5, 7, bm - 1, bm + 1, bm + 5, 2 * bm + 3, 3 * bm + 1, 517]
    n = (
        [6, 10, 14, bn - 2, bn + 2, bn + 6, 2 * bn + 2, 3 * bn + 2, 518]
        if multiple == 2
        else [3, 5, 7, bn - 1, bn + 1, bn + 5, 2 * bn + 3, 3 * bn + 1, 517]
    )
    return m, n, [3, 7, 25, 63, 65, 71, 131, 193, 515, 1031]


def strategy(
    operator: SignatureLike,
    *,
    backend: Backend = "interpreter",
    regimes: Sequence[str] = REGIMES,
    dtypes: Sequence[str] = DTYPES,
    tilings: Sequence[Tiling] | None = None,
    empty: bool = False,
) -> SearchStrategy[Case]:
    """Specs for ``operator``, simplest first so that shrinking ends in a small case. ``empty`` draws m = 0 only.

    ``tilings`` are the configurations to try (default: a spread for the backend); tuned ones belong here too.
    """
    if backend == "cuda":
        return _strategy_of_forms(operator, regimes, dtypes, forms(operator, tilings), empty)
    from hypothesis import strategies as st

    multiple = column_multiple(operator)
    tiled = any(is_tile(o.extent) for o in operator.operands)
    choices = list(tilings) if tilings is not None else _tilings()

    @st.composite
    def draw_case(draw: Callable[[SearchStrategy[Any]], Any]) -> Case:
        dtype = draw(st.sampled_from(list(dtypes)))
        tiling: Tiling = draw(st.sampled_from(choices))
        bm, bn, bk = tiling.block_m, tiling.block_n, tiling.block_k
        m = 0 if empty else draw(st.sampled_from(_lengths(bm)))
        n = draw(st.sampled_from(_lengths(bn)))
        n += -n % multiple
        # Multiples of 16 come often: only they have rows that TMA accepts.
        lengths = [16, 1, 2, 3, 7, bk - 1, bk, bk + 1, 2 * bk, 2 * bk + 3, 4 * bk, 4 * bk + 1, 97, 128, 193]
        if m <= bm and n <= bn:
            lengths += [257, 509, 1024]
        k = draw(st.sampled_from(lengths))
        tiles = max(1, -(-m // bm)) * -(-n // bn) * tiling.subtiles
        k = min(k, max(1, _INTERPRETER_BUDGET // tiles - 2) * bk)
        regime = draw(st.sampled_from(list(regimes)))
        relation = draw(st.sampled_from(_relations(m, pointers=tiling.tma is not False, tiling=True)))
        return Case(
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            regime=regime,
            scale=draw(st.sampled_from(SCALES)) if regime in _SCALED else 1.0,
            a_layout=draw(st.sampled_from(A_LAYOUTS)),
            w_layout=draw(st.sampled_from(W_LAYOUTS)),
            tile_layout=draw(st.sampled_from(TILE_LAYOUTS)) if tiled else "contiguous",
            output_layout=draw(st.sampled_from(OUTPUT_LAYOUTS)),
            optional=draw(st.sampled_from((True, True, False))),
            relation=relation,
            tiling=tiling,
            other=draw(st.sampled_from(choices)) if relation == "tiling" else None,
            seed=draw(st.integers(0, _LARGEST_SEED)),
        )

    return draw_case()


_SCALED = ("normal", "heavy", "cancelling")


_LARGEST_SEED = 2**31 - 2


def _relations(m: int, *, pointers: bool, tiling: bool) -> list[str]:
    """What may be drawn. Half of the cases have none, since a relation costs one or two more launches."""
    if m == 0:
        return [""]
    found = ["repeat", "columns"] + ["pointers"] * pointers + ["tiling"] * tiling + ["rows", "batches"] * (m > 1)
    return [""] * len(found) + found


def _strategy_of_forms(
    operator: SignatureLike, regimes: Sequence[str], dtypes: Sequence[str], choices: Sequence[Form], empty: bool
) -> SearchStrategy[Case]:
    from hypothesis import strategies as st

    multiple = column_multiple(operator)
    choices = [form for form in choices if form.dtype in dtypes]

    @st.composite
    def draw_case(draw: Callable[[SearchStrategy[Any]], Any]) -> Case:
        form: Form = draw(st.sampled_from(choices))
        ms, ns, ks = _form_lengths(form, multiple)
        m = 0 if empty else draw(st.sampled_from(ms))
        regime = draw(st.sampled_from(list(regimes)))
        relation = draw(st.sampled_from(_relations(m, pointers=form.pointers, tiling=bool(form.others) and m > 1)))
        return replace(
            form_case(form, m, draw(st.sampled_from(ns)), draw(st.sampled_from(ks))),
            regime=regime,
            scale=draw(st.sampled_from(SCALES)) if regime in _SCALED else 1.0,
            relation=relation,
            other=draw(st.sampled_from(form.others)) if relation == "tiling" else None,
            # What the kernel allocates itself lies as a contiguous output that it is given.
            output_layout=draw(st.sampled_from(("given", "own")))
            if form.output_layout == "given"
            else form.output_layout,
            seed=draw(st.integers(0, _LARGEST_SEED)),
        )

    return draw_case()


def form_case(form: Form, m: int, n: int, k: int) -> Case:
    """A case of a form; the lengths must keep to it."""
    return Case(
        m=m,
        n=n,
        k=k,
        dtype=form.dtype,
        a_layout=form.a_layout,
        w_layout=form.w_layout,
        tile_layout=form.tile_layout,
        output_layout=form.output_layout,
        optional=form.optional,
        tiling=form.tiling,
    )


def compilations(operator: SignatureLike, tilings: Sequence[Tiling] | None = None) -> list[Case]:
    """One small case for each compilation that :func:`strategy` asks of a GPU."""
    multiple = column_multiple(operator)
    found = []
    for form in forms(operator, tilings):
        m, n, k = (lengths[1] for lengths in _form_lengths(form, multiple))
        found.append(form_case(form, m, n, k))
        if form.single:
            found.append(form_case(form, 1, n, k))
        if form.pointers:
            pointers = replace(form.tiling, tma=False, load_tma=False, store_tma=False)
            found.append(replace(found[-1], tiling=pointers))
        known = [f.tiling for f in forms(operator, tilings) if f.dtype == form.dtype and f.aligned == form.aligned]
        found += [replace(found[-1], tiling=t) for t in form.others if t not in known]
    return found


def revealing(operator: SignatureLike, backend: Backend, seed: int) -> list[Case]:
    """A fixed list on which wrong kernels show, the most telling first: what mutants are judged on.

    Ragged and over several tiles a program, each dtype, integers, pointers and TMA, sub-tiles, padded and odd strides,
    a long K, relations. Few forms, since every mutant is compiled anew for each on a GPU.
    """
    multiple = column_multiple(operator)
    tiled = any(is_tile(o.extent) for o in operator.operands)
    if backend == "cuda":
        a, b = Tiling(64, 64, 32), Tiling(64, 64, 64, subtiles=2, tma=None, load_tma=True, store_tma=True)
        ragged = Case(m=201, n=198, k=203, tiling=a, output_layout="odd", dtype="fp32")
        cases = [
            ragged,
            replace(ragged, dtype="bf16", regime="integers"),
            replace(ragged, dtype="bf16", relation="rows"),
            replace(ragged, regime="heavy", relation="columns"),
            Case(m=224, n=224, k=160, tiling=b, output_layout="padded", dtype="fp16", relation="repeat"),
            replace(ragged, dtype="bf16", regime="cancelling", k=1003),
        ]
    else:
        small, wide = Tiling(16, 16, 16, group_m=2), Tiling(16, 32, 32, subtiles=2)
        ragged = Case(m=37, n=42, k=41, tiling=small, output_layout="odd", dtype="fp32")
        cases = [
            ragged,
            replace(ragged, dtype="bf16", regime="integers", k=105, n=26, output_layout="padded", relation="repeat"),
            Case(m=35, n=70, k=65, tiling=wide, a_layout="column", w_layout="kn", output_layout="padded", dtype="bf16"),
            Case(m=33, n=64, k=64, tiling=replace(wide, tma=None, load_tma=True, store_tma=True), dtype="fp16"),
            replace(ragged, regime="heavy", a_layout="offset", w_layout="padded", output_layout="own", relation="columns"),
            replace(ragged, dtype="bf16", regime="cancelling", k=209, n=22, relation="rows"),
            replace(ragged, dtype="bf16", scale=16.0, n=58, m=21, optional=False, relation="batches"),
            replace(ragged, dtype="fp16", m=1, n=50),
        ]  # fmt: skip
    return [
        replace(
            case,
            n=case.n + -case.n % multiple,
            tile_layout="padded" if tiled and i % 2 else "contiguous",
            seed=seed + i,
        )
        for i, case in enumerate(cases)
    ]


# --- materialising ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A tensor inside a larger flat buffer, whose other elements are poison: NaN, or a wild index."""

    storage: torch.Tensor  # (elements,)
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def view(self) -> torch.Tensor:
        return self.storage.as_strided(self.size, self.stride, self.offset)

    def to(self, device: str) -> Placed:
        return replace(self, storage=self.storage.to(device))


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case: a (M, K), w (N, K), and the operands, tensors by extent or Python numbers."""

    placed: dict[str, Placed]
    scalars: dict[str, float | int]
    order: tuple[str, ...]

    @property
    def a(self) -> torch.Tensor:
        return self.placed["a"].view

    @property
    def w(self) -> torch.Tensor:
        return self.placed["w"].view

    @property
    def operands(self) -> dict[str, Any]:
        """Operands by name, in the operator's order."""
        return {
            name: self.scalars[name] if name in self.scalars else self.placed["operand " + name].view
            for name in self.order
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers by name."""
        return {name.removeprefix("operand "): placed.storage for name, placed in self.placed.items()}

    def to(self, device: str) -> Inputs:
        return replace(self, placed={name: placed.to(device) for name, placed in self.placed.items()})

    def digest(self) -> str:
        """SHA-256 of every byte of every input, poison included: any write to an input changes it."""
        import torch

        state = hashlib.sha256()
        for name in sorted(self.placed):
            state.update(self.placed[name].storage.cpu().view(torch.uint8).numpy().tobytes())
        return state.hexdigest()


def _place(values: torch.Tensor, layout: str) -> Placed:
    """Copy ``values`` (one or two dimensions) into a poisoned buffer, in the layout named."""
    import torch

    if layout in ("column", "kn"):
        turned = _place(values.t(), "row")
        return Placed(
            turned.storage, (turned.size[1], turned.size[0]), (turned.stride[1], turned.stride[0]), turned.offset
        )
    width = values.shape[-1]
    rows = values.shape[0] if values.ndim == 2 else 1
    offset, pitch = MARGIN, width
    if layout == "padded" and values.ndim == 2:
        pitch = -(-width // 16) * 16 + 16
    elif layout == "offset":
        offset, pitch = MARGIN + 1, width + 3
    total = offset + rows * pitch + MARGIN
    poison = float("nan") if values.is_floating_point() else 1 << 40
    storage = torch.full((total,), poison, dtype=values.dtype)
    placed = Placed(storage, tuple(values.shape), (pitch, 1) if values.ndim == 2 else (1,), offset)
    placed.view.copy_(values)
    return placed


def _values(shape: tuple[int, ...], case: Case, scale: float, generator: torch.Generator) -> torch.Tensor:
    """fp32 values of the case's regime (cancellation is arranged between a and w by :func:`materialise`)."""
    import torch

    if case.regime == "integers":
        return torch.randint(-AMPLITUDE, AMPLITUDE + 1, shape, generator=generator).float()
    normal = torch.randn(shape, generator=generator)
    if case.regime == "equal":
        return torch.full(shape, float(torch.randn((), generator=generator)) * scale)
    if case.regime == "heavy":
        # A ratio of normals has Cauchy tails; clipped so that one product cannot leave the range of fp16.
        normal = (normal / torch.randn(shape, generator=generator).abs().clamp(min=0.05)).clamp(-60.0, 60.0)
    return normal * scale


def _indices(shape: tuple[int, ...], case: Case, sentinels: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """int64 column indices in [0, n): tile borders, random ones, and the sentinels (such as ignore_index)."""
    import torch

    borders = {0, case.n - 1} | {
        edge + d for edge in range(case.step, case.n + 1, case.step) for d in (-1, 0) if edge + d < case.n
    }
    pool = torch.tensor(sorted(borders) + list(sentinels), dtype=torch.int64)
    chosen = pool[torch.randint(0, len(pool), shape, generator=generator)]
    uniform = torch.randint(0, case.n, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.6, chosen, uniform)


def _scalar(operand: OperandLike, case: Case, generator: torch.Generator) -> float | int:
    import torch

    pick = int(torch.randint(0, 4, (), generator=generator))
    if operand.element == "int":
        if operand.default is None:
            return (1, 2, 4, 8)[pick]
        # A negative default stands for "no column"; a caller may as well name one that there is, such as a padding token.
        return (case.n - 1) // 2 if operand.default < 0 and pick == 0 else int(operand.default)
    if operand.default is not None:
        return float(operand.default)
    # Exact in every dtype, so that a kernel cannot differ by how it was handed the number.
    return (1.0, 2.0, 4.0, 8.0)[pick] if case.regime == "integers" else (1.0, 0.5, 2.0, 30.0)[pick]


def _operand(operand: OperandLike, case: Case, generator: torch.Generator, sentinels: Sequence[int]) -> torch.Tensor:
    import torch

    shape = extent_shape(operand.extent, case.m, case.n)
    if operand.element == "int":
        return _indices(shape, case, sentinels, generator)
    if operand.extent == "ColVector":
        # Row statistics (reciprocal RMS, log-sum-exp, scales): fp32, positive unless the regime is adversarial.
        if case.regime == "integers":
            return torch.randint(1, 4, shape, generator=generator).float()
        if case.regime in ("normal", "zeros", "cancelling"):
            return torch.rand(shape, generator=generator) * 1.75 + 0.25
        return _values(shape, case, 1.0, generator)
    regime = "normal" if case.regime in ("zeros", "cancelling") else case.regime
    scale = case.scale if is_tile(operand.extent) else 1.0
    return _values(shape, replace(case, regime=regime), scale, generator).to(torch_dtype(case.dtype))


def rearrange(values: torch.Tensor, extent: str, case: Case) -> torch.Tensor:
    """``values`` of a full extent in the ``order`` of ``case``, or its ``window`` of rows.

    Columns move in pairs where there is an even number of them.
    """
    import torch

    rows, columns = extent not in ("RowVector", "Scalar"), extent not in ("ColVector", "Scalar")
    if rows and case.window is not None:
        values = values[case.window[0] : case.window[0] + case.m]
    generator = torch.Generator().manual_seed(case.seed + 1)
    if rows and case.order == "rows":
        values = values[torch.randperm(case.m, generator=generator, device="cpu").to(values.device)]
    if columns and case.order == "columns":
        units = case.n // 2 if case.n % 2 == 0 else case.n
        width = values.shape[-1] // units
        first = torch.randperm(units, generator=generator, device="cpu")[:, None] * width
        values = values[..., (first + torch.arange(width, device="cpu")).flatten().to(values.device)]
    return values


def materialise(case: Case, signature: SignatureLike) -> Inputs:
    """Make the tensors of a case on the CPU, from its seed alone.

    a and w and float tile and row operands have the case's dtype, float column operands fp32, integer ones int64.
    The scale multiplies a and tile operands, so the accumulator is near scale·√k and its companions keep pace.
    """
    import torch

    whole = case if case.window is None else replace(case, m=case.window[1])
    generator = torch.Generator().manual_seed(case.seed)
    dtype = torch_dtype(case.dtype)
    a = _values((whole.m, case.k), case, case.scale, generator)
    w = _values((case.n, case.k), case, 1.0, generator)
    if case.regime == "zeros":
        a = torch.zeros_like(a)
    if case.regime == "cancelling" and case.k > 1:
        # Products of neighbours cancel to about 1/64 of their size: the accumulator is small beside |A||W|.
        pairs = case.k // 2
        noise = 1.0 + torch.randn((whole.m, pairs), generator=generator) / 64
        a[:, 1 : 2 * pairs : 2] = -a[:, 0 : 2 * pairs : 2] * noise
        w[:, 1 : 2 * pairs : 2] = w[:, 0 : 2 * pairs : 2]
    a, w = rearrange(a, "ColVector", case), rearrange(w.t(), "RowVector", case).t()
    placed = {"a": _place(a.to(dtype), case.a_layout), "w": _place(w.to(dtype), case.w_layout)}
    scalars: dict[str, float | int] = {}
    for operand in signature.operands:
        if operand.extent == "Scalar":
            scalars[operand.name] = _scalar(operand, case, generator)
    # A caller puts integer scalars that stand for a column, or for none, among the indices.
    sentinels = [
        v for o in signature.operands if o.element == "int" and (v := scalars.get(o.name)) is not None and v < case.n
    ]
    for operand in signature.operands:
        if operand.extent == "Scalar":
            continue
        values = _operand(operand, whole, generator, cast("list[int]", sentinels))
        layout = case.tile_layout if is_tile(operand.extent) else "contiguous"
        placed["operand " + operand.name] = _place(rearrange(values, operand.extent, case), layout)
    return Inputs(placed, scalars, tuple(o.name for o in signature.operands))
