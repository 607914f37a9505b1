"""The epilogue language: a restricted Python function over one output tile.

Programs are parsed against an allow-list and become a typed graph; nothing in them is executed. See
:mod:`~coda_agent.sandbox.primitives` for what a program may call.
"""

from .diagnostics import Diagnostic, SandboxError
from .ir import Assign, Epilogue, Store, Value
from .parser import parse
from .primitives import FAMILIES, PRIMITIVES, STORE, Primitive
from .types import EXTENTS, Extent, Operand, Output, Signature, Type

__all__ = [
    "EXTENTS",
    "FAMILIES",
    "PRIMITIVES",
    "STORE",
    "Assign",
    "Diagnostic",
    "Epilogue",
    "Extent",
    "Operand",
    "Output",
    "Primitive",
    "SandboxError",
    "Signature",
    "Store",
    "Type",
    "Value",
    "parse",
]
