"""The ping-pong mainloop without a GPU: what it accepts, and that every kind of epilogue compiles behind it for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernel_library.runtime import Config, load

pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
ROOT = Path(__file__).resolve().parents[2]

#: Kernel, configuration, and the optional outputs that are stored.
COMPILED = [
    ("swiglu", {"block_n": 192, "subtiles": 3, "num_stages": 4}, []),
    ("swiglu", {"block_n": 128, "subtiles": 2, "num_stages": 4}, ["z"]),
    ("residual_rmsnorm", {"block_n": 128, "subtiles": 4, "num_stages": 4}, []),
    ("rmsnorm_cross_entropy", {"block_n": 128, "subtiles": 2, "num_stages": 4}, []),
    ("rope", {"block_n": 192, "subtiles": 6, "num_stages": 4}, ["z"]),
    ("swiglu_backward", {"block_n": 128, "subtiles": 4, "num_stages": 4}, []),
    ("residual_rmsnorm_backward", {"block_n": 128, "subtiles": 4, "num_stages": 4}, []),
]

# Triton asks the active driver for its target: in a process of its own, a stand-in answers sm_90.
_COMPILE = """
import json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_device_capability(self, device=0): return (9, 0)
    def map_python_to_cpp_type(self, type_): return type_

driver.set_active(Hopper())
from coda_agent.bench.inputs import random_inputs
from coda_agent.operators import load as load_operator
from kernel_library.runtime import Config, load, pingpong

for name, settings, include in json.loads(sys.argv[1]):
    kernel = load(f"kernel_library/{name}")
    for k_major in (True, False):
        inputs = random_inputs(load_operator(name), 256, 384, 256, device="cpu")
        w = inputs.w if k_major else inputs.w.T.contiguous().T
        config, selected = Config(pingpong=True, **settings), kernel.selected(include)
        assert pingpong.fits(kernel, inputs.a, w, inputs.operands, config, selected, {})
        plan = pingpong.PingPongPlan(kernel, inputs.a, w, inputs.operands, config, selected, {})
        tensors = {**inputs.operands, "(a)": inputs.a, "(w)": w}
        tensors |= {tile: torch.empty(shape, dtype=plan.dtype) for tile, shape in plan.tiles.items()}
        tensors |= {partial: torch.empty(shape) for partial, shape in plan.workspaces.items()}
        compiled = pingpong.gemm.warmup(*plan._filled(tensors), grid=(1,), **plan.options)
        print(json.dumps([name, k_major, compiled.metadata.shared, compiled.asm["ptx"].count("wgmma.mma_async")]), flush=True)
"""


def test_every_kind_of_epilogue_compiles() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("TRITON_INTERPRET", None)
    run = subprocess.run(
        [sys.executable, "-c", _COMPILE, json.dumps(COMPILED)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(compiled) == 2 * len(COMPILED)
    for name, _, shared, products in compiled:
        assert shared <= 232_448, name
        assert products, name


@pytest.mark.parametrize(
    ("a", "w", "accepted"),
    [
        (torch.empty(64, 48, dtype=torch.bfloat16), torch.empty(32, 48, dtype=torch.bfloat16), True),
        (torch.empty(64, 48, dtype=torch.float16), torch.empty(48, 32, dtype=torch.float16).T, True),
        (torch.empty(64, 48), torch.empty(32, 48), False),
        (torch.empty(64, 44, dtype=torch.bfloat16), torch.empty(32, 44, dtype=torch.bfloat16), False),
        (torch.empty(48, 64, dtype=torch.bfloat16).T, torch.empty(32, 48, dtype=torch.bfloat16), False),
        (torch.empty(64, 48, dtype=torch.bfloat16), torch.empty(36, 48, dtype=torch.bfloat16), False),
        (torch.empty(64, 0, dtype=torch.bfloat16), torch.empty(32, 0, dtype=torch.bfloat16), False),
    ],
    ids=["k-major", "n-major", "fp32", "odd strides", "a along m", "odd output", "nothing to multiply"],
)
def test_what_it_accepts(a: torch.Tensor, w: torch.Tensor, accepted: bool) -> None:
    from kernel_library.runtime.pingpong import fits

    kernel = load(ROOT / "kernel_library" / "swiglu")
    config = Config(pingpong=True, block_n=128, subtiles=2)
    assert fits(kernel, a, w, {}, config, kernel.selected(()), {}) is accepted


@pytest.mark.parametrize(
    "settings",
    [
        {"block_n": 256},
        {"block_n": 176},
        {"block_m": 64},
        {"block_n": 192, "subtiles": 2},
        {"subtiles": 16},
        {"block_k": 32},
    ],
)
def test_config_names_what_is_wrong(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="ping-pong"):
        Config(pingpong=True, **settings)


def test_elsewhere_the_plain_mainloop_runs() -> None:
    """On a CPU the plan is the plain one, whatever the configuration says."""
    kernel = load(ROOT / "kernel_library" / "swiglu")
    a, w = torch.empty(64, 48, dtype=torch.bfloat16), torch.empty(32, 48, dtype=torch.bfloat16)
    plan = kernel._plan(a, w, {}, Config(pingpong=True, block_n=192, subtiles=3), kernel.selected(()), {})
    assert plan.gemm is kernel.gemm


@pytest.mark.parametrize(("columns", "allowed"), [(8, True), (16, True), (3, False), (12, False)])
def test_descriptors_need_rows_of_whole_units(columns: int, allowed: bool) -> None:
    # Rows padded to a stride TMA takes: a store of 3 columns would write 8, five of them between the rows.
    from kernel_library.runtime.launch import descriptor_allowed

    padded = torch.zeros(4, 16, dtype=torch.bfloat16)[:, :columns]
    assert descriptor_allowed(padded) is allowed
