"""What this machine has, lacks, and what to do about it. Never prints the value of a variable that may hold a secret."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .authors.selection import ENDPOINT_VARIABLES
from .certify import versions
from .errors import CodaError
from .library import locate
from .settings import Settings, require_endpoint
from .settings import load as load_settings

#: Seconds for the interpreter's self-test, most of it importing torch.
_PATIENCE = 180
#: Seconds for the endpoint to list its models.
_ENDPOINT_PATIENCE = 5.0


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``needed`` says whether ``generate`` cannot do without it."""

    name: str
    status: Literal["ok", "missing", "absent"]
    detail: str
    advice: str = ""
    needed: bool = False


def examine(library: Path | None = None) -> Iterator[Check]:
    """Every check, as its answer comes in."""
    found = versions()
    yield _python()
    yield Check("platform", "ok", f"{platform.system()} {platform.machine()}")
    for package in ("torch", "triton", "numpy", "hypothesis"):
        yield _package(package, found[package])
    if found["torch"] and found["triton"]:
        yield _interpreter()
        yield _ptxas()
    yield _gpu() if found["torch"] else Check("GPU", "absent", "unknown without torch")
    yield _library(library)
    yield _endpoint()


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info >= (3, 10):  # noqa: UP036 - the point of the check
        return Check("python", "ok", version, needed=True)
    return Check("python", "missing", version, "install Python 3.10 or newer", needed=True)


def _package(name: str, version: str | None) -> Check:
    if version:
        return Check(name, "ok", version, needed=True)
    if name == "triton" and platform.system() != "Linux":
        return Check(
            name,
            "missing",
            "not installed",
            "triton has wheels for Linux only: generate there, or in a container or WSL",
            needed=True,
        )
    return Check(name, "missing", "not installed", f"pip install {name}", needed=True)


def _interpreter() -> Check:
    """Whether triton's interpreter runs and rounds, asked in a process of its own."""
    name, program = "interpreter", "from verifier import interpreter; interpreter.patch(); interpreter.self_test()"
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return Check(
            name, "missing", f"no answer within {_PATIENCE} s", "try again on a less busy machine", needed=True
        )
    if done.returncode == 0:
        return Check(name, "ok", "triton interprets with this numpy, and rounds as a GPU does", needed=True)
    lines = done.stderr.strip().splitlines() or ["it died without a word"]
    advice = "install versions that go together: triton 3.7 or newer, or triton 3.6 with numpy below 2.4"
    return Check(name, "missing", lines[-1][:200], advice, needed=True)


def _ptxas() -> Check:
    spec = importlib.util.find_spec("triton")
    folders = (
        [Path(location) / "backends" / "nvidia" / "bin" for location in (spec.submodule_search_locations or ())]
        if spec
        else []
    )
    tools = sorted(path.name for folder in folders for path in folder.glob("ptxas*"))
    if tools:
        return Check("ptxas", "ok", f"{', '.join(tools)}, with triton", needed=True)
    return Check("ptxas", "missing", "triton came without it", "reinstall triton from its wheel", needed=True)


def _gpu() -> Check:
    try:
        import torch

        if not torch.cuda.is_available():
            built = torch.version.cuda or torch.version.hip
            why = "torch sees none" if built else "this torch is built for the CPU only"
            return Check("GPU", "absent", why, "kernels are verified on the interpreter; certificates say so")
        names = []
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            names.append(f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})")
    except Exception as error:  # a broken driver or torch is what doctor is for
        return Check(
            "GPU",
            "absent",
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200],
            "check the driver with nvidia-smi",
        )
    return Check("GPU", "ok", ", ".join(names))


def _library(given: Path | None) -> Check:
    try:
        library = locate(given)
        entries = library.entries()
        library.preflight()
    except CodaError as error:
        return Check("library", "missing", str(error), "name another with --library DIR or CODA_LIBRARY", needed=True)
    detail = f"{library.path}: writable, {len(entries)} kernel{'' if len(entries) == 1 else 's'}"
    if not library.path.exists():
        return Check("library", "ok", f"{library.path}: made at the first commit", library.warning, needed=True)
    spoiled = [f"{entry.name} is {entry.status}" for entry in entries if entry.status != "verified"]
    advice = "; ".join(
        [
            *([f"generate again: {', '.join(spoiled)}"] if spoiled else []),
            *([library.warning] if library.warning else []),
        ]
    )
    return Check("library", "ok", detail + (f", {len(spoiled)} not verified" if spoiled else ""), advice, needed=True)


def _endpoint() -> Check:
    """Whether a model can be asked, tried only where one is configured."""
    states = [f"{name} is {'set' if os.environ.get(name) else 'not set'}" for name in ENDPOINT_VARIABLES]
    detail = ", ".join(states)
    try:
        settings = load_settings()
        if not settings.sources:
            return Check("endpoint", "absent", detail, "not needed: derive works without one")
        settings = require_endpoint(settings)
    except CodaError as error:
        return Check("endpoint", "missing", detail, str(error))
    return _answering(settings, detail)


def _answering(settings: Settings, detail: str) -> Check:
    from .authors.endpoint import EndpointError, client, scrub

    began = time.monotonic()
    try:
        listed = [str(model.id) for model in client(settings, _ENDPOINT_PATIENCE).models.list().data]
    except EndpointError as error:
        return Check("endpoint", "missing", detail, str(error))
    except Exception as error:  # whatever a server can answer with
        status = getattr(error, "status_code", None)
        if status in (404, 405, 501):
            return Check("endpoint", "ok", f"{detail}; {settings.host} answers, and lists no models")
        cause = error.__cause__ or error
        what = f"HTTP {status}" if status else f"{type(error).__name__}: {cause}"
        advice = (
            "the key is not accepted" if status == 401 else "check the URL, the key, and that the server is running"
        )
        return Check("endpoint", "missing", scrub(f"{detail}; {settings.host}: {what}"[:300], settings.key), advice)
    took = f"{detail}; {settings.host} answers in {time.monotonic() - began:.1f} s, {len(listed)} models"
    if not settings.model and len(listed) == 1:
        return Check("endpoint", "ok", f"{took}; it serves {listed[0]}")
    if not settings.model:
        return Check("endpoint", "absent", took, "no model is named: set CODA_MODEL or add --model")
    if settings.model in listed:
        return Check("endpoint", "ok", f"{took}, {settings.model} among them")
    return Check(
        "endpoint", "absent", took, f"it does not list the model {settings.model}; it may know it all the same"
    )
