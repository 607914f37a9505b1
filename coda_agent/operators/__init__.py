"""What to build: target operators, each a PyTorch reference with the extents of its operands and outputs.

Importing this package does not import torch, and neither does listing the catalogue. Loading an operator does.
To type checkers and editors an extent is simply a ``torch.Tensor``, which is what the reference is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .declare import Operand, Operator, OperatorError, Output, operator
from .loading import catalogue_names, catalogue_summaries, load

if TYPE_CHECKING:
    from typing import Annotated as Reduced

    from torch import Tensor as ColVector
    from torch import Tensor as HalfTile
    from torch import Tensor as PairTile
    from torch import Tensor as RowVector
    from torch import Tensor as Scalar
    from torch import Tensor as Tile
else:
    from .declare import ColVector, HalfTile, PairTile, Reduced, RowVector, Scalar, Tile

__all__ = [
    "ColVector",
    "HalfTile",
    "Operand",
    "Operator",
    "OperatorError",
    "Output",
    "PairTile",
    "Reduced",
    "RowVector",
    "Scalar",
    "Tile",
    "catalogue_names",
    "catalogue_summaries",
    "load",
    "operator",
]
