"""What a generated kernel declares of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Extent = Literal["Tile", "HalfTile", "PairTile", "RowVector", "ColVector", "Scalar"]
Scalar = float | int


@dataclass(frozen=True)
class Operand:
    """An input beside x and weight. ``element`` is "float" or "int"."""

    name: str
    extent: Extent
    element: Literal["float", "int"] = "float"


@dataclass(frozen=True)
class Output:
    """A result: a tile in the dtype of x, or a reduction, finished over all tiles and kept in fp32."""

    name: str
    extent: Extent
    reduction: Literal["sum", "max", "logsumexp"] | None = None
    optional: bool = False
