"""Launching generated kernels: shapes, layouts, workspaces, descriptors, and registration with PyTorch."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
import warnings
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import Config, default_config
from .launch import COLUMNS, Plan, facts, finish, shape_of, tf32_allowed
from .spec import Operand, Output, Scalar
from .tuned import lookup

#: Plans kept a kernel; a server of ever new shapes starts over now and then.
_PLANS = 1024

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_SCALARS = (int, float, torch.SymInt, torch.SymFloat)


class Kernel:
    """One generated kernel: a GEMM ``x @ weight.T`` with its epilogue fused.

    Calling it takes (..., K) tensors and returns what was asked for; :meth:`run` and :meth:`evaluate` are the two
    forms behind it, on matrices.
    """

    def __init__(
        self,
        name: str,
        *,
        gemm: Any,
        epilogue: Any = None,
        start: Any = None,
        finish: Any = None,
        torch_epilogue: Callable[..., tuple[Tensor, ...]],
        operands: Sequence[Operand],
        outputs: Sequence[Output],
        pairs: bool = False,
        file: str = "",
    ) -> None:
        self.name = name
        #: The folder of kernel.py, whose record.json may hold tuned configurations.
        self.folder = Path(file).parent if file else None
        self.gemm = gemm
        #: What the plain mainloop calls on a tile, for the ping-pong mainloop to call too: the epilogue of a sub-tile,
        #: and where reductions run along rows, what they start from and where they go.
        self.epilogue, self.start, self.finish = epilogue, start, finish
        self.torch_epilogue = torch_epilogue
        self.operands = tuple(operands)
        self.outputs = tuple(outputs)
        self.items: tuple[Operand | Output, ...] = (*self.operands, *self.outputs)
        #: Whether N must be even: the epilogue splits the accumulator's columns into pairs.
        self.pairs = pairs
        #: Tiles that the epilogue loads and stores, besides the accumulator: what its registers and memory go to.
        self.extra_tiles = sum(1 for item in self.items if item.extent in COLUMNS)
        self.optional = frozenset(output.name for output in self.outputs if output.optional)
        self.Result = namedtuple(  # type: ignore[misc]
            f"{''.join(part.title() for part in name.split('_'))}Result", [output.name for output in self.outputs]
        )
        self._op: Callable[..., Sequence[Tensor]] | None = None
        self._library: torch.library.Library | None = None
        self._told = False
        self._plans: dict[tuple[Any, ...], Plan] = {}

    # --- Calling ---------------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor, weight: Tensor, *operands: Tensor | Scalar, include: Collection[str] = ()) -> Any:
        """``x`` (..., K), ``weight`` (N, K), operands of their extents with the leading dimensions of ``x``.

        Returns the tensor where one output results, else a named tuple of those that were asked for.
        """
        op = self._op or self.register(f"coda_agent_kernels_{next(_LOADED)}")
        for name, value in (("x", x), ("weight", weight)):
            if not isinstance(value, Tensor):
                raise TypeError(f"{self.name}: {name} must be a Tensor; got {type(value).__name__}")
        if x.dim() == 0:
            raise ValueError(f"{self.name}: x must be (..., K); got a 0-d tensor")
        if len(operands) != len(self.operands):
            expected = ", ".join(spec.name for spec in self.operands) or "none"
            raise TypeError(
                f"{self.name}: {len(self.operands)} operands are expected ({expected}); got {len(operands)}"
            )
        self.selected(include)
        lead = x.shape[:-1]
        matrix = x if x.dim() == 2 else x.reshape(math.prod(lead), x.shape[-1])
        flat = [self._flatten(spec, value, lead) for spec, value in zip(self.operands, operands, strict=True)]
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, *flat)):
            raise RuntimeError(
                f"{self.name} has no backward yet, and an input requires grad: call it under torch.no_grad() or detach() the inputs"
            )
        wanted = [output for output in self.outputs if not output.optional or output.name in include]
        flags = [output.name in include for output in self.outputs if output.optional]
        results = dict(zip([o.name for o in self.outputs], op(matrix, weight, *flat, *flags), strict=True))
        shaped = [self._unflatten(output, results[output.name], lead) for output in wanted]
        if len(shaped) == 1:
            return shaped[0]
        if len(shaped) == len(self.outputs):
            return self.Result(*shaped)
        return namedtuple(self.Result.__name__, [output.name for output in wanted])(*shaped)  # type: ignore[misc]

    def _flatten(self, spec: Operand, value: Tensor | Scalar, lead: torch.Size) -> Tensor | Scalar:
        if spec.extent == "Scalar":
            if isinstance(value, Tensor) or not isinstance(value, _SCALARS):
                raise TypeError(f"{self.name}: {spec.name} must be a Python number; got {type(value).__name__}")
            return value
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{self.name}: {spec.name} must be a Tensor {self._symbolic(spec)}; got {type(value).__name__}"
            )
        if len(lead) == 1 or spec.extent == "RowVector":
            return value
        if spec.extent == "ColVector":
            return value.reshape(-1) if value.shape == lead else value
        return value.reshape(-1, value.shape[-1]) if value.shape[:-1] == lead else value

    @staticmethod
    def _unflatten(output: Output, value: Tensor, lead: torch.Size) -> Tensor:
        if len(lead) == 1 or output.extent == "RowVector":
            return value
        return value.reshape((*lead, *value.shape[1:]))

    @staticmethod
    def _symbolic(spec: Operand | Output) -> str:
        return {
            "Tile": "(M, N)",
            "HalfTile": "(M, N/2)",
            "PairTile": "(M, 2N)",
            "RowVector": "(N,)",
            "ColVector": "(M,)",
            "Scalar": "()",
        }[spec.extent]

    def register(self, namespace: str) -> Callable[..., Sequence[Tensor]]:
        """Define ``torch.ops.<namespace>.<name>`` with CUDA, CPU and fake implementations, once."""
        if self._op is not None:
            return self._op
        types = {"Scalar": {"float": "float", "int": "int"}}
        inputs = ["Tensor x", "Tensor weight"]
        inputs += [f"{types.get(o.extent, {}).get(o.element, 'Tensor')} {o.name}" for o in self.operands]
        inputs += [f"bool return_{o.name}" for o in self.outputs if o.optional]
        library = torch.library.Library(namespace, "FRAGMENT")
        returns = ", ".join("Tensor" for _ in self.outputs)
        library.define(f"{self.name}({', '.join(inputs)}) -> ({returns})")
        library.impl(self.name, self._on_cuda, "CUDA")
        library.impl(self.name, self._on_cpu, "CPU")
        torch.library.register_fake(f"{namespace}::{self.name}", self._fake, lib=library)
        overload = getattr(getattr(torch.ops, namespace), self.name).default
        single = len(self.outputs) == 1
        self._library = library
        self._op = (lambda *args: (overload(*args),)) if single else overload
        return self._op

    def _split(self, args: Sequence[Any]) -> tuple[dict[str, Any], set[str]]:
        count = len(self.operands)
        operands = dict(zip([o.name for o in self.operands], args[:count], strict=True))
        optional = [o.name for o in self.outputs if o.optional]
        return operands, {name for name, wanted in zip(optional, args[count:], strict=True) if wanted}

    def _pack(self, results: Mapping[str, Tensor], x: Tensor) -> Any:
        packed = tuple(results[o.name] if o.name in results else self._absent(o, x) for o in self.outputs)
        return packed if len(packed) > 1 else packed[0]

    @staticmethod
    def _absent(output: Output, x: Tensor) -> Tensor:
        return x.new_empty(0, dtype=torch.float32 if output.reduction else x.dtype)

    def _on_cuda(self, x: Tensor, weight: Tensor, *args: Any) -> Any:
        operands, include = self._split(args)
        return self._pack(self.run(x, weight, operands, include=include), x)

    def _on_cpu(self, x: Tensor, weight: Tensor, *args: Any) -> Any:
        if not self._told:
            self._told = True
            warnings.warn(f"{self.name}: CPU tensors run the kernel's PyTorch form, unfused", stacklevel=2)
        operands, include = self._split(args)
        return self._pack(self.evaluate(x, weight, operands, include=include), x)

    def _fake(self, x: Tensor, weight: Tensor, *args: Any) -> Any:
        operands, include = self._split(args)
        m, n, _ = self._check(x, weight, operands)
        results = {o.name: self._empty(o, x, m, n) for o in self.outputs if not o.optional or o.name in include}
        return self._pack(results, x)

    @staticmethod
    def _empty(output: Output, x: Tensor, m: int, n: int) -> Tensor:
        return x.new_empty(shape_of(output.extent, m, n), dtype=torch.float32 if output.reduction else x.dtype)

    # --- Checking --------------------------------------------------------------------------------------------------

    def _check(self, a: Tensor, w: Tensor, operands: Mapping[str, Any]) -> tuple[int, int, int]:
        if a.dim() != 2 or w.dim() != 2:
            raise ValueError(
                f"{self.name}: x must be (..., K) and weight (N, K); got {tuple(a.shape)} and {tuple(w.shape)}"
            )
        m, k = a.shape
        n, k2 = w.shape
        if k != k2:
            raise ValueError(
                f"{self.name}: x is (..., K={k}) but weight is (N={n}, K={k2}); weight must be (N, K), as nn.Linear stores it"
            )
        if a.dtype not in _DTYPES:
            raise TypeError(f"{self.name}: x must be bfloat16, float16 or float32; got {a.dtype}")
        if w.dtype != a.dtype:
            raise TypeError(f"{self.name}: x and weight must have one dtype; got {a.dtype} and {w.dtype}")
        if w.device != a.device:
            raise ValueError(f"{self.name}: x and weight must be on one device; got {a.device} and {w.device}")
        if self.pairs and n % 2:
            raise ValueError(
                f"{self.name}: N must be even, since columns come in interleaved pairs; weight is (N={n}, K={k})"
            )
        missing = [o.name for o in self.operands if o.name not in operands]
        if missing:
            raise TypeError(f"{self.name}: missing operands: {', '.join(missing)}")
        for spec in self.operands:
            value = operands[spec.name]
            if spec.extent == "Scalar":
                if isinstance(value, Tensor):
                    raise TypeError(f"{self.name}: {spec.name} must be a Python number; got a Tensor")
                continue
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{self.name}: {spec.name} must be a Tensor {self._symbolic(spec)}; got {type(value).__name__}"
                )
            expected = shape_of(spec.extent, m, n)
            if tuple(value.shape) != expected:
                raise ValueError(
                    f"{self.name}: {spec.name} must be {self._symbolic(spec)} = {expected}; got {tuple(value.shape)}"
                )
            if value.device != a.device:
                raise ValueError(f"{self.name}: {spec.name} must be on {a.device}, like x; got {value.device}")
            if spec.element == "int":
                if value.dtype not in (torch.int64, torch.int32):
                    raise TypeError(f"{self.name}: {spec.name} must be int64 or int32; got {value.dtype}")
            elif value.dtype not in _DTYPES:
                raise TypeError(f"{self.name}: {spec.name} must be bfloat16, float16 or float32; got {value.dtype}")
        return m, n, k

    def selected(self, include: Collection[str] | None) -> list[Output]:
        """The outputs a call stores: those that are always, and the optional ones in ``include`` (None: all)."""
        unknown = set(include or ()) - self.optional
        if unknown:
            raise ValueError(
                f"{self.name} has no optional output {', '.join(sorted(unknown))}; it has: {', '.join(sorted(self.optional)) or 'none'}"
            )
        return [o for o in self.outputs if not o.optional or include is None or o.name in include]

    # --- The two forms ---------------------------------------------------------------------------------------------

    def evaluate(
        self, a: Tensor, w: Tensor, operands: Mapping[str, Any], *, include: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """The plain-PyTorch form on matrices: fp32 product, fp32 epilogue, outputs rounded once.

        ``a`` is (M, K), ``w`` (N, K); returns outputs by name, all optional ones unless ``include`` names some.
        """
        m, n, _ = self._check(a, w, operands)
        if not (m and n):
            return {o.name: self._of_nothing(o, a, m, n) for o in self.selected(include)}
        widened = [_widened(operands[spec.name], a.device) for spec in self.operands]
        results = self.torch_epilogue(a.float() @ w.float().T, *widened)
        by_name = dict(zip([o.name for o in self.outputs], results, strict=True))
        outputs: dict[str, Tensor] = {}
        taken = {value.data_ptr() for value in (a, w, *operands.values()) if isinstance(value, Tensor)}
        for o in self.selected(include):
            value = torch.as_tensor(by_name[o.name], device=a.device).to(torch.float32 if o.reduction else a.dtype)
            value = value.expand(shape_of(o.extent, m, n)).contiguous()
            # An epilogue may pass an operand through, or one value to two outputs; results never share memory.
            outputs[o.name] = value.clone() if value.data_ptr() in taken else value
            taken.add(outputs[o.name].data_ptr())
        return outputs

    def _of_nothing(self, output: Output, a: Tensor, m: int, n: int) -> Tensor:
        """An output where M or N is 0: an empty tile, or what a reduction over nothing gives."""
        if not output.reduction:
            return self._empty(output, a, m, n)
        length = m if output.extent == "ColVector" else n
        return finish(torch.empty((0, length), dtype=torch.float32, device=a.device), output.reduction)

    def run(
        self,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        *,
        config: Config | None = None,
        include: Collection[str] | None = None,
        out: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Launch the Triton kernel on matrices of any strides.

        ``a`` is (M, K), ``w`` (N, K); ``out`` may give tile outputs to write into, of any row stride and with
        contiguous columns. Returns outputs by name, all optional ones unless ``include`` names some.
        """
        return self._run(a, w, operands, config, include, out)[0]

    def launch(
        self, a: Tensor, w: Tensor, operands: Mapping[str, Any], config: Config, include: Collection[str] | None = None
    ) -> Any:
        """Like :meth:`run`, but returns Triton's compiled kernel, which knows its registers and spills."""
        return self._run(a, w, operands, config, include, None)[1]

    def _run(
        self,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: Config | None,
        include: Collection[str] | None,
        out: Mapping[str, Tensor] | None,
    ) -> tuple[dict[str, Tensor], Any]:
        out = out or {}
        key = (
            config,
            None if include is None else frozenset(include),
            facts(a),
            facts(w),
            *map(facts, operands.values()),
            *operands,
            *map(facts, out.values()),
            *out,
            tf32_allowed(),
        )
        plan = self._plans.get(key)
        if plan is None:
            m, n, _ = self._check(a, w, operands)
            selected = self.selected(include)
            for output in selected:
                if output.name in out:
                    self._check_out(output, out[output.name], a, m, n)
            plan = self._plan(a, w, operands, config or self.default_config(a, w, selected), selected, out)
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan.execute(a, w, operands, out)

    def _plan(
        self,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        config: Config,
        selected: Sequence[Output],
        out: Mapping[str, Tensor],
    ) -> Plan:
        """A launch behind the mainloop that ``config`` names, or behind the plain one where that cannot run."""
        if config.pingpong:
            if a.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(a.device)[0] == 9:
                from .pingpong import PingPongPlan, fits

                if fits(self, a, w, operands, config, selected, out):
                    return PingPongPlan(self, a, w, operands, config, selected, out)
            config = self._config_by_shape(a, w)
        return Plan(self, a, w, operands, config, selected, out)

    def _check_out(self, output: Output, given: Tensor, a: Tensor, m: int, n: int) -> Tensor:
        expected = shape_of(output.extent, m, n)
        if tuple(given.shape) != expected or given.dtype != a.dtype or given.device != a.device:
            raise ValueError(
                f"{self.name}: out[{output.name!r}] must be {expected} {a.dtype} on {a.device}; got {tuple(given.shape)} {given.dtype} on {given.device}"
            )
        if given.shape[1] > 1 and given.stride(1) != 1:
            raise ValueError(
                f"{self.name}: out[{output.name!r}] must have contiguous columns; got strides {given.stride()}"
            )
        return given

    def default_config(self, a: Tensor, w: Tensor, selected: Sequence[Output] | None = None) -> Config:
        """The configuration used where none is given: a tuned one from the record, else one chosen by shape."""
        (m, k), n = a.shape, w.shape[0]
        if self.folder is not None and a.is_cuda:
            properties = torch.cuda.get_device_properties(a.device)
            include = [o.name for o in (self.outputs if selected is None else selected) if o.optional]
            dtype = str(a.dtype).removeprefix("torch.")
            found = lookup(self.folder, properties.name, dtype, include, m, n, k)
            if found is not None:
                return found
        return self._config_by_shape(a, w)

    def _config_by_shape(self, a: Tensor, w: Tensor) -> Config:
        if not a.is_cuda:
            return Config(32, 32, 32, num_warps=4)  # the interpreter: small, so that edges are met
        properties = torch.cuda.get_device_properties(a.device)
        return default_config(
            a.shape[0],
            w.shape[0],
            a.element_size(),
            multiprocessors=properties.multi_processor_count,
            hopper=torch.version.hip is None and properties.major >= 9,
            extra_tiles=self.extra_tiles,
        )


def _widened(value: Tensor | Scalar, device: torch.device) -> Tensor:
    """An operand as the PyTorch form takes it: fp32 or integers, scalars as 0-d tensors."""
    if not isinstance(value, Tensor):
        return torch.tensor(value, device=device)
    return value.float() if value.is_floating_point() else value


_LOADED = itertools.count()


def load(folder: Path | str) -> Kernel:
    """The kernel in ``<folder>/kernel.py``, whether or not the folder is part of a library."""
    path = Path(folder).resolve() / "kernel.py"
    # The parent package is this library, so that the file's relative imports find this runtime.
    package = __name__.split(".")[0]
    name = f"{package}._loaded_{next(_LOADED)}.kernel"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no kernel at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    kernel = module.kernel
    assert isinstance(kernel, Kernel)
    return kernel


__all__ = ["Config", "Kernel", "Operand", "Output", "load"]
