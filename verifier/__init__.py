"""The gate: a kernel is compared with its operator's fp64 reference on drawn cases, against derived bounds.

    from verifier import verify
    report = verify(operator, folder)

The kernel runs in a worker process of its own; everything that decides is computed here, from tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import Case
    from .gate import Report, replay, verify

__all__ = ["Case", "Report", "replay", "verify"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import verifier`` stays cheap."""
    if name == "Case":
        from .cases import Case

        return Case
    if name in ("Report", "replay", "verify"):
        import importlib

        return getattr(importlib.import_module(".gate", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
