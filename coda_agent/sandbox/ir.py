"""The typed form of an epilogue: a list of statements over a graph of values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from .primitives import PRIMITIVES, Primitive
from .types import HALF, Signature, Type


@dataclass(frozen=True)
class Location:
    """Where in the source a value was written; lines and columns count from 1."""

    line: int
    column: int


@dataclass(frozen=True, eq=False)
class Value:
    """One value: a leaf (``acc``, ``literal``, ``operand``), an application of a primitive, or an ``item`` of a pair.

    ``payload`` is the number of a literal, the name of an operand, the index of an item. Values are compared by
    identity: a name used twice refers to one value.
    """

    op: str
    args: tuple[Value, ...]
    type: Type
    location: Location = Location(1, 1)
    payload: float | int | str | None = None

    @property
    def primitive(self) -> Primitive | None:
        return PRIMITIVES.get(self.op)


@dataclass(frozen=True)
class Assign:
    """``name = value`` or ``even, odd = even_odd(x)``: names for one value or for the items of a pair."""

    names: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Store:
    """``store(output, value)``."""

    output: str
    value: Value


@dataclass(frozen=True)
class Epilogue:
    """A checked program: its parameters, its statements in order, and the signature it was checked against."""

    parameters: tuple[str, ...]
    statements: tuple[Assign | Store, ...]
    signature: Signature
    source: str = field(compare=False, default="")

    @property
    def stores(self) -> dict[str, Value]:
        return {s.output: s.value for s in self.statements if isinstance(s, Store)}

    def values(self) -> Iterator[Value]:
        """Every value that reaches a store, each once, arguments before uses."""
        seen: set[int] = set()
        # A stack of its own: graphs may be deeper than Python's.
        stack = [(value, False) for value in reversed(self.stores.values())]
        while stack:
            value, ready = stack.pop()
            if ready:
                yield value
            elif id(value) not in seen:
                seen.add(id(value))
                stack.append((value, True))
                stack += [(argument, False) for argument in reversed(value.args)]

    @property
    def loads(self) -> tuple[str, ...]:
        """Names of the operands that reach a store, in the order of the signature."""
        used = {value.payload for value in self.values() if value.op == "operand"}
        return tuple(name for name in self.signature.operands if name in used)

    @property
    def pairs(self) -> bool:
        """Whether N must be even: something is half as wide as the accumulator."""
        return self.signature.pairs or any(value.type.extent.columns == HALF for value in self.values())

    @property
    def digest(self) -> str:
        """Identity of what is computed: equal for programs that differ in names, layout or order of statements."""
        keys: dict[int, str] = {}
        for value in self.values():
            parts = [value.op, repr(value.payload), str(value.type), *(keys[id(arg)] for arg in value.args)]
            keys[id(value)] = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        stores = sorted(f"{name}={keys[id(value)]}" for name, value in self.stores.items())
        return hashlib.sha256("\n".join(stores).encode()).hexdigest()
