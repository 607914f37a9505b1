"""A stand-in for a generated kernel, for the operator y = acc + b, s = row sums: plain PyTorch that misbehaves on demand.

The number of rows of a case (more than are ever drawn) chooses what goes wrong; what is not listed is computed correctly.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from kernel_library.runtime import Config, Kernel, Operand, Output

RAISES, HANGS, CRASHES, EXITS, GREEDY = 1001, 1002, 1003, 1004, 1005
UNWRITTEN, BEFORE, AFTER, BETWEEN, MUTATES, ELSEWHERE = 1011, 1012, 1013, 1014, 1015, 1016
DTYPE, SHAPE, MISSING, NOT_FINITE, RANDOM, STALE, PRINTS = 1021, 1022, 1023, 1024, 1025, 1026, 1027
WRONG, ROUNDED_TWICE, WRONG_FORM, WRONG_POINTER, STARTS_CHILD, ENVIRONMENT = 1031, 1032, 1033, 1034, 1035, 1036
NUDGED, TILED, BF16_SUM, PEEKS, SHARES, GREEDY_TILES = 1041, 1042, 1043, 1044, 1045, 1046


class Fake(Kernel):
    def __init__(self) -> None:
        self.name = "fake"
        self.operands = (Operand("b", "RowVector"),)
        self.outputs = (Output("y", "Tile"), Output("s", "ColVector", "sum"))

    def evaluate(
        self, a: Tensor, w: Tensor, operands: Mapping[str, Any], *, include: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        y = a.float() @ w.float().T + operands["b"].float()
        if a.shape[0] == WRONG_FORM:
            y = y + 1.0
        return {"y": y.to(a.dtype), "s": y.sum(1)}

    def run(
        self,
        a: Tensor,
        w: Tensor,
        operands: Mapping[str, Any],
        *,
        config: Config | None = None,
        include: Collection[str] | None = None,
        out: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        mode, n = a.shape[0], w.shape[0]
        target = (out or {}).get("y", torch.empty(mode, n, dtype=a.dtype))
        # In fp64, so that an element does not depend on where a BLAS finds its row and column.
        acc = (a.double() @ w.double().T).float()
        if mode == ROUNDED_TWICE:
            acc = acc.to(a.dtype).float()
        y = acc + operands["b"].float()
        s = y.sum(1)
        if mode == WRONG:
            y[2, 1] *= 1.5
        elif mode == RAISES:
            raise ValueError("tile sizes disagree")
        elif mode in (HANGS, STARTS_CHILD):
            if mode == STARTS_CHILD:
                with open(os.environ["TMPDIR"] + "/child", "w") as file:
                    file.write(str(os.getpid()))
                if os.fork() == 0:
                    time.sleep(600)
            time.sleep(600)
        elif mode == CRASHES:
            ctypes.string_at(0)
        elif mode == EXITS:
            os._exit(3)
        elif mode == GREEDY:
            torch.empty(1 << 45, dtype=torch.uint8)
        elif mode == PRINTS:
            print("x" * 100_000)
            os.write(1, b"\x00\x00\x00\x00 not a frame")
        elif mode == NOT_FINITE:
            y[0, 0] = float("inf")
        elif mode == RANDOM:
            y = y * (1.0 + 1e-7 * torch.rand(mode, n))
            s = s + 1e-6 * torch.rand(mode)
        elif mode == STALE:
            y[-1] = torch.empty(n)  # whatever the memory held
        elif mode == WRONG_POINTER and config is not None and config.tma is False:
            y = y + 1.0
        elif mode == NUDGED:
            y[0] *= 1.0 + 2.0**-22  # within every bound, but not what another place in the batch would give
            s[0] *= 1.0 + 2.0**-22
        elif mode == TILED and config is not None and config.block_m == 32:
            y = y + 1.0
        elif mode == BF16_SUM:
            s = y.to(torch.bfloat16).float().sum(1)
        elif mode == PEEKS:
            y[:, 0] += 0.0 * target[:, 0].float()  # the output's memory, before anything was written there
        elif mode == GREEDY_TILES:
            raise type("OutOfResources", (Exception,), {})("out of resource: shared memory")
        elif mode == MUTATES:
            a[0, 0] += 1.0
        elif mode == ENVIRONMENT and any("KEY" in name or "TOKEN" in name for name in os.environ):
            raise RuntimeError("credentials are visible")
        target.copy_(y)
        if mode == UNWRITTEN:
            target.view(torch.int16)[-1, -1] = {torch.bfloat16: 0x7FD3, torch.float16: 0x7ED3}[a.dtype]
        pitch = target.stride(0)
        base = target.as_strided((target.untyped_storage().nbytes() // target.element_size(),), (1,), 0)
        at = target.storage_offset()
        if mode == BEFORE:
            base[at - 1] = 0.0
        elif mode == AFTER:
            base[at + (mode - 1) * pitch + n] = 0.0
        elif mode == BETWEEN:
            base[at + n] = 0.0
        elif mode == ELSEWHERE:
            return {"y": target.clone(), "s": s}
        elif mode == DTYPE:
            return {"y": target.float(), "s": s}
        elif mode == SHAPE:
            return {"y": target, "s": s[:-1]}
        elif mode == SHARES:
            return {"y": target, "s": target[:, 0]}
        elif mode == MISSING:
            return {"y": target}
        return {"y": target, "s": s}


kernel = Fake()
