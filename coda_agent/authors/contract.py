"""From an operator as declared to the signature that an epilogue is checked against."""

from __future__ import annotations

from typing import cast

from coda_agent.operators import Operator, OperatorError
from coda_agent.sandbox.primitives import CALLABLE
from coda_agent.sandbox.types import EXTENTS, Element, Operand, Output, Signature

#: Names the language gives a meaning of its own, beside the primitives.
_TAKEN = frozenset({"acc", "store", "inf", "epilogue"})


def signature(operator: Operator) -> Signature:
    """What an epilogue for ``operator`` is given and owes. Operands may share a primitive's name, as ``cos`` does."""
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
