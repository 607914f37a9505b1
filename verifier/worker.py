"""The process that runs a candidate: ``python -m verifier.worker``, started by :mod:`verifier.isolation`.

Reads requests from stdin and answers on what was stdout, as frames: four bytes of length, a JSON header, and the raw
bytes of tensors whose count the header gives. Nothing is unpickled and nothing here decides: the parent does, from the
bytes. Whatever the candidate prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from torch import Tensor

    from .cases import Case, Inputs, Signature

HEADER = struct.Struct("<I")

#: What surrounds an output: bytes that no rounding of NaN or zero makes.
CANARY = 0xA5

#: NaN with a payload of its own, by element size: an element that still holds it was never written.
PREFILL = {2: {"bf16": 0x7FD3, "fp16": 0x7ED3}, 4: {"fp32": 0x7FD3D3D3}}


def prefill_bits(dtype: str) -> int:
    """The bit pattern of an unwritten element."""
    return PREFILL[4 if dtype == "fp32" else 2][dtype]


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    chunks = []
    while count:
        chunk = stream.read(count)
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def die_with_parent() -> None:
    """Ask Linux to kill this process when the parent dies. Elsewhere the closed pipe ends it at the next request."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with_prctl = ctypes.CDLL(None)
    with_prctl.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def limit_resources(memory: int | None) -> None:
    """No core files; ``memory`` bytes of address space (None: no limit, since CUDA reserves terabytes of it)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


class Candidate:
    """The loaded kernel, and how it is run on a case."""

    def __init__(self, folder: Path, signature: Signature, device: str) -> None:
        from kernel_library.runtime import Config, load

        self.kernel = load(folder)
        self.config = Config
        self.signature = signature
        self.device = device
        self.inputs: tuple[Case, Inputs] | None = None

    def _inputs(self, case: Case) -> Inputs:
        """The case's tensors, made anew for every run: a candidate that changes them must not hide it."""
        from .cases import materialise

        return materialise(case, self.signature).to(self.device)

    def _wanted(self, case: Case) -> list[str]:
        return [o.name for o in self.signature.outputs if case.optional or not o.optional]

    def _out(self, case: Case) -> dict[str, tuple[Tensor, Tensor]]:
        """Tile outputs as (buffer, view): canaries all around, NaN inside. Empty where the kernel allocates its own."""
        import torch

        from .cases import MARGIN, extent_shape, is_tile, torch_dtype

        if case.output_layout == "own":
            return {}
        dtype = torch_dtype(case.dtype)
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        made = {}
        for output in self.signature.outputs:
            if not is_tile(output.extent) or output.name not in self._wanted(case):
                continue
            m, n = extent_shape(output.extent, case.m, case.n)
            pitch = case.pitch(n)
            # A whole row behind the last one: a store that forgets its mask must not reach memory of others.
            total = MARGIN + (m + 1) * pitch + MARGIN
            buffer = torch.full((total * dtype.itemsize,), CANARY, dtype=torch.uint8).view(dtype).to(self.device)
            view = buffer.as_strided((m, n), (pitch, 1), MARGIN)
            buffer.view(bits).as_strided((m, n), (pitch, 1), MARGIN).fill_(prefill_bits(case.dtype))
            made[output.name] = (buffer, view)
        return made

    def run(self, case: Case, form: str) -> tuple[dict[str, Any], list[bytes]]:
        """Run one form, "kernel" or "pytorch"; the header entry and the raw bytes of what it gave."""
        inputs = self._inputs(case)
        optional = [o.name for o in self.signature.outputs if o.optional]
        include: list[str] | None = None if case.optional or not optional else []
        out = self._out(case) if form == "kernel" else {}
        if form == "kernel":
            from dataclasses import asdict

            config = self.config(**asdict(case.tiling))
            given = {name: view for name, (_, view) in out.items()}
            results = self.kernel.run(
                inputs.a, inputs.w, inputs.operands, config=config, include=include, out=given or None
            )
        else:
            results = self.kernel.evaluate(inputs.a, inputs.w, inputs.operands, include=include)
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        owners = {t.untyped_storage().data_ptr(): f"input {n}" for n, t in inputs.tensors().items()}
        entries: list[dict[str, Any]] = []
        payload: list[bytes] = []
        for name, result in dict(results).items():
            entry, raw = describe(str(name), result)
            if raw:
                address = result.untyped_storage().data_ptr()
                entry["shares"] = owners.get(address, "")
                owners[address] = str(name)
            if name in out:
                buffer, view = out[name]
                entry["in_place"] = result.data_ptr() == view.data_ptr() and result.stride() == view.stride()
                entry["pitch"] = view.stride(0) if view.ndim == 2 else 1
                raw = raw_bytes(buffer)
                entry["guarded"] = True
            entry["bytes"] = len(raw)
            entries.append(entry)
            payload.append(raw)
        return {"outputs": entries, "digest": inputs.digest()}, payload


def raw_bytes(tensor: Tensor) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def describe(name: str, result: Any) -> tuple[dict[str, Any], bytes]:
    """Name, shape, dtype and device of a result, and its bytes, row-major."""
    import torch

    if not isinstance(result, torch.Tensor):
        return {
            "name": name,
            "dtype": type(result).__name__,
            "shape": [],
            "device": "",
            "guarded": False,
            "shares": "",
        }, b""
    dtype = str(result.dtype).removeprefix("torch.")
    entry: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(result.shape), "device": result.device.type}
    return {**entry, "guarded": False, "shares": ""}, raw_bytes(result)


#: What CUDA, torch and Triton say of a launch that faulted.
_DEVICE_FAULTS = (
    "CUDA error",
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "launch timed out",
    "invalid program counter",
)


def _blame(error: BaseException) -> dict[str, Any]:
    """What to tell the parent about an exception: the kind, and the innermost message."""
    import torch

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    text = f"{type(error).__name__}: {error}".strip()
    out_of_memory = any(
        isinstance(c, (MemoryError, torch.OutOfMemoryError))
        or "can't allocate memory" in str(c)
        or "out of memory" in str(c).lower()
        for c in causes
    )
    root = causes[-1]
    if type(error).__name__ == "InterpreterError":
        # Triton's interpreter wraps what happened once for every device function on the way.
        text = f"{type(root).__name__}: {root}"
    elif str(root) and str(root) not in text:
        text += f" (from {type(root).__name__}: {root})"
    # After a device fault every later call fails too: the process is of no further use.
    said = " ".join(f"{type(c).__name__}: {c}" for c in causes)
    if not out_of_memory and any(sign in said for sign in _DEVICE_FAULTS):
        kind = "device-faulted"
    elif "OutOfResources" in said:
        kind = "out-of-resources"
    else:
        kind = "out-of-memory" if out_of_memory else "kernel-raised"
    return {"error": kind, "message": text[:2000]}


def _hello(backend: str, device: str) -> dict[str, Any]:
    import numpy
    import torch
    import triton

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {
        "ready": True,
        "backend": backend,
        "device": name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
    }


def _prepare(backend: str) -> str:
    """Imports, checks of the interpreter, and poisoned allocations. Returns the device."""
    import torch

    torch.set_num_threads(1)
    # torch.empty fills new memory with NaN in this mode: results that lean on what an allocation held before show.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    import warnings

    warnings.filterwarnings("ignore")
    if backend != "interpreter":
        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device")
        return "cuda"
    from . import interpreter

    interpreter.patch()
    interpreter.self_test()
    return "cpu"


def main() -> None:
    """Serve requests until stdin closes."""
    die_with_parent()
    options = json.loads(sys.argv[1])
    limit_resources(options.get("memory"))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(header: Mapping[str, Any], payload: list[bytes] | None = None) -> None:
        body = payload or []
        text = json.dumps({**header, "payload": sum(map(len, body))}).encode()
        data = memoryview(b"".join([HEADER.pack(len(text)), text, *body]))
        while data:
            data = data[answers.write(data) or 0 :]

    backend = options["backend"]
    try:
        device = _prepare(backend)
        answer(_hello(backend, device))
    except Exception as error:
        answer({"error": "worker-not-ready", "message": f"{type(error).__name__}: {error}"})
        return
    from .cases import Case, Signature

    candidate: Candidate | None = None
    while True:
        try:
            request = json.loads(read_exactly(requests, HEADER.unpack(read_exactly(requests, HEADER.size))[0]))
        except EOFError:
            return
        try:
            if request["do"] == "load":
                candidate = None
                candidate = Candidate(Path(request["folder"]), Signature.from_dict(request["signature"]), device)
                answer({"loaded": True})
            else:
                if candidate is None:
                    raise RuntimeError("no kernel was loaded")
                answer(*candidate.run(Case.from_dict(request["case"]), request["form"]))
        except Exception as error:
            answer(_blame(error))


def scratch() -> str:
    """A private directory for the worker's home, caches and temporary files."""
    return tempfile.mkdtemp(prefix="coda-worker-")


if __name__ == "__main__":
    main()
