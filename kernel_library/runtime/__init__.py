"""What generated kernels share: device functions, launching, registration with PyTorch."""

from . import ops
from .config import Config
from .kernel import Kernel, Operand, Output, load

__all__ = ["Config", "Kernel", "Operand", "Output", "load", "ops"]
