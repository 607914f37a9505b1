"""Types of the epilogue language: which axes a value spans, and what its elements are.

Every value lives in registers while one output tile is on chip. Its *extent* says along which axes of
the accumulator (M, N) it varies; extents broadcast the way PyTorch shapes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Element = Literal["float", "int", "bool"]
Combine = Literal["sum", "max", "logsumexp"]

#: Column extents in units of N/2, so that pair-wide and half-wide tiles are exact integers.
NO_COLUMNS, HALF, FULL, PAIR = 0, 1, 2, 4


@dataclass(frozen=True)
class Extent:
    """Axes a value spans: ``rows`` (M or one) and ``columns`` (none, N/2, N or 2N)."""

    rows: bool
    columns: int

    def __str__(self) -> str:
        return _EXTENT_NAMES[self]

    @property
    def shape(self) -> str:
        """The full (untiled) shape, as users read it."""
        columns = {HALF: "N/2", FULL: "N", PAIR: "2N"}
        dims = (["M"] if self.rows else []) + ([columns[self.columns]] if self.columns else [])
        return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"

    @property
    def is_tile(self) -> bool:
        return self.rows and self.columns != NO_COLUMNS


TILE = Extent(True, FULL)
HALF_TILE = Extent(True, HALF)
PAIR_TILE = Extent(True, PAIR)
ROW_VECTOR = Extent(False, FULL)
HALF_ROW_VECTOR = Extent(False, HALF)
PAIR_ROW_VECTOR = Extent(False, PAIR)
COL_VECTOR = Extent(True, NO_COLUMNS)
SCALAR = Extent(False, NO_COLUMNS)

_EXTENT_NAMES = {
    TILE: "Tile",
    HALF_TILE: "HalfTile",
    PAIR_TILE: "PairTile",
    ROW_VECTOR: "RowVector",
    HALF_ROW_VECTOR: "HalfRowVector",
    PAIR_ROW_VECTOR: "PairRowVector",
    COL_VECTOR: "ColVector",
    SCALAR: "Scalar",
}
EXTENTS = {name: extent for extent, name in _EXTENT_NAMES.items()}


@dataclass(frozen=True)
class Type:
    """An extent, an element kind, and (for the result of a reduction) how partials combine.

    A value with ``partial`` set covers only the columns (or rows) of one output tile. It may be stored and
    nothing else: the library finishes the reduction over all tiles after the GEMM.
    """

    extent: Extent
    element: Element = "float"
    partial: Combine | None = None

    def __str__(self) -> str:
        name = str(self.extent)
        if self.partial:
            return f'Reduced[{name}, "{self.partial}"]'
        return name if self.element == "float" else f"{name}[{self.element}]"


def broadcast(*extents: Extent) -> Extent | None:
    """The extent of an elementwise result, or None where column extents disagree (Tile with HalfTile)."""
    widths = {extent.columns for extent in extents if extent.columns}
    if len(widths) > 1:
        return None
    return Extent(any(extent.rows for extent in extents), max(widths, default=NO_COLUMNS))


@dataclass(frozen=True)
class Operand:
    """An input beside the accumulator, as the operator declares it."""

    extent: Extent
    element: Element = "float"

    @property
    def type(self) -> Type:
        return Type(self.extent, self.element)


@dataclass(frozen=True)
class Output:
    """A result the epilogue stores exactly once. ``optional`` outputs are stored only on request."""

    extent: Extent
    reduction: Combine | None = None
    optional: bool = False

    @property
    def type(self) -> Type:
        return Type(self.extent, "float", self.reduction)


@dataclass(frozen=True)
class Signature:
    """What an epilogue is given and owes: operands and outputs by name, in the operator's order."""

    operands: dict[str, Operand]
    outputs: dict[str, Output]

    @property
    def pairs(self) -> bool:
        """Whether N must be even: some operand or output is half as wide as the accumulator."""
        items: tuple[Operand | Output, ...] = (*self.operands.values(), *self.outputs.values())
        return any(item.extent.columns == HALF for item in items)
