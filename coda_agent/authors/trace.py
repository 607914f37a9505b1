"""Tracing a reference into a graph of ATen operations, with the source line and variable name of each value."""

from __future__ import annotations

import ast
import linecache
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode

from coda_agent.operators import Operator
from coda_agent.operators.checking import shape_of
from coda_agent.operators.loading import at_line

#: Sizes of the traced accumulator. M, N, N/2 and 2N, one and two (a pair) can be told apart by length.
ROWS, COLUMNS = 37, 58


class Unsupported(ValueError):
    """The reference does something that no epilogue can, or that the built-in author cannot translate.

    ``what`` names the operation or pattern, ``line`` the reference's line if it is known, ``hint`` a way out.
    """

    def __init__(self, what: str, hint: str = "", line: str = "") -> None:
        self.what, self.hint, self.line = what, hint, line
        text = f"{line}: {what}" if line else what
        super().__init__(f"{text}\n    hint: {hint}" if hint else text)


@dataclass
class Trace:
    """A traced reference. ``names`` and ``lines`` are keyed by the name of a graph node and may lack some."""

    graph: torch.fx.Graph
    module: torch.fx.GraphModule
    names: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    file: str = ""

    def where(self, node: torch.fx.Node) -> str:
        """``line 12: y = acc.roll(1)``, or empty."""

        line = self.lines.get(node.name)
        if line is None:
            return ""
        text = linecache.getline(self.file, line).strip()
        return f"line {line} ({text})" if text else f"line {line}"


def trace(operator: Operator) -> Trace:
    """Trace ``operator``'s reference with symbolic sizes. Raises :class:`Unsupported` if it cannot be traced."""
    code = getattr(operator.reference, "__code__", None)
    result = _trace(operator, code, lambda function: function)
    if any(_mutates(node) for node in result.graph.nodes):
        result = _trace(operator, code, torch.func.functionalize)
    return result


def _mutates(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _trace(operator: Operator, code: CodeType | None, wrap: Callable[[Any], Any]) -> Trace:
    recorder: list[_Recorder] = []

    def function(*inputs: torch.Tensor) -> tuple[Any, ...]:
        mode = proxy_tensor.get_proxy_mode()
        if mode is None or code is None:
            return operator(*inputs)
        recorder.append(_Recorder(mode.tracer, code))
        with recorder[-1]:
            return operator(*inputs)

    inputs = [torch.zeros(ROWS, COLUMNS, dtype=torch.float64)]
    for operand in operator.operands:
        dtype = torch.int64 if operand.element == "int" else torch.float64
        inputs.append(torch.zeros(shape_of(operand.extent, ROWS, COLUMNS), dtype=dtype))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module = proxy_tensor.make_fx(wrap(function), tracing_mode="symbolic")(*inputs)
    except Unsupported:
        raise
    except Exception as error:
        line = at_line(error, code.co_filename).removeprefix(", ") if code else ""
        raise _untraceable(error, line) from error
    found = Trace(module.graph, module, file=code.co_filename if code else "")
    if recorder:
        found.names, found.lines = {**recorder[-1].helpers, **recorder[-1].names}, recorder[-1].lines
    return found


def _untraceable(error: Exception, line: str) -> Unsupported:
    name = type(error).__name__
    message = str(error).split("\n", 1)[0]
    if "DataDependent" in name or "data-dependent" in message or "aten._local_scalar_dense" in str(error):
        return Unsupported(
            "a Python value or branch depends on the data (.item(), float(...), if x > 0, boolean indexing)",
            "keep operands as tensors and choose with torch.where",
            line,
        )
    return Unsupported(
        f"the reference cannot be traced: {name}: {message}", "write it with plain tensor operations on acc", line
    )


class _Recorder(TorchFunctionMode):
    """Notes, at every torch call, the reference's line, and the variables its tensors are bound to by then."""

    def __init__(self, tracer: Any, code: CodeType) -> None:
        super().__init__()
        self.tracer = tracer
        self.code = code
        self.names: dict[str, str] = {}
        self.helpers: dict[str, str] = {}  # variables of the reference's helper functions
        self.lines: dict[str, int] = {}
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = self._frame(sys._getframe(1))
        line = frame.f_lineno if frame else None
        outer = frame
        while outer is not None:
            if outer.f_code is self.code:
                self._note(outer, self.names)
            elif outer.f_code.co_filename == self.code.co_filename:
                self._note(outer, self.helpers)
            outer = outer.f_back if outer.f_code is not self.code else None
        result = func(*args, **(kwargs or {}))
        if line is not None:
            nodes = self.tracer.graph.nodes
            new = len(nodes) - self.count
            for node, _ in zip(reversed(nodes), range(new), strict=False):
                self.lines.setdefault(node.name, line)
            self.count = len(nodes)
        return result

    def _frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the reference's file."""
        while frame is not None and frame.f_code.co_filename != self.code.co_filename:
            frame = frame.f_back
        return frame

    def _note(self, frame: FrameType, names: dict[str, str]) -> None:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor):
                node = self._node(value)
                if node is not None:
                    names.setdefault(node.name, name)

    def _node(self, value: torch.Tensor) -> torch.fx.Node | None:
        try:
            while torch._is_functional_tensor(value):
                value = torch._from_functional_tensor(value)
            slot: Any = proxy_tensor.get_proxy_slot(value, self.tracer, None)
        except Exception:  # names are a courtesy; how tensors and nodes are linked is torch's own business
            return None
        node = getattr(getattr(slot, "proxy", None), "node", None)
        return node if isinstance(node, torch.fx.Node) else None


def returned_names(operator: Operator) -> dict[str, str]:
    """Variables that the reference returns as they are, by output: ``return Outputs(z, y)``."""
    try:
        function = ast.parse(operator.source).body[0]
    except (SyntaxError, IndexError):
        return {}
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    if len(returns) != 1:
        return {}
    value = returns[0]
    elements: list[ast.expr] = [value]
    names = [output.name for output in operator.outputs]
    if isinstance(value, ast.Tuple):
        elements = value.elts
    elif (
        isinstance(value, ast.Call)
        and len(value.args) + len(value.keywords) == len(names)
        and all(k.arg in names for k in value.keywords)
    ):
        elements = [*value.args, *(k.value for k in sorted(value.keywords, key=lambda k: names.index(str(k.arg))))]
        if len(names) == 1 and not isinstance(elements[0], ast.Name):
            return {}
        if len(names) == 1 and operator.outputs[0].name == "y":
            return {}  # as likely a function of the variable as a NamedTuple around it
    if len(elements) != len(names):
        return {}
    return {name: element.id for name, element in zip(names, elements, strict=True) if isinstance(element, ast.Name)}
