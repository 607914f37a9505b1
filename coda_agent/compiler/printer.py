"""IR → expressions and statements, in Triton and in plain PyTorch.

Both forms keep the author's names and statements; the primitive table supplies how each value is spelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..sandbox.ir import Assign, Epilogue, Store, Value
from ..sandbox.primitives import MAP, PRIMITIVES
from ..sandbox.types import FULL, HALF, PAIR, SCALAR

_ATOM = 9
_COLUMN = {HALF: "col // 2", FULL: "col", PAIR: "col * 2"}
_WIDTH = {HALF: "N // 2", FULL: "N", PAIR: "N * 2"}
_BLOCK = {HALF: "BLOCK_N // 2", FULL: "BLOCK_N", PAIR: "BLOCK_N * 2"}
_INDEX = {HALF: "half_cols", FULL: "cols", PAIR: "pair_cols"}

#: Device functions of ``kernel_library.runtime.tile`` that an epilogue's text may call.
DEVICE_FUNCTIONS = (
    "even_odd", "finish_logsumexp", "gelu", "gelu_tanh", "interleave", "load_col", "load_row", "load_tile", "maximum", "minimum",
    "relu", "sigmoid", "silu", "softplus", "square", "store_partial", "store_tile", "tanh", "update_logsumexp",
)  # fmt: skip

#: Lower-case names that the generated function uses itself.
_RESERVED = {
    "acc",
    "row",
    "col",
    "rows",
    "cols",
    "half_cols",
    "pair_cols",
    "tl",
    "triton",
    "torch",
    "ops",
    "tile",
    "min",
    "max",
    "kernel",
}


class Printer:
    """Prints one epilogue. ``indices`` collects the index vectors that the text turned out to need."""

    def __init__(self, epilogue: Epilogue, form: str) -> None:
        assert form in ("triton", "torch")
        self.epilogue = epilogue
        self.form = form
        self.names: dict[int, str] = {}
        self.indices: set[str] = set()
        self.taken = _RESERVED | set(PRIMITIVES) | set(DEVICE_FUNCTIONS)
        self.live = {id(value) for value in epilogue.values()}
        self.counts = self._count_uses()
        if form == "triton":
            for name in epilogue.signature.operands:
                self.taken |= {f"{name}_ptr", f"{name}_stride", f"{name}_value"}
            for name in epilogue.signature.outputs:
                self.taken |= {f"{name}_ptr", f"{name}_stride", f"{name}_partial", *self.state_names(name)}
        else:
            self.taken |= {self.operand_name(name) for name in epilogue.signature.operands} | {"F"}

    def _count_uses(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for value in self.epilogue.values():
            for argument in value.args:
                counts[id(argument)] = counts.get(id(argument), 0) + 1
        for value in self.epilogue.stores.values():
            counts[id(value)] = counts.get(id(value), 0) + 1
        return counts

    def state_names(self, output: str) -> tuple[str, ...]:
        value = self.epilogue.stores.get(output)
        carry = value.primitive.carry if value is not None and value.primitive else None
        if carry is None:
            return ()
        return (f"{output}_acc",) if len(carry.initial) == 1 else (f"{output}_max", f"{output}_sum")

    def operand_name(self, name: str) -> str:
        """An operand as the form spells it: parameters of the PyTorch form must not hide what it uses."""
        return f"{name}_" if self.form == "torch" and name in ("torch", "F", "ops", "acc") else name

    # --- Expressions -----------------------------------------------------------------------------------------------

    def expression(self, value: Value, *, define: bool = False) -> str:
        return self._expression(value, define)[0]

    def _expression(self, value: Value, define: bool = False) -> tuple[str, int]:
        """The text of a value and its precedence; ``define`` spells it out although it has a name."""
        if not define and id(value) in self.names:
            return self.names[id(value)], _ATOM
        if value.op == "acc":
            return "acc", _ATOM
        if value.op == "literal":
            return self._literal(value.payload)
        if value.op == "operand":
            return self.operand_name(str(value.payload)), _ATOM
        if value.op == "item":
            return f"{self.expression(value.args[0])}[{value.payload}]", _ATOM
        primitive = value.primitive
        assert primitive is not None
        if primitive.infix:
            symbol, precedence = primitive.infix
            if value.op == "not" and value.type.extent == SCALAR and self.form == "triton":
                # A scalar may be a constant of the compiler, on which ~ is arithmetic.
                return f"(not {self.expression(value.args[0])})", _ATOM
            if primitive.arity == 1:
                return f"{symbol}{self._wrapped(value.args[0], precedence)}", precedence
            left = self._wrapped(value.args[0], precedence + (symbol in ("<", "<=", ">", ">=", "==", "!=")))
            return f"{left} {symbol} {self._wrapped(value.args[1], precedence + 1)}", precedence
        template = primitive.triton if self.form == "triton" else primitive.torch
        receiver = template.startswith("{0}.")
        arguments = [
            self._wrapped(a, _ATOM) if receiver and i == 0 else self._argument(value, a)
            for i, a in enumerate(value.args)
        ]
        return template.format(*arguments, **self._context(value, template)), _ATOM

    def _argument(self, value: Value, argument: Value) -> str:
        """An argument of a function. Some device functions ask for tensors of fp32 where the language takes numbers."""
        text = self.expression(argument)
        primitive = value.primitive
        if self.form == "torch" or primitive is None or primitive.family != MAP:
            return text
        to_float = primitive.arity == 1 and argument.type.element == "int" and value.type.element == "float"
        if to_float or (value.op == "interleave" and argument.type.extent == SCALAR):
            return f"tl.cast({text}, {'tl.float32' if value.type.element == 'float' else 'tl.int32'})"
        return text

    def _wrapped(self, value: Value, precedence: int) -> str:
        text, own = self._expression(value)
        return text if own >= precedence else f"({text})"

    def _literal(self, number: float | int | str | None) -> tuple[str, int]:
        assert isinstance(number, (int, float))
        if isinstance(number, float) and math.isinf(number):
            text = "INFINITY" if self.form == "triton" else "torch.inf"
            return (text, _ATOM) if number > 0 else (f"-{text}", 6)
        return repr(number), (_ATOM if number >= 0 and not repr(number).startswith("-") else 6)

    def _context(self, value: Value, template: str) -> dict[str, str]:
        if self.form == "torch":
            return {"like": "acc"}
        columns = self._columns_of(value)
        if "{cols}" in template:
            self.indices.add(_INDEX[columns])
        if "{rows}" in template:
            self.indices.add("rows")
        return {
            "rows": "rows", "cols": _INDEX[columns], "M": "M", "N": "N",
            "col": _COLUMN[columns], "width": _WIDTH[columns], "block": _BLOCK[columns],
        }  # fmt: skip

    @staticmethod
    def _columns_of(value: Value) -> int:
        """Column extent of the tile a primitive works on: its own, or of its first argument where it reduces columns."""
        return value.type.extent.columns or (value.args[0].type.extent.columns if value.args else 0) or FULL

    # --- Statements ------------------------------------------------------------------------------------------------

    def statements(self) -> Iterator[str | Store]:
        """Lines of assignments, and stores for the caller to spell; statements that reach no store are left out."""
        for statement in self.epilogue.statements:
            if isinstance(statement, Store):
                yield from self._temporaries(statement.value)
                yield statement
            elif any(id(value) in self.live for value in statement.values):
                yield from self._assign(statement)

    def _assign(self, statement: Assign) -> Iterator[str]:
        first = statement.values[0]
        if first.type.partial and self.form == "triton":
            return  # spelled by its store, which carries it across sub-tiles
        if first.op == "acc" or id(first) in self.names:
            return  # a second name for a value that has one
        defined = first.args[0] if first.op == "item" else first
        yield from self._temporaries(defined)
        # A tuple of both items unpacks the pair; a lone item, or any other value, is spelled on its own.
        text = self.expression(defined if len(statement.names) > 1 else first, define=True)
        names = [self._fresh(name) for name in statement.names]
        self.names.update((id(value), name) for name, value in zip(names, statement.values, strict=True))
        yield f"{', '.join(names)} = {text}"

    def _fresh(self, name: str) -> str:
        """A printed name for an author's name: unique, so that rebinding a name never hides an earlier value."""
        candidate, count = (f"{name}_" if name in self.taken else name), 1
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        return candidate

    def _temporaries(self, value: Value) -> Iterator[str]:
        """Names for unnamed values that are used more than once, before the statement that uses them."""
        for argument in value.args:
            yield from self._temporaries(argument) if id(argument) not in self.names else ()
        shared = self.counts.get(id(value), 0) > 1 and value.op not in ("acc", "literal", "operand", "even_odd")
        if shared and id(value) not in self.names and not value.type.partial and not self._named_later(value):
            name = self._fresh("shared")
            yield f"{name} = {self.expression(value)}"
            self.names[id(value)] = name

    def _named_later(self, value: Value) -> bool:
        return any(isinstance(s, Assign) and any(v is value for v in s.values) for s in self.epilogue.statements)
