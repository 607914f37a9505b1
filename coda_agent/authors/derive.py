"""The author ``derive``: translates an operator's reference into an epilogue. Built in, deterministic, no network.

The reference is traced into ATen operations, these are lowered to expressions of the epilogue language, and the
expressions are written out with the reference's own variable names. What comes out is checked like anybody's
candidate; beforehand it is compared with the reference here, in fp64 and at sizes other than the traced ones, so
that a constant mistaken for a size does not get through.
"""

from __future__ import annotations

import torch

from coda_agent.operators import Operator
from coda_agent.operators.checking import check, sample_operands
from coda_agent.sandbox.diagnostics import SandboxError
from coda_agent.sandbox.evaluator import evaluate
from coda_agent.sandbox.parser import parse

from . import Candidate
from .contract import signature
from .expression import Expr
from .lowering import Lowering, Tensor
from .text import Writer
from .trace import Trace, Unsupported, returned_names, trace

__all__ = ["DeriveAuthor", "Unsupported", "derive"]


def derive(operator: Operator) -> str:
    """The source text of an epilogue for ``operator``. Raises :class:`Unsupported`, which names what and where,
    or ``OperatorError`` if the reference does not keep its declaration."""
    check(operator)
    traced = trace(operator)
    lowering = Lowering(traced, signature(operator))
    try:
        outputs = lowering.run()
        names = _names(traced, lowering)
        source = Writer(lowering.build, outputs, names, returned_names(operator), operator.summary).source()
    except RecursionError:
        raise Unsupported(
            "the reference is too long to be translated", "an epilogue has a few hundred operations at most"
        ) from None
    _compare(operator, source)
    return source


class DeriveAuthor:
    """The author's interface to :func:`derive`."""

    def __call__(self, operator: Operator) -> Candidate:
        return Candidate(derive(operator), "derive")


def _names(traced: Trace, lowering: Lowering) -> dict[Expr, str]:
    """The reference's variables, by the expression of their value."""
    names: dict[Expr, str] = {}
    for node, value in lowering.results.items():
        if isinstance(value, Tensor) and len(value.items) == 1 and node.name in traced.names:
            names.setdefault(value.expr, traced.names[node.name])
    return names


#: Shapes to compare at: unlike the traced one, with N a multiple of 4, since widths may be halved.
_SHAPES = ((5, 12), (3, 20))


def _compare(operator: Operator, source: str) -> None:
    try:
        epilogue = parse(source, signature(operator))
    except SandboxError as error:
        raise Unsupported(f"the translation is beyond the language's limits:\n{error}\n{source}") from error
    generator = torch.Generator().manual_seed(0)
    for m, n in _SHAPES:
        acc = torch.randn(m, n, generator=generator, dtype=torch.float64)
        operands = sample_operands(operator, m, n, dtype=torch.float64, generator=generator)
        expected = operator(acc.clone(), *operands.values())
        try:
            actual = evaluate(epilogue, acc, operands)
        except Exception as error:
            raise Unsupported(
                f"the translation cannot be evaluated: {type(error).__name__}: {error}\n{source}"
            ) from error
        for output, value in zip(operator.outputs, expected, strict=True):
            if not torch.allclose(actual[output.name], value.to(torch.float64), rtol=1e-6, atol=1e-6, equal_nan=True):
                raise Unsupported(
                    f"the reference is not the same function at every size: output '{output.name}' differs at M={m}, N={n}",
                    "sizes must stay symbolic (x.shape[1] ** 0.5, not math.sqrt(x.shape[1])) and branches must not depend on them",
                )
