"""One kernel on one problem: tuned, checked, and timed beside everything it should beat."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernel_library.runtime import Config, Kernel

from ..compiler.cost import GPUS
from ..operators import Operator
from . import baselines, tune
from .inputs import Inputs, random_inputs
from .timing import Ratio, Timings, alternate


class MeasurementFault(RuntimeError):
    """A measurement that cannot be true: a wrong result, or a time below what the hardware allows."""


@dataclass(frozen=True)
class Problem:
    """(m, k) by (k, n), and the optional outputs that are stored."""

    m: int
    n: int
    k: int
    include: frozenset[str] = frozenset()
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        stored = f" storing {', '.join(sorted(self.include))}" if self.include else ""
        return f"{self.m}x{self.n}x{self.k} {self.dtype}{stored}"


def tuned(
    kernel: Kernel, folder: Path, operator_spec: str, operator: Operator, problem: Problem, *, seconds: float = 20.0
) -> Config:
    """The fastest configuration found for a problem, in ``seconds`` of timing after compiling."""
    include, dtype = problem.include, problem.dtype
    itemsize = getattr(torch, dtype).itemsize
    space = list(tune.space(kernel, itemsize))
    if itemsize == 2 and torch.version.hip is None and torch.cuda.get_device_capability()[0] == 9:
        space = [*tune.pingpong_space(kernel, include), *space]
    configs = tune.compilable(folder, operator_spec, space, include, dtype)
    if not configs:
        raise MeasurementFault(f"no configuration of {operator.name} runs on this device")
    inputs = random_inputs(operator, problem.m, problem.n, problem.k, dtype=getattr(torch, dtype))
    ranked = tune.rank(kernel, inputs, configs, include, seconds=seconds)
    # Single readings rank; the leaders are then timed in alternation.
    leaders = [config for _, config in ranked[:4]]
    timings = alternate({str(i): _call(kernel, inputs, include, c) for i, c in enumerate(leaders)}, rounds=5, calls=3)
    return leaders[min(range(len(leaders)), key=lambda i: timings.median(str(i)))]


def measure(
    kernel: Kernel,
    operator: Operator,
    problem: Problem,
    config: Config | None = None,
    *,
    flops: float = 0.0,
    bytes_moved: int = 0,
    rounds: int = 12,
) -> dict[str, Any]:
    """Time a kernel in alternation with its baselines on the current GPU; a JSON-able row.

    ``flops`` and ``bytes_moved`` are the cost model's, for the roofline. Raises :class:`MeasurementFault` where the
    timed outputs are wrong or the time is impossible.
    """
    dtype = getattr(torch, problem.dtype)
    inputs = random_inputs(operator, problem.m, problem.n, problem.k, dtype=dtype)
    config = config or kernel.default_config(inputs.a, inputs.w, kernel.selected(problem.include))
    operands = inputs.tensors()
    calls: dict[str, Callable[[], Any]] = {
        "kernel": _call(kernel, inputs, problem.include, config),
        "gemm": lambda: inputs.a @ inputs.w.T,
    }
    forms: dict[str, baselines.Baseline] = {
        f"compile:{name}": torch.compile(form, dynamic=False)
        for name, form in baselines.tight(operator, problem.include).items()
    }
    written = None if problem.include else baselines.written(operator)
    if written is not None:
        forms["written"] = torch.compile(written, dynamic=False)
    forms["eager"] = baselines.reference_form(operator, problem.include)
    for name, form in forms.items():
        calls[name] = functools.partial(form, inputs.a, inputs.w, *operands)
        calls[name]()
    errors = _check(kernel, operator, inputs, problem, config)
    timings = alternate(calls, rounds=rounds, calls=4)
    torch._dynamo.reset()
    compiled = min((name for name in calls if name.startswith("compile:")), key=timings.median)
    floor = _floor(flops, bytes_moved, dtype)
    milliseconds = {name: round(timings.median(name), 4) for name in calls}
    if floor and milliseconds["kernel"] < floor:
        raise MeasurementFault(
            f"{operator.name} took {milliseconds['kernel']} ms, below the roofline of {floor:.3f} ms"
        )
    saved, possible = (milliseconds[compiled] - milliseconds[x] for x in ("kernel", "gemm"))
    return {
        "gpu": torch.cuda.get_device_name(),
        **{**asdict(problem), "include": sorted(problem.include)},
        "config": asdict(config),
        "ms": milliseconds,
        "rounds": rounds,
        "baseline": compiled,
        "vs_compile": _ratio(timings, compiled),
        "vs_written": _ratio(timings, "written") if written is not None else None,
        "vs_eager": _ratio(timings, "eager"),
        "vs_gemm": _ratio(timings, "gemm"),
        # The share of what fusing can save that is saved: 1 where the epilogue costs nothing beside the GEMM alone.
        "recovered": round(saved / possible, 3) if possible > 0 else None,
        "roofline_ms": round(floor, 4) if floor else None,
        "error": errors,
        "versions": {"torch": torch.__version__, "triton": _triton_version()},
    }


def _call(kernel: Kernel, inputs: Inputs, include: frozenset[str], config: Config) -> Callable[[], Any]:
    return functools.partial(kernel.run, inputs.a, inputs.w, inputs.operands, config=config, include=include)


def _ratio(timings: Timings, over: str) -> dict[str, float]:
    ratio: Ratio = timings.speedup("kernel", over)
    return {name: round(value, 4) for name, value in asdict(ratio).items()}


def _check(kernel: Kernel, operator: Operator, inputs: Inputs, problem: Problem, config: Config) -> Mapping[str, float]:
    """Relative error of each output on the very inputs that are timed, against the reference in fp32.

    The gate judges correctness; this catches a timed call that did not do the work.
    """
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        results = kernel.run(inputs.a, inputs.w, inputs.operands, config=config, include=problem.include)
        widened = [t.float() if t.is_floating_point() else t for t in inputs.tensors()]
        references = operator(inputs.a.float() @ inputs.w.float().T, *widened)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    errors: dict[str, float] = {}
    for output, reference in zip(operator.outputs, references, strict=True):
        if output.name in results:
            errors[output.name] = _relative(results[output.name], reference)
    limit = 4 * 2.0 ** -{torch.bfloat16: 8, torch.float16: 11, torch.float32: 16}[inputs.a.dtype]
    wrong = {name: error for name, error in errors.items() if not error < limit}
    if wrong:
        raise MeasurementFault(f"{operator.name} is wrong on the timed inputs: relative error {wrong}")
    return errors


def _relative(got: Tensor, reference: Tensor) -> float:
    return float(f"{((got.float() - reference).norm() / reference.norm()).item():.3g}")


def _floor(flops: float, bytes_moved: int, dtype: torch.dtype) -> float | None:
    """Roofline of this GPU in milliseconds, by its datasheet; None where the GPU is not in the table."""
    name = torch.cuda.get_device_name()
    gpu = next((gpu for key, gpu in GPUS.items() if key.split("-")[0] in name), None)
    if gpu is None:
        return None
    peak = gpu.fp32_tflops if dtype == torch.float32 else gpu.tensor_tflops
    return 1e3 * max(flops / (peak * 1e12), bytes_moved / (gpu.bandwidth * 1e12))


def _triton_version() -> str:
    import triton

    return str(triton.__version__)
