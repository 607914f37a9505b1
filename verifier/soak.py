"""Does the gate reject correct kernels? Many seeds of small budgets on a kernel that is believed right.

    python -m verifier.soak OPERATOR --seeds 200

One line a rejection, with the case that :func:`verifier.replay` repeats; exit code 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cases import Signature
from .gate import choose_backend, judging_device
from .isolation import Worker
from .properties import Failure, Judge, draw, plan


@dataclass
class Soak:
    """How often a kernel was judged, and what was rejected."""

    operator: str
    backend: str
    form: str
    seeds: int = 0
    cases: int = 0
    max_error_ratio: float = 0.0
    duration: float = 0.0
    rejections: list[Failure] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**vars(self), "rejections": [failure.as_dict() for failure in self.rejections]}


def soak(
    operator: Any,
    folder: Path,
    *,
    seeds: int = 200,
    first: int = 0,
    examples: int = 8,
    backend: str = "auto",
    form: str = "kernel",
    timeout: float = 3600.0,
    on_rejection: Callable[[Failure], None] = lambda failure: None,
) -> Soak:
    """Judge the kernel in ``folder`` on fresh draws from seeds ``first``, ``first`` + 1, ... until time runs out.

    ``form`` "pytorch" judges its PyTorch form instead, many times faster than the interpreter, and by the same bounds.
    """
    chosen = choose_backend(backend)
    began = time.monotonic()
    result = Soak(operator.name, chosen, form)
    with Worker(folder, Signature.of(operator), backend=chosen) as worker:
        judge = Judge(operator, worker, device=judging_device(chosen), form=form)
        for seed in range(first, first + seeds):
            if time.monotonic() - began > timeout:
                break
            for case in draw(plan(operator, chosen, examples, None), seed):
                failures = judge.check(case)
                if failures:
                    result.rejections.append(failures[0])
                    on_rejection(failures[0])
            result.seeds += 1
    result.cases = judge.tally.cases
    result.max_error_ratio = judge.tally.max_error_ratio
    result.duration = time.monotonic() - began
    return result


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    import torch

    import kernel_library
    from coda_agent.operators import OperatorError, load

    parser = argparse.ArgumentParser(prog="python -m verifier.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("operator", help="a name of the catalogue, or FILE.py:NAME")
    parser.add_argument("--kernel", type=Path, help="folder with a kernel.py (default: the library's)")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--examples", type=int, default=8, help="drawn cases a seed, beside integers and empty ones")
    parser.add_argument("--backend", choices=("auto", "interpreter", "cuda"), default="auto")
    parser.add_argument("--form", choices=("kernel", "pytorch"), default="kernel")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for all seeds")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    try:
        operator = load(options.operator)
    except OperatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    folder = options.kernel or Path(kernel_library.__path__[0]) / operator.name
    if not (folder / "kernel.py").is_file():
        print(f"error: there is no kernel at {folder}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)

    def tell(failure: Failure) -> None:
        print(f"rejected: {failure.line}\n  {json.dumps(failure.case.as_dict())}", file=sys.stderr, flush=True)

    result = soak(
        operator,
        folder,
        seeds=options.seeds,
        first=options.first,
        examples=options.examples,
        backend=options.backend,
        form=options.form,
        timeout=options.timeout,
        on_rejection=tell,
    )
    if options.json:
        print(json.dumps(result.as_dict()))
    else:
        print(
            f"{result.operator} ({result.form}, {result.backend}): {result.seeds} seeds, {result.cases} cases, "
            f"{len(result.rejections)} rejected, worst ratio {result.max_error_ratio:.3f}, {result.duration:.0f} s"
        )
    return 1 if result.rejections else 0


if __name__ == "__main__":
    sys.exit(main())
