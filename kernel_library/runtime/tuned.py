"""Tuned configurations, as a kernel's record.json holds them: by device, dtype and shape."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .config import Config

#: A configuration serves shapes down to this fraction of the one it was tuned for, in each dimension ...
SMALLER = 1 / 4
#: ... and up to this multiple: more rows change little, a longer or wider GEMM is another problem.
LARGER_M, LARGER = 4.0, 1.5

_FIELDS = {field.name for field in fields(Config)}


@functools.cache
def _entries(record: Path) -> Mapping[str, list[dict[str, Any]]]:
    try:
        found = json.loads(record.read_text(encoding="utf-8")).get("tuned", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def lookup(folder: Path, device: str, dtype: str, include: Collection[str], m: int, n: int, k: int) -> Config | None:
    """The configuration tuned on ``device`` for the nearest shape; None where none is near.

    ``dtype`` is as torch prints it ("bfloat16"), ``include`` the optional outputs that are stored.
    """
    wanted = sorted(include)
    best: tuple[float, dict[str, Any]] | None = None
    for entry in _entries(folder / "record.json").get(device, ()):
        if entry.get("dtype") != dtype or sorted(entry.get("include", ())) != wanted:
            continue
        ratios = [size / tuned for size, tuned in zip((m, n, k), (entry["m"], entry["n"], entry["k"]), strict=True)]
        limits = (LARGER_M, LARGER, LARGER)
        if not all(SMALLER <= ratio <= limit for ratio, limit in zip(ratios, limits, strict=True)):
            continue
        distance = max(abs(math.log(ratio)) for ratio in ratios)
        if best is None or distance < best[0]:
            best = distance, entry["config"]
    if best is None:
        return None
    return Config(**{name: value for name, value in best[1].items() if name in _FIELDS})
