"""Cost model: bytes and operations of a fused kernel, what fusing saves, and roofline times on named GPUs.

Times are floors, max(operations / peak, bytes / bandwidth), from the vendors' datasheets (dense rates, no sparsity):
no kernel can be faster, and a measurement below one is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..sandbox.ir import Epilogue, Value
from ..sandbox.types import Extent


@dataclass(frozen=True)
class Gpu:
    """Datasheet figures: dense 16-bit tensor-core and fp32 rates in TFLOP/s, memory bandwidth in TB/s."""

    name: str
    target: str
    tensor_tflops: float
    fp32_tflops: float
    bandwidth: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100-80GB", "sm_80", 312, 19.5, 2.04),
        Gpu("H100-SXM", "sm_90", 989, 67, 3.35),
        Gpu("H200", "sm_90", 989, 67, 4.8),
        Gpu("B200", "sm_100", 2250, 75, 8.0),
    )
}


@dataclass(frozen=True)
class Cost:
    """One call at (m, n, k). Bytes count each tensor once, as if the caches were perfect.

    ``fused_bytes`` is the kernel's own traffic; ``two_kernel_bytes`` that of a GEMM that writes its product and one
    pointwise kernel that reads it back (a tight torch.compile); ``eager_bytes`` that of one kernel an operation.
    """

    m: int
    n: int
    k: int
    itemsize: int
    gemm_flops: float
    epilogue_flops: float
    fused_bytes: int
    two_kernel_bytes: int
    eager_bytes: int

    def seconds(self, gpu: Gpu, traffic: int | None = None) -> float:
        """Roofline floor on ``gpu`` for the fused kernel, or for another traffic in bytes."""
        tensor = gpu.tensor_tflops if self.itemsize < 4 else gpu.fp32_tflops
        compute = self.gemm_flops / (tensor * 1e12)
        return max(compute, (self.fused_bytes if traffic is None else traffic) / (gpu.bandwidth * 1e12))

    def unfused_seconds(self, gpu: Gpu) -> float:
        """Floor of the GEMM followed by one pointwise kernel, which cannot overlap."""
        product = self.m * self.n * self.itemsize
        gemm_bytes = (self.m * self.k + self.n * self.k) * self.itemsize + product
        pointwise = self.two_kernel_bytes - gemm_bytes
        return self.seconds(gpu, gemm_bytes) + pointwise / (gpu.bandwidth * 1e12)

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "gpus": {
                name: {
                    "fused_ms": round(self.seconds(gpu) * 1e3, 4),
                    "unfused_ms": round(self.unfused_seconds(gpu) * 1e3, 4),
                    "bound": "memory" if self.fused_bytes / (gpu.bandwidth * 1e12) >= self.seconds(gpu) else "compute",
                }
                for name, gpu in GPUS.items()
            },
        }


def cost(epilogue: Epilogue, m: int, n: int, k: int, itemsize: int = 2) -> Cost:
    """Count one call of a fused kernel on an (m, k) by (k, n) product with ``itemsize``-byte inputs.

    Optional outputs are counted as stored.
    """
    values = list(epilogue.values())
    product = m * n * itemsize
    gemm = (m * k + n * k) * itemsize
    signature = epilogue.signature
    loads = sum(_bytes(signature.operands[name].extent, m, n, itemsize) for name in epilogue.loads)
    stores = sum(
        _elements(output.extent, m, n) * 4 if output.reduction else _bytes(output.extent, m, n, itemsize)
        for output in signature.outputs.values()
    )
    flops = sum(value.primitive.cost * _work(value, m, n) for value in values if value.primitive)
    return Cost(
        m, n, k, itemsize,
        gemm_flops=2.0 * m * n * k,
        epilogue_flops=flops,
        fused_bytes=gemm + loads + stores,
        two_kernel_bytes=gemm + product + product + loads + stores,
        eager_bytes=gemm + product + sum(_eager(value, m, n, itemsize) for value in values) ,
    )  # fmt: skip


def _elements(extent: Extent, m: int, n: int) -> int:
    return (m if extent.rows else 1) * (n * extent.columns // 2 if extent.columns else 1)


def _bytes(extent: Extent, m: int, n: int, itemsize: int) -> int:
    # Column vectors are fp32 statistics whatever the inputs are.
    return _elements(extent, m, n) * (4 if extent.rows and not extent.columns else itemsize)


def _work(value: Value, m: int, n: int) -> int:
    """Elements a primitive handles: of its result, or of what it reduces."""
    return max(_elements(item.type.extent, m, n) for item in (value, *value.args))


def _eager(value: Value, m: int, n: int, itemsize: int) -> int:
    """Traffic of one operation run by itself: every argument read, the result written. Views and leaves are free."""
    if value.primitive is None or value.primitive.cost == 0:
        return 0
    inputs: Sequence[Value] = value.args
    return sum(_bytes(item.type.extent, m, n, itemsize) for item in (value, *inputs) if item.op != "literal")
