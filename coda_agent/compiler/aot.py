"""Ahead-of-time compilation of a generated kernel for named targets, without a GPU.

Triton's compiler can abort the process it runs in, so candidates are compiled in a subprocess: this module is both the
caller (:func:`compile_for`) and, run as a script, the callee.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_library.runtime import Config, Kernel

#: Targets a kernel is compiled for unless others are named.
DEFAULT_TARGETS = ("sm_80", "sm_90", "sm_100")

# The problem whose default configuration is compiled: large enough for the widest tiles.
_M, _N = 16384, 8192
_TENSOR_CORES = (
    ("tcgen05", r"tcgen05\.mma"),
    ("wgmma", r"wgmma\.mma_async"),
    ("mma", r"\bmma\.sync"),
    ("mfma", r"v_mfma"),
)


@dataclass(frozen=True)
class CompileReport:
    """What compiling for one target gave.

    ``shared_bytes`` is the shared memory of a program, ``spill_bytes`` the local-memory frame of a thread (0: nothing
    spills), ``tensor_cores`` the kind of matrix instruction found, ``error`` why there is no code.
    """

    target: str
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    tensor_cores: str | None = None
    seconds: float = 0.0
    error: str | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class TargetError(ValueError):
    """A target is not one that can be compiled for."""


def check_target(target: str) -> None:
    """Raise :class:`TargetError` unless ``target`` is like ``sm_90`` or ``gfx942``."""
    if not re.fullmatch(r"sm_(8[0-9]|9[0-9]|1[0-2][0-9])|gfx9[0-9a-f]{2}", target):
        raise TargetError(f"unknown target {target!r}: name one like sm_80, sm_90, sm_100 or gfx942")


def compile_for(
    folder: Path,
    targets: Sequence[str] = DEFAULT_TARGETS,
    *,
    config: Config | None = None,
    dtype: str = "bf16",
    timeout: float = 300.0,
) -> list[CompileReport]:
    """Compile ``<folder>/kernel.py`` for each target, for GEMM inputs of ``dtype`` ("bf16", "fp16" or "fp32").

    Without ``config`` each target gets the configuration that the library would choose for a large problem.
    """
    for target in targets:
        check_target(target)
    reports: dict[str, CompileReport] = {}
    while remaining := [target for target in targets if target not in reports]:
        found, failure = _spawn(folder, remaining, config, dtype, timeout)
        reports.update((report.target, report) for report in found)
        # The process died while compiling the first target it had not reported.
        if failure and (lost := [target for target in remaining if target not in reports]):
            reports[lost[0]] = CompileReport(lost[0], error=failure)
    return [reports[target] for target in targets]


def _spawn(
    folder: Path, targets: Sequence[str], config: Config | None, dtype: str, timeout: float
) -> tuple[list[CompileReport], str | None]:
    request = {
        "folder": str(folder),
        "targets": list(targets),
        "config": asdict(config) if config else None,
        "dtype": dtype,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,
    )
    failure = None
    try:
        out, err = process.communicate(json.dumps(request), timeout=timeout)
        if process.returncode:
            failure = f"the compiler died ({_exit_name(process.returncode)}): {_last_line(err)}"
    except subprocess.TimeoutExpired:
        _kill(process)
        out, _ = process.communicate()
        failure = f"compilation took more than {timeout:.0f} s"
    except BaseException:
        _kill(process)
        raise
    reports = [CompileReport(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    return reports, failure


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """What the compiler needs of the environment, and no keys."""
    allowed = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "TRITON_CACHE_DIR", "CUDA_HOME", "VIRTUAL_ENV")
    return {
        **{name: os.environ[name] for name in allowed if name in os.environ},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _exit_name(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit {code}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


# --- In the subprocess -----------------------------------------------------------------------------------------------


def _compile(kernel: Kernel, target: str, config: Config | None, dtype: str) -> CompileReport:
    import triton
    from triton.backends.compiler import GPUTarget

    cuda = target.startswith("sm_")
    capability = int(target[3:]) if cuda else 0
    config = config or _library_choice(kernel, dtype, hopper=capability >= 90)
    tma = cuda and capability >= 90 and config.tma is not False
    gpu = GPUTarget("cuda", capability, 32) if cuda else GPUTarget("hip", target, 64)
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        compiled = triton.compile(
            _source(kernel, config, dtype, tma),
            target=gpu,
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
    seconds = time.perf_counter() - started
    assembly = compiled.asm["ptx" if cuda else "amdgcn"]
    registers, spills = _resources(compiled.asm["cubin"]) if cuda else _amd_resources(assembly)
    return CompileReport(
        target,
        registers=registers,
        shared_bytes=compiled.metadata.shared,
        spill_bytes=spills,
        tensor_cores=next((name for name, pattern in _TENSOR_CORES if re.search(pattern, assembly)), None),
        seconds=round(seconds, 2),
        config={**asdict(config), "tma": tma},
    )


def _library_choice(kernel: Kernel, dtype: str, hopper: bool) -> Config:
    from kernel_library.runtime.config import default_config

    return default_config(
        _M, _N, 4 if dtype == "fp32" else 2, multiprocessors=132, hopper=hopper, extra_tiles=kernel.extra_tiles
    )


def _source(kernel: Kernel, config: Config, dtype: str, tma: bool) -> Any:
    """The mainloop with the types of an aligned, contiguous problem: what a launch would specialise it to."""
    from triton.compiler import ASTSource

    columns = {"HalfTile": 0.5, "Tile": 1, "PairTile": 2}
    names = kernel.gemm.arg_names
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
        "SUBTILES": config.subtiles, "TMA": tma, "A_K_MAJOR": True, "W_K_MAJOR": True, "PRECISION": "ieee",
        "TMA_LOADS": tma and config.load_tma, "TMA_STORES": tma and config.store_tma,
        "stride_ak": 1, "stride_wk": 1,
        **{f"STORE_{output.name.upper()}": True for output in kernel.outputs if output.optional},
    }  # fmt: skip
    for name, rows in (("A", config.block_m), ("W", config.block_n)):
        signature[name] = f"tensordesc<{dtype}[{rows}, {config.block_k}]>" if tma else f"*{dtype}"
    for item in kernel.items:
        if item.extent in columns:
            by_descriptor = constants["TMA_LOADS" if item in kernel.operands else "TMA_STORES"]
            width = int(config.block_n // config.subtiles * columns[item.extent])
            signature[f"{item.name}_ptr"] = (
                f"tensordesc<{dtype}[{config.block_m}, {width}]>" if by_descriptor else f"*{dtype}"
            )
            continue
        element = {"ColVector": "fp32", "Scalar": "fp32"}.get(item.extent, dtype)
        if getattr(item, "element", "float") == "int":
            element = "i32" if item.extent == "Scalar" else "i64"
        signature[f"{item.name}_ptr"] = f"*{element}"
        signature[f"{item.name}_value"] = element
        signature[f"{item.name}_partial"] = "*fp32"
    types = {name: signature.get(name, "i32") for name in names}
    types.update(dict.fromkeys((name for name in constants if name in names), "constexpr"))
    aligned = [
        name for name, type_ in types.items() if type_.startswith("*") or name in ("M", "N", "K") or "stride" in name
    ]
    return ASTSource(
        kernel.gemm,
        types,
        {(names.index(name),): value for name, value in constants.items() if name in names},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned if types[name] != "constexpr"},
    )


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and local-memory frame of a thread, read off the binary by the tool that Triton carries."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            out = subprocess.run(
                [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, timeout=60
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return None, None
    registers, stack = re.search(r"REG:(\d+)", out), re.search(r"STACK:(\d+)", out)
    return (int(registers[1]) if registers else None), (int(stack[1]) if stack else None)


def _amd_resources(assembly: str) -> tuple[int | None, int | None]:
    registers, spills = (
        re.search(r"\.vgpr_count:\s+(\d+)", assembly),
        re.search(r"\.private_segment_fixed_size:\s+(\d+)", assembly),
    )
    return (int(registers[1]) if registers else None), (int(spills[1]) if spills else None)


def _main() -> None:
    request = json.loads(sys.stdin.read())
    from kernel_library.runtime import Config, load

    kernel = load(request["folder"])
    config = Config(**request["config"]) if request["config"] else None
    for target in request["targets"]:
        try:
            report = _compile(kernel, target, config, request["dtype"])
        except Exception as error:
            report = CompileReport(target, error=f"{type(error).__name__}: {_last_line(str(error))}")
        print(json.dumps(report.as_dict()), flush=True)


if __name__ == "__main__":
    _main()
