"""Choosing a launch configuration by measuring: a small space, compiled in parallel, failures left behind.

Triton's compiler can abort its process, so configurations are first compiled by worker processes that fill Triton's
cache; only those that compiled without spilling are timed in this process.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from kernel_library.runtime import Config, Kernel

from .inputs import Inputs

#: Shared memory of a program on Hopper and later, in bytes.
_SHARED = 232_448
_TILES = ((128, 256, 8), (128, 128, 8), (128, 128, 4), (256, 128, 8), (64, 256, 4), (64, 128, 4))


def space(kernel: Kernel, itemsize: int) -> Iterator[Config]:
    """Configurations worth timing, likeliest first."""
    has_loads = any(item.extent.endswith("Tile") for item in kernel.operands)
    has_stores = any(item.extent.endswith("Tile") for item in kernel.outputs)
    block_k = 128 // itemsize
    for (block_m, block_n, warps), stages, subtiles, load_tma, store_tma in itertools.product(
        _TILES, (3, 4), (1, 2, 4), (False, True) if has_loads else (False,), (False, True) if has_stores else (False,)
    ):
        operands = stages * (block_m + block_n) * block_k * itemsize
        # Descriptor loads and stores stage one sub-tile each in shared memory.
        staged = block_m * (block_n // subtiles) * itemsize * (kernel.extra_tiles if load_tma or store_tma else 0)
        if operands + staged <= _SHARED:
            yield Config(
                block_m,
                block_n,
                block_k,
                subtiles=subtiles,
                num_warps=warps,
                num_stages=stages,
                load_tma=load_tma,
                store_tma=store_tma,
            )


#: Ping-pong tiles: columns, columns of a sub-tile, sub-tiles that the epilogue's loads may run ahead.
_PINGPONG = ((192, 64, 2), (192, 32, 2), (128, 32, 4), (128, 32, 2), (128, 64, 2), (192, 32, 3), (128, 128, 2))


def pingpong_space(kernel: Kernel, include: Collection[str]) -> Iterator[Config]:
    """Configurations of the second mainloop worth timing on Hopper in half precision, likeliest first.

    Each has as many stages as its shared memory leaves room for: with fewer than four the tensor cores wait.
    """
    widths = {"HalfTile": 0.5, "Tile": 1, "PairTile": 2}
    loads = [widths[operand.extent] for operand in kernel.operands if operand.extent in widths]
    stores = [
        widths[output.extent]
        for output in kernel.outputs
        if output.extent in widths and (not output.optional or output.name in include)
    ]
    for block_n, width, load_stages in _PINGPONG:
        if not loads and load_stages > 2:
            continue
        sub_tile = 128 * width * 2
        # Both consumers stage one store at a time; the last 512 bytes hold the barriers.
        staged = load_stages * sum(loads) * sub_tile + 2 * max(stores, default=0) * sub_tile + 512
        stages = int(_SHARED - staged) // ((128 + block_n) * 64 * 2)
        if stages >= 3:
            yield Config(
                128,
                block_n,
                64,
                subtiles=block_n // width,
                num_stages=min(stages, 6),
                pingpong=True,
                load_stages=load_stages,
            )


def compilable(
    folder: Path,
    operator: str,
    configs: Sequence[Config],
    include: frozenset[str],
    dtype: str,
    *,
    workers: int | None = None,
) -> list[Config]:
    """Configurations that compile and run without spilling registers, found by worker processes on this GPU.

    ``operator`` is the name or ``path.py:name`` that the operator was loaded by.
    """
    workers = workers or max(1, (os.cpu_count() or 2) - 2)
    chunks = [list(range(start, len(configs), workers)) for start in range(min(workers, len(configs)))]
    good: set[int] = set()
    with concurrent.futures.ThreadPoolExecutor(len(chunks)) as pool:
        for found in pool.map(lambda chunk: _compile_chunk(folder, operator, configs, chunk, include, dtype), chunks):
            good |= found
    return [config for index, config in enumerate(configs) if index in good]


def _compile_chunk(
    folder: Path, operator: str, configs: Sequence[Config], chunk: list[int], include: frozenset[str], dtype: str
) -> set[int]:
    good: set[int] = set()
    while chunk:
        request = {
            "folder": str(folder),
            "operator": operator,
            "configs": [[index, asdict(configs[index])] for index in chunk],
            "include": sorted(include),
            "dtype": dtype,
        }
        run = subprocess.run(
            [sys.executable, "-m", __name__], input=json.dumps(request), capture_output=True, text=True, check=False
        )
        done = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        good |= {entry["index"] for entry in done if entry["ok"]}
        # A process that died took the configuration it was compiling with it; the rest go to a new one.
        chunk = chunk[len(done) + 1 :] if run.returncode else []
    return good


def rank(
    kernel: Kernel, inputs: Inputs, configs: Sequence[Config], include: frozenset[str], *, seconds: float = 60.0
) -> list[tuple[float, Config]]:
    """Time configurations until ``seconds`` are spent; (milliseconds, config), fastest first.

    Times are short single readings, good for ranking; report ratios measured in alternation instead.
    """
    import triton.testing

    deadline = time.monotonic() + seconds
    timed: list[tuple[float, Config]] = []
    for config in configs:
        if time.monotonic() > deadline:
            break

        def call(config: Config = config) -> object:
            return kernel.run(inputs.a, inputs.w, inputs.operands, config=config, include=include)

        call()
        timed.append((float(triton.testing.do_bench(call, warmup=5, rep=25, return_mode="median")), config))
    return sorted(timed, key=lambda item: item[0])


def _main() -> None:
    request = json.loads(sys.stdin.read())
    import torch

    from kernel_library.runtime import load

    from ..operators import load as load_operator
    from .inputs import random_inputs

    kernel = load(request["folder"])
    dtype = getattr(torch, request["dtype"])
    # Sizes only matter for what Triton specialises on: multiples of 16.
    inputs = random_inputs(load_operator(request["operator"]), 512, 512, 512, dtype=dtype)
    for index, config in request["configs"]:
        ok = False
        try:
            compiled = kernel.launch(
                inputs.a, inputs.w, inputs.operands, Config(**config), frozenset(request["include"])
            )
            torch.cuda.synchronize()
            ok = compiled.n_spills == 0
        except Exception as error:
            print(f"{config}: {type(error).__name__}: {error}", file=sys.stderr)
        print(json.dumps({"index": index, "ok": ok}), flush=True)


if __name__ == "__main__":
    _main()
