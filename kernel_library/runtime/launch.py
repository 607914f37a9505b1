"""From a problem to a launch: a plan for each kind of problem, so that a repeated call only fills in pointers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .config import Config
from .spec import Output

if TYPE_CHECKING:
    from .kernel import Kernel

#: Width of a tile in columns of the accumulator.
COLUMNS = {"HalfTile": 0.5, "Tile": 1, "PairTile": 2}


def shape_of(extent: str, m: Any, n: Any) -> tuple[Any, ...]:
    """The full shape of an extent; sizes may be symbolic."""
    return {
        "Tile": (m, n),
        "HalfTile": (m, n // 2),
        "PairTile": (m, n * 2),
        "RowVector": (n,),
        "ColVector": (m,),
        "Scalar": (),
    }[extent]


def facts(value: Any) -> tuple[Any, ...]:
    """All of an argument that a plan, and what Triton specialises its code on, depends on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16
    # Triton specialises on integers that are 1 or divisible by 16, and not on floating-point numbers.
    return (type(value), value == 1, value % 16 == 0) if isinstance(value, int) else (type(value),)


def tf32_allowed() -> bool:
    """Whether the user lets torch multiply fp32 matrices in TF32; a kernel follows."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


class Plan:
    """A launch with everything decided but the addresses."""

    def __init__(
        self,
        kernel: Kernel,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: Config,
        selected: Sequence[Output],
        out: Mapping[str, Tensor],
    ) -> None:
        self.gemm = kernel.gemm
        self.device = a.device
        self.dtype = a.dtype
        self.compiled: Any = None
        m, n = a.shape[0], w.shape[0]
        self.empty = m == 0 or n == 0
        tiles_m, tiles_n = -(-m // config.block_m), -(-n // config.block_n)
        self.tiles: dict[str, tuple[int, ...]] = {}
        self.workspaces: dict[str, tuple[int, int]] = {}
        self.reductions: dict[str, str] = {}
        for output in selected:
            if output.reduction:
                self.workspaces[output.name] = (tiles_n, m) if output.extent == "ColVector" else (tiles_m, n)
                self.reductions[output.name] = output.reduction
            else:
                self.tiles[output.name] = shape_of(output.extent, m, n)
        #: Where tensors go: position, name, block of its descriptor (None: by pointer), whether it lies transposed.
        self.slots: list[tuple[int, str, list[int] | None, bool]] = []
        #: Operands whose layout no form reads: copied before each launch.
        self.copied: list[str] = []
        #: Scalar operands: position, name, type.
        self.scalars: list[tuple[int, str, type]] = []
        self.values = self._arguments(kernel, a, w, operands, config, out)
        tiles = tiles_m * tiles_n
        if a.is_cuda:
            programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
        else:
            programs = min(tiles, 2)  # interpreted: fewer programs than tiles, so that the persistent loop turns
        self.grid = (programs, 1, 1)
        self.options = {"num_warps": config.num_warps, "num_stages": config.num_stages}

    def _arguments(
        self,
        kernel: Kernel,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: Config,
        out: Mapping[str, Tensor],
    ) -> list[Any]:
        a_k_major, w_k_major = _k_major(a), _k_major(w)
        tma = _use_tma(a, w, config)
        constants: dict[str, Any] = {
            "stride_am": a.stride(0), "stride_ak": a.stride(1), "stride_wn": w.stride(0), "stride_wk": w.stride(1),
            "M": a.shape[0], "N": w.shape[0], "K": a.shape[1],
            "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
            "GROUP_M": config.group_m, "SUBTILES": config.subtiles, "TMA": tma,
            "A_K_MAJOR": a_k_major, "W_K_MAJOR": w_k_major,
            "PRECISION": "tf32" if a.dtype == torch.float32 and tf32_allowed() else "ieee",
        }  # fmt: skip
        blocks: dict[str, list[int] | None] = {"A": None, "W": None}
        if tma:
            blocks["A"] = [config.block_m, config.block_k] if a_k_major else [config.block_k, config.block_m]
            blocks["W"] = [config.block_n, config.block_k] if w_k_major else [config.block_k, config.block_n]
        loaded: dict[str, Tensor] = {}
        for operand in kernel.operands:
            value = operands[operand.name]
            if not isinstance(value, Tensor):
                continue
            if value.dim() and value.stride(-1) != 1 and value.shape[-1] > 1:
                self.copied.append(operand.name)
                value = value.contiguous()
            if operand.extent in COLUMNS:
                loaded[operand.name] = value
        stored = {name: out.get(name, a.new_empty(shape, device="meta")) for name, shape in self.tiles.items()}
        for output in kernel.outputs:
            if output.optional:
                constants[f"STORE_{output.name.upper()}"] = output.name in self.tiles or output.name in self.workspaces
        constants["TMA_LOADS"] = tma and config.load_tma and _descriptors_fit(kernel, loaded, config)
        constants["TMA_STORES"] = tma and config.store_tma and _descriptors_fit(kernel, stored, config)
        for tensors, flag in ((loaded, "TMA_LOADS"), (stored, "TMA_STORES")):
            for name, tensor in tensors.items():
                constants[f"{name}_stride"] = tensor.stride(0)
                if constants[flag]:
                    blocks[f"{name}_ptr"] = [config.block_m, width_of(kernel, name, config)]
        values: list[Any] = []
        scalars = {f"{o.name}_value": (o.name, int if o.element == "int" else float) for o in kernel.operands}
        for position, name in enumerate(kernel.gemm.arg_names):
            source = "a" if name == "A" else "w" if name == "W" else name.removesuffix("_ptr").removesuffix("_partial")
            if name in constants:
                values.append(constants[name])
                continue
            values.append(0 if name.endswith("_stride") else None)
            if name in scalars:
                self.scalars.append((position, *scalars[name]))
            elif name in ("A", "W"):
                transposed = not (a_k_major if name == "A" else w_k_major) and blocks[name] is not None
                self.slots.append((position, f"({source})", blocks[name], transposed))
            elif source in operands or source in self.tiles or source in self.workspaces:
                self.slots.append((position, source, blocks.get(name), False))
        return values

    def execute(
        self, a: Tensor, w: Tensor, operands: Mapping[str, Any], out: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Any]:
        """Launch on these tensors; outputs by name, reductions finished, and Triton's compiled kernel."""
        results = {
            name: out[name] if name in out else torch.empty(shape, dtype=self.dtype, device=self.device)
            for name, shape in self.tiles.items()
        }
        partials = {
            name: torch.empty(shape, dtype=torch.float32, device=self.device) for name, shape in self.workspaces.items()
        }
        if not self.empty:
            tensors = {**operands, **results, **partials, "(a)": a, "(w)": w}
            for name in self.copied:
                tensors[name] = tensors[name].contiguous()
            self._launch(tensors)
        for name, partial in partials.items():
            results[name] = finish(partial, self.reductions[name])
        return results, self.compiled

    def _launch(self, tensors: Mapping[str, Any]) -> None:
        values = self._filled(tensors)
        if self.device.type != "cuda":
            self.gemm[self.grid](*values, **self.options)
        elif torch.cuda.current_device() == self.device.index:
            self._launch_here(values)
        else:
            with torch.cuda.device(self.device):
                self._launch_here(values)

    def _filled(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The kernel's arguments, with these tensors and scalars in their places."""
        values = self.values.copy()
        for position, name, block, transposed in self.slots:
            tensor = tensors[name]
            if block is not None:
                tensor = self._descriptor(tensor.T if transposed else tensor, block)
            values[position] = tensor
        for position, name, type_ in self.scalars:
            values[position] = type_(tensors[name])
        return values

    def _descriptor(self, tensor: Tensor, block: list[int]) -> Any:
        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)

    def _launch_here(self, values: list[Any]) -> None:
        if self.compiled is None:
            self.compiled = self.gemm[self.grid](*values, **self.options)
        else:
            # What Triton would look up by every argument's type and alignment, the plan's key already fixed.
            self.compiled[self.grid](*values)


def finish(workspace: Tensor, reduction: str) -> Tensor:
    """Combine the partials of all tiles: (tiles, length) → (length,)."""
    if reduction == "sum":
        return workspace.sum(0)
    if reduction == "logsumexp":
        return torch.logsumexp(workspace, 0)
    return workspace.amax(0) if workspace.shape[0] else workspace.new_full(workspace.shape[1:], -torch.inf)


def width_of(kernel: Kernel, name: str, config: Config) -> int:
    """Columns of a tile operand or output that one sub-tile covers."""
    extent = next(item.extent for item in kernel.items if item.name == name)
    return int(config.block_n // config.subtiles * COLUMNS[extent])


def _descriptors_fit(kernel: Kernel, tensors: Mapping[str, Tensor], config: Config) -> bool:
    return all(
        descriptor_allowed(tensor) and width_of(kernel, name, config) * tensor.element_size() >= 16
        for name, tensor in tensors.items()
    )


def _k_major(matrix: Tensor) -> bool:
    """Whether a GEMM operand (rows, K) is contiguous along K rather than along its rows."""
    return matrix.stride(1) == 1 or matrix.stride(0) != 1


def descriptor_allowed(matrix: Tensor) -> bool:
    """TMA's rules: 16-byte aligned base, strides of 16 bytes, contiguous last dimension, not empty.

    Rows must fill whole 16-byte units too: a store writes the last unit of a row in full, into what lies between rows.
    """
    return (
        matrix.numel() > 0
        and matrix.stride(1) == 1
        and matrix.shape[1] * matrix.element_size() % 16 == 0
        and matrix.stride(0) > 0
        and matrix.stride(0) * matrix.element_size() % 16 == 0
        and (matrix.is_meta or matrix.data_ptr() % 16 == 0)
    )


def _use_tma(a: Tensor, w: Tensor, config: Config) -> bool:
    if config.tma is False:
        return False
    if a.is_cuda and (torch.version.hip is not None or torch.cuda.get_device_capability(a.device)[0] < 9):
        return False
    return all(descriptor_allowed(t if _k_major(t) else t.T) for t in (a, w))
