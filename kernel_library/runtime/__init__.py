"""What generated kernels share: device functions, launching, registration with PyTorch."""

from .config import Config
from . import ops
from .kernel import Kernel, Operand, Output, load

__all__ = ["Config", "Kernel", "Operand", "Output", "load", "ops"]
