"""ATen graph → expressions of the epilogue language, by interpreting the graph on abstract tensors.

An abstract tensor is an expression and a layout: for each of the tensor's dimensions, which axis of the accumulator
it is. Reshaping, slicing and stacking of column pairs change layouts and become ``even_odd`` and ``interleave``;
elementwise operations build expressions; everything that mixes rows or columns otherwise is refused.
"""

from __future__ import annotations

import math
import operator as py
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from coda_agent.sandbox.primitives import RuleError
from coda_agent.sandbox.types import FULL, HALF, PAIR, Combine, Extent, Signature

from .expression import Builder, Expr, Number, in_bounds, zero_at_padding
from .trace import COLUMNS, ROWS, Trace, Unsupported

# Axes of the accumulator that a dimension may be. A pair is the two columns of an interleaved pair.
ROW, ONE, TWO = "M", "1", "pair"
_WIDTHS = {"N/2": HALF, "N": FULL, "2N": PAIR}
_NAMES = {width: axis for axis, width in _WIDTHS.items()}
_AXES = {ROWS: ROW, COLUMNS: "N", COLUMNS // 2: "N/2", 2 * COLUMNS: "2N", 1: ONE, 2: TWO}

_HALVES = "columns come in interleaved pairs: use x[:, 0::2] and x[:, 1::2], and interleave the weight's rows to match"
_ONE_PASS = (
    "a tile sees only part of a row, so a reduction is finished after the GEMM: return it as "
    'Reduced[ColVector, "sum"] (or "max", "logsumexp") and use it in the next operator, as rmsnorm does with r'
)
_MIXES = "an epilogue sees one tile at a time: outputs may depend on their own row and column (or column pair) only"

#: Operations that no epilogue can do, by name, with what to do instead.
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "addmv", "mv", "dot", "matmul", "linear", "baddbmm", "convolution"), "the GEMM that makes acc is the only matrix product; what follows it must be elementwise or a reduction"),
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax"), 'softmax needs a whole row before its first result: return torch.logsumexp(x, 1) as Reduced[ColVector, "logsumexp"] and finish in the next operator'),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "native_layer_norm", "native_group_norm", "_fused_rms_norm", "linalg_vector_norm", "norm", "native_batch_norm"), "return the sums that it is made of, as in Reduced[ColVector, \"sum\"] of x * x, and finish in the next operator"),
    **dict.fromkeys(("roll", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "topk", "argmax", "argmin", "argsort", "kthvalue", "median", "unique", "tril", "triu", "diagonal", "index_select", "embedding", "scatter", "scatter_add", "index_put", "index_add", "nonzero", "constant_pad_nd"), _MIXES),
    **dict.fromkeys(("rand", "randn", "rand_like", "randn_like", "bernoulli", "native_dropout", "dropout", "multinomial"), "an operator is deterministic: pass a mask or noise in as a Tile operand"),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "frac"), "the language has no rounding"),
    **dict.fromkeys(("view_as_complex", "view_as_real", "complex", "polar"), "write the rotation with real numbers: a * cos + b * sin and b * cos - a * sin on a, b = x[:, 0::2], x[:, 1::2]"),
    "glu": _HALVES,
    "amin": "return the maximum of the negated values",
    "min": "return the maximum of the negated values",
    "prod": "return the sum of logarithms",
    "_local_scalar_dense": "keep operands as tensors and choose with torch.where",
    "as_strided": "index with slices, as in x[:, 0::2]",
}  # fmt: skip

_UNARY = {
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "silu",
    "relu",
    "erf",
    "square",
}
_COMPARE = {"eq", "ne", "lt", "le", "gt", "ge"}
_SAME = {"clone", "alias", "detach", "lift_fresh", "lift_fresh_copy", "contiguous", "positive", "conj", "_conj", "real", "view_as", "requires_grad_"}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """An abstract tensor: its dimensions' axes, and its expression: one for each side where a dimension is a pair."""

    dims: tuple[str, ...]
    items: tuple[Expr, ...]

    @property
    def expr(self) -> Expr:
        (expr,) = self.items
        return expr


class Lowering:
    """Interprets one traced graph. ``results`` maps nodes to tensors, or tuples of them."""

    def __init__(self, traced: Trace, signature: Signature) -> None:
        self.traced = traced
        self.signature = signature
        self.build = Builder(signature.operands)
        self.results: dict[Node, Any] = {}
        self.node: Node | None = None

    # -- driving ------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Expr]:
        """The expression of every output, by name. Raises :class:`Unsupported`."""
        graph = self.traced.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        leaves = [self.build.acc(), *map(self.build.load, self.signature.operands)]
        for node, leaf in zip(placeholders, leaves, strict=True):
            self.results[node] = Tensor(self.dims(node), (leaf,))
        (output,) = (node for node in graph.nodes if node.op == "output")
        live: set[Node] = set()
        pending = list(output.all_input_nodes)
        while pending:
            node = pending.pop()
            if node not in live:
                live.add(node)
                # Views of sizes are read off the traced shapes, so that nodes computing sizes stay out of the way.
                pending.extend(node.all_input_nodes)
        for node in graph.nodes:
            if node in live and node not in self.results and not self._size_only(node, live):
                self.node = node
                self.results[node] = self._lower(node)
        self.node = None
        values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
        return {
            name: self._output(name, node)
            for name, node in zip(self.signature.outputs, values, strict=True)  # type: ignore[arg-type]
        }

    def _size_only(self, node: Node, live: set[Node]) -> bool:
        """Whether ``node`` is a size that nothing but shapes depends on."""
        if not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool)):
            return False
        users = [user for user in node.users if user in live]
        return all(_kernel(user) in _SHAPED or self._size_only(user, live) for user in users)

    def _output(self, name: str, node: Any) -> Expr:
        declared = self.signature.outputs[name]
        if not isinstance(node, Node):
            return self.build.literal(node)
        self.node = node
        value = self.results[node]
        dims = ((ROW,) if declared.extent.rows else ()) + (
            (_NAMES[declared.extent.columns],) if declared.extent.columns else ()
        )
        if not isinstance(value, Tensor) or value.dims != dims:
            raise self.error(
                f"output '{name}' is declared {declared.extent} {declared.extent.shape} but is computed as something else"
            )
        expr = self._concrete(value.expr)
        if expr.type.partial != declared.reduction:
            if declared.reduction:
                raise self.error(
                    f"output '{name}' is declared {declared.type} but is computed as {_article(str(expr.type))}",
                    "return a reduction of a tile over the other axis: x.sum(dim=1), x.amax(dim=1), torch.logsumexp(x, dim=1), x.sum(dim=0) or x.amax(dim=0)",
                )
            raise self.error(
                f"output '{name}' is a reduction but is declared {declared.type}", f"declare it {expr.type}"
            )
        return self._finish(expr) if expr.type.partial else self.build.numeric(expr)

    def _concrete(self, expr: Expr) -> Expr:
        for part in expr.walk():
            if part.op == "undefined":
                raise self.error(
                    "part of the result is never written (torch.empty)",
                    "write every element, or start from torch.zeros_like",
                )
            if part.op == "literal" and isinstance(part.payload, float) and math.isnan(part.payload):
                raise self.error("the language has no NaN constant")
        return expr

    def _finish(self, expr: Expr) -> Expr:
        """A reduction as a primitive, its argument masked where the padding of an edge tile would count."""
        over_columns, combine = expr.payload
        raw = expr.args[0]
        if expr.op == "pick":
            return self.apply("pick", raw, expr.args[1])
        names: dict[tuple[bool, Combine], str] = {
            (True, "sum"): "row_sum", (True, "max"): "running_max", (True, "logsumexp"): "online_logsumexp",
            (False, "sum"): "col_sum", (False, "max"): "col_max",
        }  # fmt: skip
        if (over_columns, combine) not in names:
            raise self.error("logsumexp over rows has no primitive", "return a maximum and a sum over rows")
        if combine != "sum" or not zero_at_padding(raw, over_columns):
            neutral = self.build.literal(0.0 if combine == "sum" else -math.inf)
            mask = in_bounds(self.build, raw.type.extent.columns if over_columns else None)
            if raw.op == "where" and raw.args[2].number == neutral.number:  # one where for both conditions
                mask, raw = self.apply("and", mask, raw.args[0]), raw.args[1]
            raw = self.apply("where", mask, raw, neutral)
        return self.apply(names[over_columns, combine], raw)

    def _lower(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._constant(getattr(self.traced.module, str(node.target)))
        if node.target is py.getitem:
            return self.results[node.args[0]][node.args[1]]  # type: ignore[index]
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._size(node)
        name = node.target._schema.name.split("::")[1]
        if name == "sym_size":
            return self._size(node)
        handler = getattr(
            self,
            f"_op_{name.strip('_') if name in ('_to_copy', '_unsafe_view', '_reshape_alias', '_prelu_kernel') else name}",
            None,
        )
        arguments = self._arguments(node)
        if node.target._schema.is_mutable and name.endswith("_"):
            return self._in_place(node, name)
        try:
            if name in _UNARY:
                return self.map(lambda x: self.apply(name, self.build.numeric(x)), arguments["self"])
            if name in _COMPARE:
                return self.map(
                    lambda x, y: self.apply(name, self.build.numeric(x), self.build.numeric(y)),
                    arguments["self"],
                    arguments["other"],
                )
            if name in _SAME:
                return next(iter(arguments.values()))
            if handler is not None:
                return handler(arguments)
        except RuleError as error:
            raise self.error(f"{node.target}: {error}", error.hint) from None
        hint = _REFUSED.get(
            name,
            "the built-in author knows no translation for it: write it with elementary operations, or use another author",
        )
        raise self.error(f"{node.target} is not supported in an epilogue", hint)

    def _in_place(self, node: Node, name: str) -> Any:
        """An in-place operation inside one of torch's own functions, on a value that nothing else sees."""
        changed = node.args[0]
        packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
        overload = getattr(packet, node.target._overloadname, None)  # type: ignore[union-attr]
        if not isinstance(changed, Node) or len(changed.users) != 1 or changed.op == "placeholder" or overload is None:
            raise self.error(f"{node.target} changes a tensor in place", "write it out of place, as in x = x + y")
        node.target = overload
        return self._lower(node)

    def _arguments(self, node: Node) -> dict[str, Any]:
        """Arguments by the names of the operation's schema, defaults filled in, nodes replaced by their values."""
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        plain = _kernel(node) in _SHAPED and _kernel(node) not in ("full", "new_full", "arange")
        arguments = {argument.name: argument.default_value for argument in schema}
        arguments.update(zip((argument.name for argument in schema), node.args, strict=False))
        arguments.update(node.kwargs)
        return {
            name: torch.fx.node.map_arg(value, lambda n: n if plain and _is_size(n) else self.results.get(n, n))
            for name, value in arguments.items()
        }  # type: ignore[arg-type]

    def error(self, what: str, hint: str = "") -> Unsupported:
        return Unsupported(what, hint, self.traced.where(self.node) if self.node is not None else "")

    # -- axes and sizes -----------------------------------------------------------------------------------------

    def axis(self, size: Any) -> str:
        length = _length(size)
        if length not in _AXES:
            raise self.error(
                f"a dimension of length {size} is none of M, N, N/2, 2N, 1 or a pair",
                "reshape columns only into pairs: x.unflatten(1, (-1, 2))",
            )
        return _AXES[length]

    def dims(self, node: Node) -> tuple[str, ...]:
        return tuple(self.axis(size) for size in node.meta["val"].shape)

    def _shape(self) -> tuple[str, ...]:
        assert self.node is not None
        return self.dims(self.node)

    def _size(self, node: Node) -> Tensor:
        """A size, or arithmetic on sizes, as a scalar expression."""
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            axis = self.axis(node.meta["val"])
            columns = self.build.apply("num_cols")
            if axis == ROW:
                return Tensor((), (self.build.apply("num_rows"),))
            if axis == "N":
                return Tensor((), (columns,))
            if axis == "N/2":
                return Tensor((), (self.apply("floordiv", columns, self.build.literal(2)),))
            if axis == "2N":
                return Tensor((), (self.apply("mul", columns, self.build.literal(2)),))
            return Tensor((), (self.build.literal(1 if axis == ONE else 2),))
        operations = {
            py.add: "add",
            py.sub: "sub",
            py.mul: "mul",
            py.truediv: "div",
            py.floordiv: "floordiv",
            py.mod: "mod",
            py.neg: "neg",
        }
        arguments = [self.tensor(self.results.get(arg, arg) if isinstance(arg, Node) else arg) for arg in node.args]
        if target is torch.sym_float:
            return arguments[0]
        if target in operations:
            return self.map(lambda *xs: self.apply(operations[target], *xs), *arguments)
        if target is py.pow and len(arguments) == 2 and arguments[1].expr.number is not None:
            return self.map(lambda x: self._power(x, arguments[1].expr.number or 0), arguments[0])
        name = getattr(target, "__name__", str(target))
        if "sqrt" in name:
            return self.map(lambda x: self.apply("sqrt", x), arguments[0])
        raise self.error(f"{name} of a size is not supported", "sizes may be added, multiplied and divided")

    # -- building -----------------------------------------------------------------------------------------------

    def apply(self, op: str, *args: Expr) -> Expr:
        """A primitive; reductions are refused, but for factors that a sum can be multiplied with before it is taken."""
        partial = [arg for arg in args if arg.type.partial]
        if not partial:
            return self.build.apply(op, *args)
        if op == "neg":
            return self._inside(args[0], lambda raw: self.build.apply("neg", raw))
        if op in ("mul", "div") and len(partial) == 1 and (op == "mul" or args[0] is partial[0]):
            other = args[1] if args[0] is partial[0] else args[0]
            if partial[0] is args[0]:
                return self._inside(partial[0], lambda raw: self.build.apply(op, raw, other), other)
            return self._inside(partial[0], lambda raw: self.build.apply(op, other, raw), other)
        raise self.error(f"a reduction is used in {op}", _ONE_PASS)

    def _inside(self, partial: Expr, change: Callable[[Expr], Expr], other: Expr | None = None) -> Expr:
        """A factor of a sum, moved to its terms: ``x.sum(1) / n`` is ``(x / n).sum(1)``."""
        over_columns, combine = partial.payload
        varies = other is not None and (other.type.extent.columns if over_columns else other.type.extent.rows)
        if combine != "sum" or varies:
            raise self.error("a reduction is used in further arithmetic", _ONE_PASS)
        return self.build.reduce(change(partial.args[0]), over_columns, combine, *partial.args[1:])

    def tensor(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, (bool, int, float)):
            return Tensor((), (self.build.literal(value),))
        raise self.error(f"cannot use {value!r} as a number")

    def map(self, function: Callable[..., Expr], *values: Any) -> Tensor:
        """``function`` elementwise, with broadcasting as in PyTorch."""
        tensors = [self.tensor(value) for value in values]
        dims = self._broadcast([tensor.dims for tensor in tensors])
        sides = 2 if TWO in dims else 1
        columns = [tensor.items * sides if len(tensor.items) == 1 else tensor.items for tensor in tensors]
        return Tensor(dims, tuple(function(*(items[side] for items in columns)) for side in range(sides)))

    def _broadcast(self, layouts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        rank = max(map(len, layouts))
        padded = [(ONE,) * (rank - len(dims)) + dims for dims in layouts]
        result = []
        for axes in zip(*padded, strict=True):
            found = {axis for axis in axes if axis != ONE}
            if len(found) > 1:
                raise self.error(f"dimensions {' and '.join(sorted(found))} do not match")
            result.append(found.pop() if found else ONE)
        if len(set(result) - {ONE}) < sum(axis != ONE for axis in result):
            raise self.error("one axis appears twice in a result", _MIXES)
        return tuple(result)

    def _literal(self, number: Number) -> Expr:
        return self.build.literal(number)

    # -- layouts ------------------------------------------------------------------------------------------------

    def _view(self, arguments: dict[str, Any]) -> Tensor:
        """A reshape: pairs of columns split off or joined, and dimensions of length one."""
        value = next(iter(arguments.values()))
        dims = self._shape()
        source = [axis for axis in value.dims if axis != ONE]
        target = [axis for axis in dims if axis != ONE]
        if source == target:
            return Tensor(dims, value.items)
        # Everything but one column axis must stay as it is.
        for position, axis in enumerate(source):
            width = _WIDTHS.get(axis)
            if width is None:
                continue
            split = [*source[:position], _NAMES.get(width // 2, ""), TWO, *source[position + 1 :]]
            if target == split and len(value.items) == 1:
                self._whole(value.expr)
                return Tensor(dims, self.build.pair(value.expr))
            if source[position + 1 : position + 2] == [TWO]:
                joined = [*source[:position], _NAMES.get(width * 2, ""), *source[position + 2 :]]
                if target == joined:
                    even, odd = value.items
                    self._whole(even, odd)
                    return Tensor(dims, (self.build.interleave(even, odd, width * 2),))
        if TWO in source or TWO in target:
            raise self.error(
                f"reshaping ({', '.join(value.dims)}) to ({', '.join(dims)}) splits or joins column halves", _HALVES
            )
        raise self.error(
            f"reshaping ({', '.join(value.dims)}) to ({', '.join(dims)}) moves elements between rows and columns",
            _MIXES,
        )

    _op_view = _op_unsafe_view = _op_reshape_alias = _op_reshape = _view

    def _whole(self, *exprs: Expr) -> None:
        if any(expr.type.partial for expr in exprs):
            raise self.error("a reduction is split or joined", _ONE_PASS)

    def _op_expand(self, a: dict[str, Any]) -> Tensor:
        value, dims = a["self"], self._shape()
        self._broadcast([value.dims, dims])
        items = value.items
        if TWO in dims and len(items) == 1:
            items = items * 2
        return Tensor(dims, items)

    def _op_unsqueeze(self, a: dict[str, Any]) -> Tensor:
        return Tensor(self._shape(), a["self"].items)

    _op_squeeze = _op_unsqueeze
    _op_broadcast_to = _op_expand

    def _op_permute(self, a: dict[str, Any]) -> Tensor:
        return Tensor(self._shape(), a["self"].items)

    _op_transpose = _op_t = _op_permute

    def _op_slice(self, a: dict[str, Any]) -> Tensor:
        value, dim, step = a["self"], a["dim"], a["step"]
        axis = value.dims[dim]
        size = self._extent_of(axis)
        start, end = self._bound(a["start"], 0, size), self._bound(a["end"], size, size)
        if start == 0 and end >= size and step == 1:
            return value  # type: ignore[no-any-return]
        if axis in _WIDTHS and step == 2 and start in (0, 1) and end >= size - (1 - start):
            if _WIDTHS[axis] == HALF or len(value.items) > 1:
                raise self.error("columns are split into pairs twice", "pairs can be split once")
            self._whole(value.expr)
            dims = (
                (*value.dims[:dim], _NAMES[_WIDTHS[axis] // 2], *value.dims[dim + 1 :])
                if dim >= 0
                else (*value.dims[:dim], _NAMES[_WIDTHS[axis] // 2], *value.dims[len(value.dims) + dim + 1 :])
            )
            return Tensor(dims, (self.build.pair(value.expr)[start],))
        if axis == TWO and end - start == 1:
            return Tensor(self._shape(), (value.items[start],))
        if axis in _WIDTHS and 2 * (end - start) == size:
            raise self.error(f"columns are sliced into halves ({axis})", _HALVES)
        raise self.error(f"{'rows' if axis == ROW else 'columns'} are sliced other than by [0::2] and [1::2]", _MIXES)

    def _extent_of(self, axis: str) -> int:
        return next(length for length, name in _AXES.items() if name == axis)

    def _bound(self, bound: Any, default: int, size: int) -> int:
        if bound is None:
            return default
        if isinstance(bound, Node):
            bound = bound.meta["val"]
        length = _length(bound)
        return max(0, min(length + size if length < 0 else length, size))

    def _op_slice_scatter(self, a: dict[str, Any]) -> Tensor:
        value, dim, step = a["self"], a["dim"], a["step"]
        axis = value.dims[dim]
        size = self._extent_of(axis)
        start, end = self._bound(a["start"], 0, size), self._bound(a["end"], size, size)
        source = self._to_shape(a["src"], value.dims if step == 1 else (*value.dims[:dim], "", *value.dims[dim + 1 :]))
        if start == 0 and end >= size and step == 1:
            return Tensor(value.dims, source.items)
        if axis in _WIDTHS and step == 2 and start in (0, 1) and len(value.items) == 1 and _WIDTHS[axis] > HALF:
            sides = list(self.build.pair(value.expr))
            sides[start] = source.expr
            return Tensor(value.dims, (self.build.interleave(sides[0], sides[1], _WIDTHS[axis]),))
        raise self.error(
            f"assignment to a slice {start}:{end}:{step} of {axis}", _HALVES if axis in _WIDTHS else _MIXES
        )

    def _to_shape(self, value: Any, dims: tuple[str, ...]) -> Tensor:
        tensor = self.tensor(value)
        if len(tensor.items) > 1 and TWO not in dims:
            raise self.error("a pair is written where one column is expected")
        return tensor

    def _op_select_scatter(self, a: dict[str, Any]) -> Tensor:
        value = a["self"]
        if value.dims[a["dim"]] != TWO:
            raise self.error("assignment to one row or column", _MIXES)
        items = list(value.items)
        items[a["index"]] = self.tensor(a["src"]).expr
        return Tensor(value.dims, tuple(items))

    def _op_copy(self, a: dict[str, Any]) -> Tensor:
        source = self.tensor(a["src"])
        dims = self._broadcast([a["self"].dims, source.dims])
        items = source.items * 2 if TWO in dims and len(source.items) == 1 else source.items
        return Tensor(a["self"].dims, items)

    def _op_select(self, a: dict[str, Any]) -> Tensor:
        value, dim = a["self"], a["dim"]
        axis = value.dims[dim]
        if axis == TWO:
            return Tensor(self._shape(), (value.items[self._bound_index(a["index"])],))
        if axis == ONE:
            return Tensor(self._shape(), value.items)
        raise self.error(f"one {'row' if axis == ROW else 'column'} is read by its number", _MIXES)

    def _bound_index(self, index: Any) -> int:
        if not isinstance(index, int):
            raise self.error("an index depends on a size", _HALVES)
        return index

    def _op_unbind(self, a: dict[str, Any]) -> tuple[Tensor, ...]:
        value, dim = a["self"], a["dim"] % len(a["self"].dims)
        if value.dims[dim] != TWO:
            raise self.error(
                f"unbind along {value.dims[dim]}",
                "only column pairs can be unbound: x.unflatten(1, (-1, 2)).unbind(-1)",
            )
        dims = value.dims[:dim] + value.dims[dim + 1 :]
        return tuple(Tensor(dims, (item,)) for item in value.items)

    def _op_split(self, a: dict[str, Any]) -> tuple[Tensor, ...]:
        value, dim = a["self"], a["dim"] % len(a["self"].dims)
        axis = value.dims[dim]
        if axis == TWO:
            dims = (*value.dims[:dim], ONE, *value.dims[dim + 1 :])
            return tuple(Tensor(dims, (item,)) for item in value.items)
        raise self.error(
            "rows are split into blocks" if axis == ROW else "columns are split into blocks (chunk or split)",
            _HALVES if axis in _WIDTHS else _MIXES,
        )

    _op_split_with_sizes = _op_chunk = _op_split

    def _op_stack(self, a: dict[str, Any]) -> Tensor:
        tensors = [self.tensor(value) for value in a["tensors"]]
        if len(tensors) == 1:
            return Tensor(self._shape(), tensors[0].items)
        if len(tensors) != 2 or any(len(tensor.items) > 1 for tensor in tensors):
            raise self.error(
                f"{len(tensors)} tensors are stacked", "stack the two columns of a pair: torch.stack((a, b), dim=-1)"
            )
        self._whole(*(tensor.expr for tensor in tensors))
        return Tensor(self._shape(), tuple(tensor.expr for tensor in tensors))

    def _op_cat(self, a: dict[str, Any]) -> Tensor:
        tensors = [self.tensor(value) for value in a["tensors"]]
        dim = a["dim"] % len(tensors[0].dims)
        if len(tensors) == 1:
            return tensors[0]
        if len(tensors) == 2 and all(tensor.dims[dim] == ONE and len(tensor.items) == 1 for tensor in tensors):
            return self._op_stack(a)
        what = "columns are" if tensors[0].dims[dim] in _WIDTHS else "tensors are"
        raise self.error(
            f"{what} concatenated in halves (torch.cat)", "interleave them: torch.stack((a, b), dim=-1).flatten(-2)"
        )

    def _op_flip(self, a: dict[str, Any]) -> Tensor:
        value = a["self"]
        items = value.items
        for dim in a["dims"]:
            if value.dims[dim] == TWO:
                items = items[::-1]
            elif value.dims[dim] != ONE:
                raise self.error(f"flip along {value.dims[dim]}", _MIXES)
        return Tensor(value.dims, items)

    # -- making tensors -----------------------------------------------------------------------------------------

    def _constant(self, value: Any) -> Tensor:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return Tensor((ONE,) * value.dim(), (self._literal(value.item()),))
        raise self.error("a constant tensor of several elements is built into the reference", "make it an operand")

    def _filled(self, number: Any) -> Tensor:
        dims = self._shape()
        expr = self.tensor(number).expr
        return Tensor(dims, (expr,) * (2 if TWO in dims else 1))

    def _op_full(self, a: dict[str, Any]) -> Tensor:
        return self._filled(a["fill_value"])

    _op_full_like = _op_new_full = _op_fill = lambda self, a: self._filled(
        a["fill_value"] if "fill_value" in a else a["value"]
    )

    def _op_zeros(self, a: dict[str, Any]) -> Tensor:
        return self._filled(0.0)

    _op_zeros_like = _op_new_zeros = _op_zero = _op_zeros

    def _op_ones(self, a: dict[str, Any]) -> Tensor:
        return self._filled(1.0)

    _op_ones_like = _op_new_ones = _op_ones

    def _op_empty(self, a: dict[str, Any]) -> Tensor:
        dims = self._shape()
        width = max((_WIDTHS.get(axis, 0) for axis in dims), default=0)
        return Tensor(dims, (self.build.undefined(Extent(ROW in dims, width)),) * (2 if TWO in dims else 1))

    _op_empty_like = _op_new_empty = _op_empty

    def _op_scalar_tensor(self, a: dict[str, Any]) -> Tensor:
        return self.tensor(a["s"])

    def _op_arange(self, a: dict[str, Any]) -> Tensor:
        (axis,) = self._shape()
        start, step = self.tensor(a.get("start") or 0).expr, self.tensor(a.get("step") or 1).expr
        index = self.build.apply("col_index")
        if axis == ROW:
            index = self.build.apply("row_index")
        elif axis == "N/2":
            even = self.build.pair(index)[0]
            if step.number == 2 and start.number in (0, 1):
                return Tensor((axis,), (self.build.pair(index)[int(start.number)],))
            index = self.build.apply("floordiv", even, self._literal(2))
        elif axis == "2N":
            double = self.build.apply("mul", index, self._literal(2))
            index = self.build.interleave(double, self.build.apply("add", double, self._literal(1)), PAIR)
        elif axis == TWO:
            second = self.build.apply("add", start, step)
            return Tensor((axis,), (start, second))
        elif axis == ONE:
            return Tensor((axis,), (start,))
        if step.number != 1:
            index = self.build.apply("mul", index, step)
        if start.number != 0:
            index = self.build.apply("add", index, start)
        return Tensor((axis,), (index,))

    # -- element kinds ------------------------------------------------------------------------------------------

    def _op_to_copy(self, a: dict[str, Any]) -> Tensor:
        dtype = a.get("dtype")
        if dtype is None:
            return a["self"]  # type: ignore[no-any-return]
        return self.map(lambda x: self._cast(x, dtype), a["self"])

    def _op_convert_element_type(self, a: dict[str, Any]) -> Tensor:
        return self._op_to_copy({"self": a["a"], "dtype": a["dtype"]})

    def _cast(self, x: Expr, dtype: torch.dtype) -> Expr:
        if x.type.partial:
            return x
        if dtype == torch.bool:
            return self._truth(x)
        if dtype.is_complex:
            raise self.error("complex numbers are not supported", _REFUSED["complex"])
        if dtype.is_floating_point:
            return self.build.floating(x) if x.type.element == "bool" or x.op == "literal" else x
        if x.type.element == "bool":
            return self.apply("where", x, self._literal(1), self._literal(0))
        if x.type.element == "float":
            raise self.error("floating-point values are cast to integers", _REFUSED["floor"])
        return x

    def _truth(self, x: Expr) -> Expr:
        return x if x.type.element == "bool" else self.apply("ne", x, self._literal(0))

    # -- elementwise --------------------------------------------------------------------------------------------

    def _binary(self, op: str, x: Any, y: Any) -> Tensor:
        return self.map(lambda p, q: self.apply(op, self.build.numeric(p), self.build.numeric(q)), x, y)

    def _op_add(self, a: dict[str, Any]) -> Tensor:
        other = a["other"] if a["alpha"] == 1 else self._binary("mul", a["other"], a["alpha"])
        return self._binary("add", a["self"], other)

    def _op_sub(self, a: dict[str, Any]) -> Tensor:
        other = a["other"] if a["alpha"] == 1 else self._binary("mul", a["other"], a["alpha"])
        return self._binary("sub", a["self"], other)

    def _op_rsub(self, a: dict[str, Any]) -> Tensor:
        return self._op_sub({"self": a["other"], "other": a["self"], "alpha": a["alpha"]})

    def _op_mul(self, a: dict[str, Any]) -> Tensor:
        return self._binary("mul", a["self"], a["other"])

    def _op_div(self, a: dict[str, Any]) -> Tensor:
        if a.get("rounding_mode") is not None:
            return self._op_floor_divide(a)
        return self._binary("div", a["self"], a["other"])

    def _integers(self, op: str, a: dict[str, Any]) -> Tensor:
        def apply(x: Expr, y: Expr) -> Expr:
            if not (_non_negative(x) and _non_negative(y)):
                raise self.error(
                    f"{op} of values that may be negative or no integers",
                    "division with rounding is for row and column indices",
                )
            return self.apply(op, x, y)

        return self.map(apply, a["self"], a["other"])

    def _op_floor_divide(self, a: dict[str, Any]) -> Tensor:
        return self._integers("floordiv", a)

    def _op_remainder(self, a: dict[str, Any]) -> Tensor:
        return self._integers("mod", a)

    _op_fmod = _op_remainder

    def _op_reciprocal(self, a: dict[str, Any]) -> Tensor:
        return self._binary("div", 1, a["self"])

    def _op_neg(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("neg", self.build.numeric(x)), a["self"])

    def _op_abs(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("abs", self.build.numeric(x)), a["self"])

    def _op_pow(self, a: dict[str, Any]) -> Tensor:
        base, exponent = self.tensor(a["self"]), self.tensor(a["exponent"])
        number, constant = exponent.items[0].number, base.items[0].number
        if not exponent.dims and number is not None:
            return self.map(lambda x: self._power(self.build.numeric(x), number), base)
        if not base.dims and constant is not None and constant > 0:
            if constant == 2:
                return self.map(lambda x: self.apply("exp2", self.build.numeric(x)), exponent)
            return self.map(
                lambda x: self.apply("exp", self.apply("mul", x, self._literal(math.log(constant)))), exponent
            )
        raise self.error("a power of two computed values", "write torch.exp(p * torch.log(x)) for positive x")

    def _power(self, x: Expr, exponent: Number) -> Expr:
        if x.type.partial:
            raise self.error("a reduction is raised to a power", _ONE_PASS)
        if exponent < 0:
            return (
                self.apply("rsqrt", x)
                if exponent == -0.5
                else self.apply("div", self._literal(1.0), self._power(x, -exponent))
            )
        whole = int(exponent)
        if exponent == whole and whole <= 16:
            if whole == 0:
                return self._literal(1.0)
            if whole == 1:
                return x
            if whole <= 4:
                return self.build.power(x, whole)
            half = self._power(x, whole // 2)
            square = self.build.power(half, 2)
            return self.apply("mul", square, x) if whole % 2 else square
        if exponent - whole == 0.5 and whole <= 4:
            root = self.apply("sqrt", x)
            return self.apply("mul", self._power(x, whole), root) if whole else root
        raise self.error(f"the power {exponent}", f"write torch.exp({exponent} * torch.log(x)) for positive x")

    def _op_minimum(self, a: dict[str, Any]) -> Tensor:
        return self._binary("minimum", a["self"], a["other"])

    def _op_maximum(self, a: dict[str, Any]) -> Tensor:
        return self._binary("maximum", a["self"], a["other"])

    def _op_clamp(self, a: dict[str, Any]) -> Tensor:
        value = a["self"]
        if a.get("min") is not None:
            value = self._binary("maximum", value, a["min"])
        if a.get("max") is not None:
            value = self._binary("minimum", value, a["max"])
        return self.tensor(value)

    _op_clamp_min = _op_clamp_max = _op_clamp

    def _op_hardtanh(self, a: dict[str, Any]) -> Tensor:
        return self._op_clamp({"self": a["self"], "min": a["min_val"], "max": a["max_val"]})

    def _op_relu6(self, a: dict[str, Any]) -> Tensor:
        return self._op_clamp({"self": a["self"], "min": 0, "max": 6})

    def _op_hardsigmoid(self, a: dict[str, Any]) -> Tensor:
        return self._binary("div", self._op_relu6({"self": self._binary("add", a["self"], 3)}), 6)

    def _op_hardswish(self, a: dict[str, Any]) -> Tensor:
        return self._binary("mul", a["self"], self._op_hardsigmoid(a))

    def _choose(self, test: str, bound: Any, x: Any, yes: Callable[[Expr], Expr], no: Callable[[Expr], Expr]) -> Tensor:
        """``where(x test bound, yes(x), no(x))``."""
        return self.map(lambda p, q: self.apply("where", self.apply(test, p, q), yes(p), no(p)), x, bound)

    def _op_leaky_relu(self, a: dict[str, Any]) -> Tensor:
        slope = self._literal(a["negative_slope"])
        return self._choose("gt", 0, a["self"], lambda x: x, lambda x: self.apply("mul", x, slope))

    def _op_prelu_kernel(self, a: dict[str, Any]) -> Tensor:
        return self.map(
            lambda x, w: self.apply("where", self.apply("gt", x, self._literal(0)), x, self.apply("mul", x, w)),
            a["self"],
            a["weight"],
        )

    def _op_threshold(self, a: dict[str, Any]) -> Tensor:
        return self._choose("le", a["threshold"], a["self"], lambda x: self._literal(a["value"]), lambda x: x)

    def _op_elu(self, a: dict[str, Any]) -> Tensor:
        scale, alpha, inner = (
            self._literal(a["scale"]),
            self._literal(a["alpha"] * a["scale"]),
            self._literal(a["input_scale"]),
        )

        def negative(x: Expr) -> Expr:
            return self.apply(
                "mul", self.apply("sub", self.apply("exp", self.apply("mul", x, inner)), self._literal(1)), alpha
            )

        return self._choose("gt", 0, a["self"], lambda x: self.apply("mul", x, scale), negative)

    def _op_celu(self, a: dict[str, Any]) -> Tensor:
        return self._op_elu({"self": a["self"], "alpha": a["alpha"], "scale": 1, "input_scale": 1 / a["alpha"]})

    def _op_softshrink(self, a: dict[str, Any]) -> Tensor:
        bound = self._literal(a["lambd"])
        below = self._choose(
            "lt", -a["lambd"], a["self"], lambda x: self.apply("add", x, bound), lambda x: self._literal(0.0)
        )
        return self.map(
            lambda x, y: self.apply("where", self.apply("gt", x, bound), self.apply("sub", x, bound), y),
            a["self"],
            below,
        )

    def _op_hardshrink(self, a: dict[str, Any]) -> Tensor:
        return self.map(
            lambda x: self.apply(
                "where", self.apply("le", self.apply("abs", x), self._literal(a["lambd"])), self._literal(0.0), x
            ),
            a["self"],
        )

    def _op_mish(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("mul", x, self.apply("tanh", self.apply("softplus", x))), a["self"])

    def _op_softplus(self, a: dict[str, Any]) -> Tensor:
        beta = self._literal(a["beta"])
        return self.map(
            lambda x: self.apply("div", self.apply("softplus", self.apply("mul", x, beta)), beta), a["self"]
        )

    def _op_log_sigmoid_forward(self, a: dict[str, Any]) -> tuple[Tensor, None]:
        return self.map(lambda x: self.apply("neg", self.apply("softplus", self.apply("neg", x))), a["self"]), None

    def _op_gelu(self, a: dict[str, Any]) -> Tensor:
        name = "gelu_tanh" if a["approximate"] == "tanh" else "gelu"
        return self.map(lambda x: self.apply(name, x), a["self"])

    def _op_sign(self, a: dict[str, Any]) -> Tensor:
        zero = self._literal(0)

        def sign(x: Expr) -> Expr:
            negative = self.apply("where", self.apply("lt", x, zero), self._literal(-1.0), self._literal(0.0))
            return self.apply("where", self.apply("gt", x, zero), self._literal(1.0), negative)

        return self.map(sign, a["self"])

    _op_sgn = _op_sign

    def _op_expm1(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("sub", self.apply("exp", x), self._literal(1)), a["self"])

    def _op_log1p(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("log", self.apply("add", x, self._literal(1))), a["self"])

    def _op_log10(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("mul", self.apply("log", x), self._literal(1 / math.log(10))), a["self"])

    def _op_erfc(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("sub", self._literal(1), self.apply("erf", x)), a["self"])

    def _op_tan(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("div", self.apply("sin", x), self.apply("cos", x)), a["self"])

    def _op_addcmul(self, a: dict[str, Any]) -> Tensor:
        product = self._binary("mul", a["tensor1"], a["tensor2"])
        return self._op_add({"self": a["self"], "other": product, "alpha": a["value"]})

    def _op_addcdiv(self, a: dict[str, Any]) -> Tensor:
        return self._op_add(
            {"self": a["self"], "other": self._binary("div", a["tensor1"], a["tensor2"]), "alpha": a["value"]}
        )

    def _op_lerp(self, a: dict[str, Any]) -> Tensor:
        step = self._binary("mul", self._binary("sub", a["end"], a["self"]), a["weight"])
        return self._binary("add", a["self"], step)

    def _op_logaddexp(self, a: dict[str, Any]) -> Tensor:
        def combine(x: Expr, y: Expr) -> Expr:
            gap = self.apply("neg", self.apply("abs", self.apply("sub", x, y)))
            return self.apply("add", self.apply("maximum", x, y), self.apply("softplus", gap))

        return self.map(combine, a["self"], a["other"])

    def _op_isnan(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("ne", x, x), a["self"])

    def _op_isinf(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("eq", self.apply("abs", x), self._literal(math.inf)), a["self"])

    def _op_sigmoid_backward(self, a: dict[str, Any]) -> Tensor:
        slope = self.map(lambda y: self.apply("mul", y, self.apply("sub", self._literal(1), y)), a["output"])
        return self._binary("mul", a["grad_output"], slope)

    def _op_tanh_backward(self, a: dict[str, Any]) -> Tensor:
        slope = self.map(lambda y: self.apply("sub", self._literal(1), self.build.power(y, 2)), a["output"])
        return self._binary("mul", a["grad_output"], slope)

    def _op_silu_backward(self, a: dict[str, Any]) -> Tensor:
        def slope(x: Expr) -> Expr:
            sigma = self.apply("sigmoid", x)
            rest = self.apply("mul", x, self.apply("sub", self._literal(1), sigma))
            return self.apply("mul", sigma, self.apply("add", self._literal(1), rest))

        return self._binary("mul", a["grad_output"], self.map(slope, a["self"]))

    def _op_threshold_backward(self, a: dict[str, Any]) -> Tensor:
        bound = self._literal(a["threshold"])
        return self.map(
            lambda g, x: self.apply("where", self.apply("le", x, bound), self._literal(0.0), g),
            a["grad_output"],
            a["self"],
        )

    def _logical(self, op: str, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x, y: self.apply(op, self._truth(x), self._truth(y)), a["self"], a["other"])

    def _op_logical_and(self, a: dict[str, Any]) -> Tensor:
        return self._logical("and", a)

    def _op_logical_or(self, a: dict[str, Any]) -> Tensor:
        return self._logical("or", a)

    def _op_logical_not(self, a: dict[str, Any]) -> Tensor:
        return self.map(lambda x: self.apply("not", self._truth(x)), a["self"])

    def _op_logical_xor(self, a: dict[str, Any]) -> Tensor:
        def exclusive(x: Expr, y: Expr) -> Expr:
            return self.apply("and", self.apply("or", x, y), self.apply("not", self.apply("and", x, y)))

        return self.map(lambda x, y: exclusive(self._truth(x), self._truth(y)), a["self"], a["other"])

    def _bits(self, handler: Callable[[dict[str, Any]], Tensor], a: dict[str, Any]) -> Tensor:
        for value in (a["self"], a.get("other", True)):
            if any(item.type.element != "bool" for item in self.tensor(value).items):
                raise self.error("bits of integers are combined", "bitwise operations are for conditions")
        return handler(a)

    def _op_bitwise_and(self, a: dict[str, Any]) -> Tensor:
        return self._bits(self._op_logical_and, a)

    def _op_bitwise_or(self, a: dict[str, Any]) -> Tensor:
        return self._bits(self._op_logical_or, a)

    def _op_bitwise_xor(self, a: dict[str, Any]) -> Tensor:
        return self._bits(self._op_logical_xor, a)

    def _op_bitwise_not(self, a: dict[str, Any]) -> Tensor:
        return self._bits(self._op_logical_not, a)

    def _op_where(self, a: dict[str, Any]) -> Tensor:
        if a.get("self") is None:
            raise self.error("torch.where with one argument depends on the data", "give both branches")

        def choose(c: Expr, x: Expr, y: Expr) -> Expr:
            if x.type.element == y.type.element == "bool":
                return self.apply("or", self.apply("and", c, x), self.apply("and", self.apply("not", c), y))
            return self.apply("where", self._truth(c), self.build.numeric(x), self.build.numeric(y))

        return self.map(choose, a["condition"], a["self"], a["other"])

    def _op_masked_fill(self, a: dict[str, Any]) -> Tensor:
        return self._op_where({"condition": a["mask"], "self": a["value"], "other": a["self"]})

    # -- reductions ---------------------------------------------------------------------------------------------

    def _reduce(self, value: Tensor, dims: Any, keep: bool, combine: Combine, mean: bool = False) -> Tensor:
        rank = len(value.dims)
        chosen = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank))}
        axes = {value.dims[dim] for dim in chosen}
        columns = [axis for axis in axes if axis in _WIDTHS]
        if ROW in axes and columns:
            raise self.error(
                "a reduction over rows and columns at once",
                'reduce over one axis, as in Reduced[ColVector, "sum"], and finish outside',
            )
        items = [self.build.floating(item) for item in value.items]
        if TWO in axes and combine != "logsumexp":
            items = [self.apply("add" if combine == "sum" else "maximum", items[0], items[1])]
        elif TWO in axes:
            gap = self.apply("neg", self.apply("abs", self.apply("sub", items[0], items[1])))
            items = [self.apply("add", self.apply("maximum", items[0], items[1]), self.apply("softplus", gap))]
        if mean:
            for axis in (*columns, *([ROW] if ROW in axes else []), *([TWO] if TWO in axes else [])):
                items = [self.apply("div", item, self._count(axis)) for item in items]
        if columns or ROW in axes:
            if len(items) > 1:
                raise self.error("column pairs are reduced apart", "reduce x[:, 0::2] and x[:, 1::2] one by one")
            (item,) = items
            self._whole(item)
            missing = not (item.type.extent.rows and item.type.extent.columns)
            if missing:
                raise self.error(
                    f"a {item.type} {item.type.extent.shape} is reduced",
                    "only values that vary along rows and columns can be reduced",
                )
            items = [self.build.reduce(item, bool(columns), combine)]
        result = tuple(
            ONE if dim in chosen else axis for dim, axis in enumerate(value.dims) if keep or dim not in chosen
        )
        return Tensor(result, tuple(items))

    def _count(self, axis: str) -> Expr:
        columns = self.build.apply("num_cols")
        if axis == ROW:
            return self.build.apply("num_rows")
        if axis == "N":
            return columns
        if axis == TWO:
            return self._literal(2)
        return self.apply("div" if axis == "N/2" else "mul", columns, self._literal(2))

    def _op_sum(self, a: dict[str, Any]) -> Tensor:
        return self._reduce(a["self"], a.get("dim"), a.get("keepdim", False), "sum")

    def _op_mean(self, a: dict[str, Any]) -> Tensor:
        return self._reduce(a["self"], a.get("dim"), a.get("keepdim", False), "sum", mean=True)

    def _op_amax(self, a: dict[str, Any]) -> Tensor:
        return self._reduce(a["self"], a["dim"], a["keepdim"], "max")

    def _op_max(self, a: dict[str, Any]) -> Any:
        if "other" in a:
            return self._op_maximum(a)
        if a.get("dim") is None:
            return self._reduce(a["self"], None, False, "max")
        return self._reduce(a["self"], a["dim"], a["keepdim"], "max"), None

    def _op_logsumexp(self, a: dict[str, Any]) -> Tensor:
        return self._reduce(a["self"], a["dim"], a["keepdim"], "logsumexp")

    def _pick(self, value: Tensor, index: Expr, dims: tuple[str, ...]) -> Tensor:
        self._whole(value.expr)
        if (
            index.type.element != "int"
            or index.type.extent != Extent(True, 0)
            or not (value.expr.type.extent == Extent(True, FULL))
        ):
            raise self.error(
                "columns are gathered by something other than one integer a row",
                "gather one column a row of an (M, N) value, by a ColVector[int]",
            )
        return Tensor(dims, (self.build.reduce(value.expr, True, "sum", index),))

    def _op_gather(self, a: dict[str, Any]) -> Tensor:
        value, index = a["self"], a["index"]
        if len(value.dims) == 2 and value.dims == (ROW, "N") and a["dim"] % 2 == 1 and index.dims == (ROW, ONE):
            return self._pick(value, index.expr, index.dims)
        raise self.error(
            "gather of more than one column a row",
            "gather one column a row of an (M, N) value: acc.gather(1, target[:, None])",
        )

    def _op_index(self, a: dict[str, Any]) -> Tensor:
        value, indices = a["self"], a["indices"]
        if value.dims == (ROW, "N") and len(indices) == 2 and all(isinstance(index, Tensor) for index in indices):
            rows, columns = indices
            if rows.dims == columns.dims == (ROW,) and rows.expr.op == "row_index":
                return self._pick(value, columns.expr, (ROW,))
        raise self.error("indexing by a tensor", "only one column a row can be picked: x.gather(1, target[:, None])")


#: Operations that read sizes only to shape their result.
_SHAPED = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full",
    "new_empty", "slice", "slice_scatter", "split", "split_with_sizes", "arange",
}  # fmt: skip


def _kernel(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else ""


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _length(size: Any) -> int:
    """A size, or the length it has in this trace."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint if hint is not None else size.node.shape_env.size_hint(size.node.expr))


def _non_negative(x: Expr) -> bool:
    """Whether ``x`` is an integer that cannot be negative: made of indices, sizes and non-negative constants."""
    if x.type.element != "int":
        return False
    if x.op == "literal":
        return x.payload >= 0  # type: ignore[no-any-return]
    if x.op in ("col_index", "row_index", "num_cols", "num_rows"):
        return True
    return x.op in ("add", "mul", "floordiv", "mod", "item", "even_odd", "interleave", "square", "power") and all(
        map(_non_negative, x.args)
    )


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"
