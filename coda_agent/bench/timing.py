"""Timing that can be believed: callables in alternation in one process, L2 flushed, ratios round by round.

A GPU slows under load by more than the differences of interest, so an absolute time proves nothing. What is compared
is timed in turn, many rounds over, and the figure is the median of the per-round ratios with a bootstrap interval.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How many times faster one callable is than another: median of per-round ratios, 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Timings:
    """Milliseconds of each callable, one figure a round (the median of the round's calls)."""

    rounds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def speedup(self, name: str, over: str, *, resamples: int = 2000, seed: int = 0) -> Ratio:
        """How many times faster ``name`` is than ``over``."""
        ratios = [b / a for a, b in zip(self.rounds[name], self.rounds[over], strict=True)]
        generator = random.Random(seed)
        medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(resamples))
        return Ratio(statistics.median(ratios), medians[int(0.025 * resamples)], medians[int(0.975 * resamples)])


def alternate(
    callables: Mapping[str, Callable[[], object]], *, rounds: int = 12, calls: int = 5, warmup: int = 2
) -> Timings:
    """Time CUDA callables in alternation on the current device.

    Each round times every callable ``calls`` times, in an order that rotates from round to round; before each call
    the L2 cache is overwritten. The first ``warmup`` rounds are thrown away.
    """
    import torch

    flush = torch.empty(2 * torch.cuda.get_device_properties().L2_cache_size, dtype=torch.int8, device="cuda")
    names = list(callables)
    results: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(warmup + rounds):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            function = callables[name]
            events = [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
            ]
            for start, end in events:
                flush.zero_()
                start.record()
                function()
                end.record()
            torch.cuda.synchronize()
            if round_ >= warmup:
                results[name].append(statistics.median(start.elapsed_time(end) for start, end in events))
    return Timings(results)
