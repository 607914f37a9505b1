"""How well a model writes epilogues: the numbers by which prompts are improved.

Every sample goes on until it passes or its rounds end, whatever the others do, so that each counts as one trial. Nothing
is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import pipeline
from .errors import RequestError
from .events import Event
from .operators import catalogue_names
from .runs import find

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """What to measure; with no operators, the whole catalogue. Limits are those of one operator."""

    operators: Sequence[str] = ()
    model: str | None = None
    base_url: str | None = None
    samples: int | None = None
    rounds: int | None = None
    budget_tokens: int | None = None
    max_requests: int | None = None
    backend: Literal["auto", "interpreter", "cuda"] = "auto"
    targets: Sequence[str] | None = None
    examples: int = 24
    timeout: float | None = None
    seed: int = 0


def evaluate(request: Request, tell: Tell) -> dict[str, Any]:
    """Ask a model for every operator; the document that ``--json`` prints."""
    names = [name.strip() for given in request.operators for name in given.split(",") if name.strip()]
    if request.operators and not names:
        raise RequestError("--operators names no operator")
    rows, about = [], {}
    for name in dict.fromkeys(names or catalogue_names()):
        asked = pipeline.Request(
            name,
            author="llm",
            backend=request.backend,
            targets=request.targets or ("sm_90",),
            examples=request.examples,
            timeout=request.timeout,
            seed=request.seed,
            commit=False,
            model=request.model,
            base_url=request.base_url,
            samples=request.samples,
            rounds=request.rounds,
            budget_tokens=request.budget_tokens,
            max_requests=request.max_requests,
            every_sample=True,
        )
        result = pipeline.generate(asked, tell).result
        manifest = find(result["run"]).manifest
        about = {"model": manifest["endpoint"]["model"], "endpoint": manifest["endpoint"]["url"]}
        rows.append(score(result, manifest["request"]["samples"], manifest["request"]["rounds"]))
    return {**about, "operators": rows, "total": total(rows)}


def score(result: dict[str, Any], samples: int, rounds: int) -> dict[str, Any]:
    """One operator's numbers, from the result of its run."""
    solved = [
        min(
            (a["round"] for a in result["attempts"] if a["sample"] == sample and a["stage"] == "accepted"), default=None
        )
        for sample in range(1, samples + 1)
    ]
    by_round = [sum(found is not None and found <= number for found in solved) for number in range(1, rounds + 1)]
    usage = result["usage"]
    return {
        "operator": result["operator"],
        "samples": samples,
        "accepted_by_round": by_round,
        "accepted": by_round[-1],
        "tokens": usage["total_tokens"],
        "requests": usage["requests"],
        "cost": usage["cost"],
        "seconds": result["duration"],
        "stages": [f"r{a['round']}-s{a['sample']}: {a['stage']}" for a in result["attempts"]],
        "run": result["run"],
        **_derived(by_round, samples, usage["total_tokens"], result["duration"]),
    }


def total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of all operators together."""
    samples, tokens = sum(row["samples"] for row in rows), sum(row["tokens"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    by_round = [sum(column) for column in zip(*(row["accepted_by_round"] for row in rows), strict=True)]
    return {
        "samples": samples,
        "accepted_by_round": by_round,
        "accepted": by_round[-1] if by_round else 0,
        "tokens": tokens,
        "requests": sum(row["requests"] for row in rows),
        "seconds": round(seconds, 3),
        **_derived(by_round, samples, tokens, seconds),
    }


def _derived(by_round: Sequence[int], samples: int, tokens: int, seconds: float) -> dict[str, Any]:
    accepted = by_round[-1] if by_round else 0
    return {
        "pass_rate_by_round": [round(count / samples, 4) for count in by_round] if samples else [],
        "tokens_per_accepted": round(tokens / accepted) if accepted else None,
        "seconds_per_accepted": round(seconds / accepted, 3) if accepted else None,
    }
