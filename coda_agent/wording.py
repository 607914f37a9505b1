"""Findings of the verifier in plain words, for people and for models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words(found: Mapping[str, Any]) -> list[str]:
    """A counterexample of the verifier in plain words."""
    if not found:
        return []
    shapes, lines = found.get("shapes") or {}, []
    regime, scale = found.get("regime"), found.get("scale", 1.0)
    inputs = f"{regime} inputs{f' at scale {scale:g}' if scale not in (None, 1.0) else ''}" if regime else "inputs"
    sizes = ", ".join(f"{name} = {size}" for name, size in shapes.items())
    scalars = "".join(f", {name} = {value:g}" for name, value in (found.get("scalars") or {}).items())
    lines.append(f"with {sizes}{scalars}, {found.get('dtype')}, {inputs} (seed {found.get('seed')}):")
    where = str(found.get("output") or "the kernel")
    if found.get("index") is not None:
        where += f"[{', '.join(map(str, found['index']))}]"
    if found.get("got") is not None and found.get("expected") is not None:
        bound = f" give or take {number(found['bound'])}" if found.get("bound") is not None else ""
        ratio = f", {number(found['ratio'])} times the error allowed" if found.get("ratio") is not None else ""
        lines.append(f"{where} is {number(found['got'])} but must be {number(found['expected'])}{bound}{ratio}")
    count = f"; {found['count']} elements are wrong" if (found.get("count") or 0) > 1 else ""
    lines.append(f"{found.get('message')}{count}")
    return lines


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value) if value is not None else "–"
