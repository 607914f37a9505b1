"""Running a candidate in a process of its own, and surviving whatever it does.

A :class:`Worker` has its own session, an environment built from an allow-list, resource limits and a wall-clock limit
for every request; when one is crossed the whole process group is killed. What went wrong becomes a
:class:`WorkerFailure` whose reason can be shown to a person or to the author of the kernel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .cases import Backend, Case, Signature
from .worker import HEADER, scratch

#: Variables a worker inherits. No credentials: what is not named here stays behind.
ALLOWED = ("PATH", "LD_LIBRARY_PATH", "CC", "SYSTEMROOT", "TZ")
ALLOWED_CUDA = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "TRITON_PTXAS_PATH",
    "TRITON_LIBCUDA_PATH",
    # Triton builds its launcher with the C compiler.
    "CPATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
)

#: Address space of an interpreting worker, bytes. torch and triton alone reserve several GiB without using them.
MEMORY = 16 << 30

#: Seconds until a worker must have imported torch and triton and tested itself.
START_TIMEOUT = 180.0


class WorkerFailure(Exception):
    """The candidate, or its process, failed. ``reason`` is stable: worker-hung, worker-crashed (signal 11),
    out-of-memory, out-of-resources, device-faulted, kernel-raised, worker-not-ready. ``fatal`` tells whether the worker is gone."""

    def __init__(self, reason: str, message: str = "", fatal: bool = True) -> None:
        self.reason = reason
        self.message = message
        self.fatal = fatal
        super().__init__(f"{reason}: {message}" if message else reason)


def environment(backend: Backend, home: str, cache: str | None = None) -> dict[str, str]:
    """The whole environment of a worker. ``cache`` is a folder of compiled kernels to share, instead of its own."""
    names = ALLOWED + (ALLOWED_CUDA if backend == "cuda" else ())
    env = {name: os.environ[name] for name in names if name in os.environ}
    # Where the packages under test are, and what they need where the parent was told by its own PYTHONPATH.
    roots = [str(Path(__file__).resolve().parent.parent)]
    for package in ("kernel_library", "torch", "triton", "numpy"):
        spec = importlib.util.find_spec(package)
        roots += (
            [str(Path(place).resolve().parent) for place in (spec.submodule_search_locations or ())] if spec else []
        )
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(roots))
    env |= {
        "HOME": home,
        "TMPDIR": home,
        "TRITON_HOME": home,
        "TRITON_CACHE_DIR": cache or str(Path(home) / "triton"),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    if backend == "interpreter":
        env["TRITON_INTERPRET"] = "1"
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


class Worker:
    """One worker process with one candidate loaded. Use as a context manager; :meth:`start` may be called ahead.

    ``timeout`` is the limit of one request in seconds, ``memory`` that of the address space in bytes.
    """

    def __init__(
        self,
        folder: Path,
        signature: Signature,
        *,
        backend: Backend = "interpreter",
        timeout: float = 60.0,
        memory: int = MEMORY,
        cache: str | None = None,
    ) -> None:
        self.cache = cache
        self.folder = folder
        self.signature = signature
        self.backend = backend
        self.timeout = timeout
        self.memory = memory
        self.about: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._home = ""
        self._errors: IO[bytes] | None = None
        self._ready = False

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life ---

    def start(self) -> None:
        """Spawn the process; it imports its packages while the caller goes on."""
        self._home = scratch()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        options = {"backend": self.backend, "memory": self.memory if self.backend == "interpreter" else None}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verifier.worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._home,
            env=environment(self.backend, self._home, self.cache),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._ready = False

    def stop(self) -> None:
        """Kill the whole group and remove what it left. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = ""

    def _be_ready(self) -> None:
        if self._process is None:
            self.start()
        if self._ready:
            return
        try:
            self.about, _ = self._receive(START_TIMEOUT)
        except WorkerFailure as failure:
            raise WorkerFailure("worker-not-ready", failure.message or failure.reason) from failure
        try:
            self._load()
        except WorkerFailure as failure:
            self.stop()
            raise WorkerFailure(failure.reason, f"while loading: {failure.message}") from failure
        self._ready = True

    def _load(self) -> None:
        self._send({"do": "load", "folder": str(self.folder.resolve()), "signature": self.signature.as_dict()})
        self._receive(self.timeout)

    def load(self, folder: Path) -> None:
        """Switch to another candidate. A process that was lost is replaced."""
        self.folder = folder
        if self._process is None or not self._ready:
            self._be_ready()
        else:
            self._load()

    # --- talking ---

    def submit(self, case: Case, form: str = "kernel") -> None:
        """Ask for one run, "kernel" or "pytorch", and return at once; :meth:`result` waits for it."""
        self._be_ready()
        self._send({"do": "run", "case": case.as_dict(), "form": form})

    def result(self, timeout: float | None = None) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The header of the pending run, and the raw bytes of every output by name."""
        header, payload = self._receive(self.timeout if timeout is None else timeout)
        outputs: dict[str, bytes] = {}
        at = 0
        for entry in header["outputs"]:
            outputs[entry["name"]] = payload[at : at + entry["bytes"]]
            at += entry["bytes"]
        return header, outputs

    def run(
        self, case: Case, form: str = "kernel", timeout: float | None = None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        self.submit(case, form)
        return self.result(timeout)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        text = json.dumps(message).encode()
        try:
            self._process.stdin.write(HEADER.pack(len(text)) + text)
            self._process.stdin.flush()
        except OSError:
            raise self._death() from None

    def _receive(self, timeout: float) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + timeout
        (length,) = HEADER.unpack(self._read(HEADER.size, deadline, timeout))
        header: dict[str, Any] = json.loads(self._read(length, deadline, timeout))
        payload = self._read(int(header.get("payload", 0)), deadline, timeout)
        if "error" in header:
            fatal = header["error"] == "device-faulted"
            if fatal:
                self.stop()
            raise WorkerFailure(header["error"], header.get("message", ""), fatal)
        return header, payload

    def _read(self, count: int, deadline: float, timeout: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        data = bytearray()
        while len(data) < count:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([descriptor], [], [], wait)[0]:
                self.stop()
                raise WorkerFailure("worker-hung", f"no answer within {timeout:.0f} s; the process group was killed")
            try:
                chunk = os.read(descriptor, min(count - len(data), 1 << 20))
            except BlockingIOError:
                continue
            if not chunk:
                raise self._death()
            data += chunk
        return bytes(data)

    def _death(self) -> WorkerFailure:
        """Why the process is gone, by its exit status and the end of its stderr."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.returncode
        said = ""
        if self._errors is not None:
            self._errors.seek(max(0, self._errors.tell() - 4000) if self._errors.seek(0, os.SEEK_END) else 0)
            said = self._errors.read().decode(errors="replace").strip()
        self.stop()
        last = said.splitlines()[-1] if said else ""
        if code == -signal.SIGKILL or "MemoryError" in last or "bad_alloc" in last:
            return WorkerFailure("out-of-memory", last or "the process was killed by the system")
        if code is not None and code < 0:
            return WorkerFailure(f"worker-crashed (signal {-code})", last)
        return WorkerFailure(f"worker-crashed (exit {code})", last)


def compile_ahead(folder: Path, signature: Signature, cases: Sequence[Case], cache: str, timeout: float) -> None:
    """Run ``cases`` once in several processes that share ``cache``, so that later launches find compiled kernels.

    Nothing is judged: what fails here fails again, and is reported, where it is.
    """
    from concurrent.futures import ThreadPoolExecutor

    jobs = max(1, min(8, (os.cpu_count() or 1) // 2, len(cases)))

    def serve(share: Sequence[Case]) -> None:
        with Worker(folder, signature, backend="cuda", timeout=timeout, cache=cache) as worker:
            for case in share:
                try:
                    worker.run(case)
                except WorkerFailure as failure:
                    if failure.fatal:
                        return

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(serve, [cases[job::jobs] for job in range(jobs)]))
