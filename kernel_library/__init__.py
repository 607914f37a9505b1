"""A library of fused GEMM kernels, written and verified by coda-agent. It needs torch and triton, nothing else.

    from kernel_library import swiglu
    y = swiglu(x, weight)

A folder with a ``record.json`` is a committed kernel: ``epilogue.py`` as its author wrote it, the generated
``kernel.py``, and the evidence that it is right. Kernels are imported when they are first asked for, so importing the
library itself is cheap. This file and ``runtime/`` are the same in every library; only its folder's name differs.
"""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

_FOLDER = Path(__file__).parent
_LOCK = threading.RLock()


def _names() -> list[str]:
    """The committed kernels, sorted."""
    return sorted(path.parent.name for path in _FOLDER.glob("[!._]*/record.json"))


def _is_kernel(name: str) -> bool:
    return not name.startswith("_") and (_FOLDER / name / "record.json").is_file()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _names()
    if not _is_kernel(name):
        raise AttributeError(_unknown(name))
    with _LOCK:
        if name not in globals():
            globals()[name] = _load(name)
        return globals()[name]


def __dir__() -> list[str]:
    return _names()


def _load(name: str) -> Any:
    """The function of kernel ``name``, registered with PyTorch under this library's own namespace."""
    try:
        module = importlib.import_module(f".{name}.kernel", __name__)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "triton"):
            raise ImportError(
                f"{__name__}.{name} needs {error.name}, which is not installed", name=error.name
            ) from error
        raise
    module.kernel.register(f"coda_{__name__.replace('.', '_')}")
    return getattr(module, name)


def _unknown(name: str) -> str:
    text = f"module {__name__!r} has no kernel {name!r}"
    if name.startswith("_"):
        return text
    import difflib

    known = _names()
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"{text}; did you mean {' or '.join(close)}?"
    return f"{text}; it has {', '.join(known) or 'none yet'}"


class _Library(ModuleType):
    """Keeps ``library.swiglu`` the function: importing ``library.swiglu.kernel`` would otherwise bind the folder."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and _is_kernel(name)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library
