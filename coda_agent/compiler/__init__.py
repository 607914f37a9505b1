"""Checked epilogue → Triton source, ahead-of-time compilation, and the cost model."""

from .cost import GPUS, Cost, Gpu, cost
from .generate import Description, generate

__all__ = ["GPUS", "Cost", "Description", "Gpu", "cost", "generate"]
