"""From an operator as declared to the signature that an epilogue is checked against."""

from __future__ import annotations

from typing import cast

from coda_agent.operators import Operator, OperatorError
from coda_agent.sandbox.primitives import CALLABLE
from coda_agent.sandbox.types import EXTENTS, Element, Operand, Output, Signature

#: Names the language gives a meaning of its own, beside the primitives.
_TAKEN = frozenset({"acc", "store", "inf", "epilogue"})

#: Names of the generated file itself, which defines a function called like the operator.
_OF_THE_FILE = frozenset(
    {
        "kernel",
        "tl",
        "triton",
        "torch",
        "F",
        "ops",
        "Tensor",
        "Kernel",
        "Operand",
        "Output",
        "INFINITY",
        "tile_coordinates",
    }
    | {"load_operand", "split_columns", "store_tile", "store_partial", "update_logsumexp", "finish_logsumexp"}
)


def signature(operator: Operator) -> Signature:
    """What an epilogue for ``operator`` is given and owes. Operands may share a primitive's name, as ``cos`` does."""
    if operator.name in _OF_THE_FILE:
        raise OperatorError(
            f"an operator cannot be called '{operator.name}', as kernel files use that name; choose another"
        )
    for operand in operator.operands:
        if operand.name == "kernel" or operand.name in {f"return_{output.name}" for output in operator.outputs}:
            raise OperatorError(f"{operator.name}: an operand cannot be called '{operand.name}'; choose another name")
    for name in [*(o.name for o in operator.operands), *(o.name for o in operator.outputs)]:
        if name in _TAKEN:
            raise OperatorError(
                f"{operator.name}: '{name}' has a meaning in the epilogue language; choose another name"
            )
    return Signature(
        operands={o.name: Operand(EXTENTS[o.extent], cast(Element, o.element)) for o in operator.operands},
        outputs={o.name: Output(EXTENTS[o.extent], o.reduction, o.optional) for o in operator.outputs},
    )


def taken(name: str) -> bool:
    """Whether the language keeps ``name`` for itself, so that no value may be called it."""
    return name in CALLABLE or name in _TAKEN
