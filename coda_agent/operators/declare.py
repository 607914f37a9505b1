"""Declaring a target operator: a PyTorch function of the accumulator, with annotated extents.

    @operator
    def gated_softcap(acc: Tile, cap: Scalar) -> HalfTile:
        "tanh-capped gated activation."
        gate, up = acc[:, 0::2], acc[:, 1::2]
        return cap * torch.tanh(torch.nn.functional.silu(gate) * up / cap)

``acc`` is the (M, N) product of one GEMM. The annotations are the contract that authors, compiler and verifier
read; the body is the truth a kernel is judged by. Several outputs are a ``NamedTuple`` class whose fields carry
the annotations; ``Tile | None`` marks an output that callers ask for (the reference always returns it), and
``Reduced[ColVector, "sum"]`` a reduction over the other axis that the reference returns in full.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Combine = Literal["sum", "max", "logsumexp"]


class OperatorError(ValueError):
    """The declaration of an operator breaks a rule; the message names the rule and the fix."""


class _ExtentMeta(type):
    def __getitem__(cls, element: Any) -> Any:
        if element is not int:
            raise OperatorError(
                f"{cls.__name__}[...] takes int (integer elements); plain {cls.__name__} is floating point"
            )
        return _Annotated(cls.__name__, element="int")


class Extent(metaclass=_ExtentMeta):
    """Base of the extent annotations below."""


class Tile(Extent):
    """(M, N): as wide as the accumulator."""


class HalfTile(Extent):
    """(M, N/2): one element for each interleaved column pair of the accumulator."""


class PairTile(Extent):
    """(M, 2N): two interleaved columns for each column of the accumulator."""


class RowVector(Extent):
    """(N,): one value a column, broadcast down the rows."""


class ColVector(Extent):
    """(M,): one value a row, broadcast along the columns."""


class Scalar(Extent):
    """One value; reaches the reference as a 0-d tensor. May have a Python default."""


@dataclass(frozen=True)
class _Annotated:
    extent: str
    element: str = "float"
    reduction: Combine | None = None
    optional: bool = False

    def __call__(self) -> None:
        """Never called: Python 3.10 takes only callables for annotations."""

    def __or__(self, other: object) -> _Annotated:
        if other is not None:
            raise OperatorError("an output annotation may only be combined with None, to make it optional")
        return _Annotated(self.extent, self.element, self.reduction, True)


class Reduced:
    """``Reduced[ColVector, "sum"]``: reduced over the other axis; "sum", "max" or "logsumexp", kept in fp32."""

    def __class_getitem__(cls, item: Any) -> _Annotated:
        if not (isinstance(item, tuple) and len(item) == 2):
            raise OperatorError('Reduced takes an extent and a combination, as in Reduced[ColVector, "sum"]')
        extent, combine = item
        if extent not in (ColVector, RowVector):
            raise OperatorError("Reduced applies to ColVector (over columns) or RowVector (over rows)")
        if combine not in typing.get_args(Combine):
            raise OperatorError(f'unknown reduction {combine!r}: use "sum", "max" or "logsumexp"')
        return _Annotated(extent.__name__, reduction=combine)


@dataclass(frozen=True)
class Operand:
    """An input beside A and W. ``extent`` is an annotation's name, ``element`` "float" or "int"."""

    name: str
    extent: str
    element: str = "float"
    default: float | int | None = None


@dataclass(frozen=True)
class Output:
    """A result. Tiles have the dtype of the GEMM's inputs, reductions and vectors are fp32."""

    name: str
    extent: str
    reduction: Combine | None = None
    optional: bool = False


@dataclass(frozen=True)
class Operator:
    """A target operator: its reference, and the extents of what goes in and comes out."""

    name: str
    reference: Callable[..., Any]
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    source: str
    origin: str = "catalogue"

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.reference) or ""

    @property
    def summary(self) -> str:
        return self.doc.splitlines()[0] if self.doc else ""

    @property
    def defaults(self) -> dict[str, float | int]:
        """Defaults of the scalar operands that have one."""
        return {operand.name: operand.default for operand in self.operands if operand.default is not None}

    @property
    def column_multiple(self) -> int:
        """What N must be divisible by: 2 where columns come in pairs, else 1."""
        extents = {operand.extent for operand in self.operands} | {output.extent for output in self.outputs}
        return 2 if "HalfTile" in extents else 1

    def __call__(self, acc: Any, *operands: Any) -> tuple[Any, ...]:
        """Run the reference in the precision of ``acc``; always a tuple, in the order of ``outputs``."""
        import torch

        # Numbers and booleans become tensors of the default dtype: in fp64 it must not be fp32.
        default = torch.get_default_dtype()
        if acc.dtype == torch.float64:
            torch.set_default_dtype(torch.float64)
        try:
            result = self.reference(acc, *operands)
        finally:
            torch.set_default_dtype(default)
        return tuple(result) if isinstance(result, tuple) else (result,)


_EXTENTS = (Tile, HalfTile, PairTile, RowVector, ColVector, Scalar)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_NAME_RULE = "must be named in lower-case ASCII letters, digits and _, starting with a letter, at most 40"
_RESERVED = {"acc", "x", "weight", "out", "config", "self"}


def _annotation(where: str, annotation: Any) -> _Annotated:
    if isinstance(annotation, _Annotated):
        return annotation
    if isinstance(annotation, type) and annotation in _EXTENTS:
        return _Annotated(annotation.__name__)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        if len(inner) == 1:
            found = _annotation(where, inner[0])
            return _Annotated(found.extent, found.element, found.reduction, True)
    names = ", ".join(extent.__name__ for extent in _EXTENTS)
    raise OperatorError(f"{where} needs an extent annotation ({names}); got {annotation!r}")


def operator(function: Callable[..., Any]) -> Operator:
    """Turn an annotated reference into an :class:`Operator`. Raises :class:`OperatorError` on a bad declaration."""
    if not inspect.isfunction(function):
        raise OperatorError(f"@operator goes, without parentheses, above a function; got {function!r}")
    name = function.__name__
    module = sys.modules.get(function.__module__)
    try:
        hints = typing.get_type_hints(function, vars(module) if module else None)
    except OperatorError:
        raise
    except Exception as error:
        raise OperatorError(f"{name}: the annotations cannot be read: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].name != "acc" or hints.get("acc") is not Tile:
        raise OperatorError(f"{name}: the first parameter must be 'acc: Tile', the accumulator")
    operands = []
    for parameter in parameters[1:]:
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise OperatorError(f"{name}: '{parameter.name}' must be an ordinary positional parameter")
        if not _NAME.match(parameter.name):
            raise OperatorError(f"{name}: operand '{parameter.name}' {_NAME_RULE}")
        if parameter.name in _RESERVED:
            raise OperatorError(f"{name}: an operand cannot be called '{parameter.name}'; choose another name")
        found = _annotation(f"{name}: operand '{parameter.name}'", hints.get(parameter.name))
        if found.reduction or found.optional:
            raise OperatorError(f"{name}: operand '{parameter.name}' cannot be Reduced or optional")
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        if default is not None and (
            found.extent != "Scalar" or isinstance(default, bool) or not isinstance(default, (int, float))
        ):
            raise OperatorError(f"{name}: only Scalar operands may have a default, and it must be a number")
        if default is not None and found.element == "int" and not isinstance(default, int):
            raise OperatorError(f"{name}: the default of '{parameter.name}' must be an integer, as Scalar[int] says")
        operands.append(Operand(parameter.name, found.extent, found.element, default))
    outputs = _outputs(name, hints.get("return"))
    taken = {operand.name for operand in operands} | _RESERVED
    for output in outputs:
        if not _NAME.match(output.name):
            raise OperatorError(f"{name}: output '{output.name}' {_NAME_RULE}")
        if output.name in taken - {"x"}:
            raise OperatorError(f"{name}: output '{output.name}' has the name of an input; choose another name")
    if all(output.optional for output in outputs):
        raise OperatorError(f"{name}: at least one output must not be optional")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # defined in a prompt: nothing but messages and names miss it
        source = ""
    return Operator(name, function, tuple(operands), outputs, source, function.__module__)


def _outputs(name: str, annotation: Any) -> tuple[Output, ...]:
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        hints = typing.get_type_hints(annotation, vars(sys.modules[annotation.__module__]))
        fields = [(field, hints[field]) for field in annotation._fields]
    else:
        fields = [("y", annotation)]
    outputs = []
    for field, hint in fields:
        found = _annotation(f"{name}: output '{field}'", hint)
        if found.element == "int" or found.extent == "Scalar":
            raise OperatorError(f"{name}: output '{field}' must be a floating-point tile or vector")
        if found.extent in ("RowVector", "ColVector") and not found.reduction:
            raise OperatorError(
                f"{name}: output '{field}' is a vector, so say how tiles combine: Reduced[{found.extent}, \"sum\"]"
            )
        outputs.append(Output(field, found.extent, found.reduction, found.optional))
    return tuple(outputs)
