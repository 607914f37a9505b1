"""Checked epilogue → Triton source, ahead-of-time compilation, and the cost model."""

from .generate import Description, generate

__all__ = ["Description", "generate"]
