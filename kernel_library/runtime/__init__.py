"""What generated kernels share: device functions, launching, registration with PyTorch."""

from . import ops
from .config import Config
from .kernel import Kernel, load
from .spec import Operand, Output

__all__ = ["Config", "Kernel", "Operand", "Output", "load", "ops"]
