"""``coda-agent bench``: committed kernels on the problems they are made for, into their records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..certify import operator_of
from ..compiler.cost import GPUS, Cost, cost
from ..errors import DONE, REJECTED, RequestError
from ..events import Benchmarked, Checking, Event, Notice, Predicted, Rejected
from ..library import Entry, Library, locate
from ..operators import Operator
from .shapes import MODELS, TOKENS, WIDTHS, Model, paper, problem

Tell = Callable[[Event], None]

#: What an untuned kernel is measured with, and how long tuning may time configurations of one problem, in seconds.
TUNING = 20.0


@dataclass(frozen=True)
class Request:
    """Which kernels to measure, and on what. ``shapes`` are "MxNxK"; ``models`` presets; neither: the paper's."""

    kernels: Sequence[str] = ()
    everything: bool = False
    library: Path | None = None
    operator: str | None = None
    shapes: Sequence[str] = ()
    models: Sequence[str] = ()
    widths: Sequence[int] = WIDTHS
    tokens: int = TOKENS
    dtype: str = "bfloat16"
    tune: bool = False
    record: bool = True


def bench(request: Request, tell: Tell) -> tuple[dict[str, Any], int]:
    """Measure kernels; the document that ``--json`` prints, and the exit code.

    Without a GPU, what the cost model predicts, labelled so, and nothing is recorded.
    """
    if request.dtype not in ("bfloat16", "float16", "float32"):
        raise RequestError(f"--dtype must be bfloat16, float16 or float32; got {request.dtype}")
    library = locate(request.library)
    entries = library.chosen(request.kernels, request.everything)
    sizes = [_sizes(entry.name, request) for entry in entries]
    import torch

    if not torch.cuda.is_available():
        tell(Notice("no GPU: these are the cost model's floors, not measurements"))
        rows = [
            row for entry, found in zip(entries, sizes, strict=True) for row in _predict(entry, found, request, tell)
        ]
        return {"measured": False, "rows": rows}, DONE
    rows, faults = [], 0
    for entry, found in zip(entries, sizes, strict=True):
        measured, failed = _measure(library, entry, found, request, tell)
        rows += measured
        faults += failed
    return {"measured": True, "rows": rows}, REJECTED if faults else DONE


def _sizes(name: str, request: Request) -> list[tuple[int, int, int]]:
    """(M, N, K) of each problem asked for."""
    sizes = []
    for text in request.shapes:
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
        if not match or not all(int(size) > 0 for size in match.groups()):
            raise RequestError(f"--shape must be MxNxK, such as 16384x22016x4096; got {text!r}")
        sizes.append((int(match[1]), int(match[2]), int(match[3])))
    for model in request.models:
        if model not in MODELS:
            raise RequestError(f"unknown model {model!r}: known models: {', '.join(MODELS)}")
    models: list[Model] = [MODELS[name] for name in request.models]
    if not sizes and not models:
        models = [paper(d) for d in request.widths]
    return sizes + [(request.tokens, *problem(name, model)) for model in models]


def _cost(entry: Entry, operator: Operator, size: tuple[int, int, int], dtype: str) -> Cost:
    from ..authors.contract import signature
    from ..sandbox import parse

    return cost(parse(entry.text("epilogue.py"), signature(operator)), *size, itemsize=4 if dtype == "float32" else 2)


def _predict(entry: Entry, sizes: Sequence[tuple[int, int, int]], request: Request, tell: Tell) -> list[dict[str, Any]]:
    operator = operator_of(entry, request.operator)
    rows = []
    for size in sizes:
        found = _cost(entry, operator, size, request.dtype)
        row = {"kernel": entry.name, "predicted": True, "m": size[0], "n": size[1], "k": size[2]}
        row["gpus"] = {
            name: {
                "fused_ms": round(1e3 * found.seconds(gpu), 4),
                "unfused_ms": round(1e3 * found.unfused_seconds(gpu), 4),
            }
            for name, gpu in GPUS.items()
        }
        rows.append(row)
        tell(Predicted(row))
    return rows


def _measure(
    library: Library, entry: Entry, sizes: Sequence[tuple[int, int, int]], request: Request, tell: Tell
) -> tuple[list[dict[str, Any]], int]:
    from kernel_library.runtime import load

    from .measure import MeasurementFault, Problem, measure, tuned

    tell(Checking(entry.name))
    if entry.status != "verified":
        tell(Rejected(f"{entry.status}: {entry.reason}"))
        return [], 1
    operator = operator_of(entry, request.operator)
    kernel = load(entry.folder)
    rows: list[dict[str, Any]] = []
    configs: list[dict[str, Any]] = []
    faults = 0
    includes = [frozenset[str]()] + ([kernel.optional] if kernel.optional else [])
    for include in includes:
        for m, n, k in sizes:
            one = Problem(m, n, k, include, request.dtype)
            try:
                config = None
                if request.tune:
                    config = tuned(
                        kernel, entry.folder, request.operator or operator.name, operator, one, seconds=TUNING
                    )
                    configs.append(
                        {
                            "m": m,
                            "n": n,
                            "k": k,
                            "dtype": request.dtype,
                            "include": sorted(include),
                            "config": asdict(config),
                        }
                    )
                found = _cost(entry, operator, (m, n, k), request.dtype)
                # Optional outputs count as stored in the model: its bytes are a floor only where they are.
                moved = found.fused_bytes if include == kernel.optional else 0
                row = measure(kernel, operator, one, config, flops=found.gemm_flops, bytes_moved=moved)
            except MeasurementFault as error:
                tell(Rejected(str(error)))
                faults += 1
                continue
            rows.append({"kernel": entry.name, **row})
            tell(Benchmarked(rows[-1]))
    if request.record and rows:
        _record(library, entry, rows, configs)
    return rows, faults


def _record(library: Library, entry: Entry, rows: list[dict[str, Any]], configs: list[dict[str, Any]]) -> None:
    """Rows and tuned configurations into the record, in the place of those of the same problem."""

    def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return all(a.get(key) == b.get(key) for key in ("gpu", "m", "n", "k", "dtype", "include"))

    old = [row for row in entry.record.get("benchmark") or () if not any(same(row, new) for new in rows)]
    tuned = dict(entry.record.get("tuned") or {})
    gpu = rows[0]["gpu"]
    kept = [item for item in tuned.get(gpu, ()) if not any(same(item, new) for new in configs)]
    if configs or kept:
        tuned[gpu] = sorted([*kept, *configs], key=lambda item: (item["include"], item["n"], item["k"], item["m"]))
    record = {**entry.record, "benchmark": [*old, *rows], "tuned": tuned}
    library.update(entry, record)
