"""Compiling ahead of time: the targets, the figures, and what happens when a compilation fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from coda_agent.authors.contract import signature
from coda_agent.authors.derive import derive
from coda_agent.compiler import Description, generate
from coda_agent.compiler.aot import TargetError, compile_for
from coda_agent.operators import load
from coda_agent.sandbox import parse
from kernel_library.runtime import Config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    operator = load("rmsnorm_swiglu")
    text = generate(parse(derive(operator), signature(operator)), Description(operator.name, operator.doc))
    folder = tmp_path_factory.mktemp("aot") / operator.name
    folder.mkdir()
    (folder / "kernel.py").write_text(text)
    return folder


def test_targets_use_their_matrix_instructions_without_spilling(folder: Path) -> None:
    reports = compile_for(folder, ("sm_80", "sm_90"))
    assert [(report.target, report.error) for report in reports] == [("sm_80", None), ("sm_90", None)]
    assert [report.tensor_cores for report in reports] == ["mma", "wgmma"]
    assert all(report.spill_bytes == 0 and 0 < (report.registers or 0) <= 255 for report in reports)
    assert all(0 < (report.shared_bytes or 0) <= 232_448 for report in reports)
    assert [report.config["tma"] for report in reports] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_100", "gfx942"])
def test_further_targets(folder: Path, target: str) -> None:
    (report,) = compile_for(folder, (target,))
    assert report.error is None
    assert report.tensor_cores == {"sm_100": "tcgen05", "gfx942": "mfma"}[target]


@pytest.mark.slow
def test_every_form_compiles(folder: Path) -> None:
    for config in (
        Config(128, 256, 64, subtiles=4, num_stages=3, load_tma=True, store_tma=True),
        Config(64, 64, 32, num_warps=4, tma=False),
        Config(128, 128, 64, subtiles=2, num_warps=4),
    ):
        (report,) = compile_for(folder, ("sm_90",), config=config)
        assert report.error is None, config


def test_ieee_fp32_uses_no_tensor_cores(folder: Path) -> None:
    (report,) = compile_for(folder, ("sm_80",), dtype="fp32")
    assert report.error is None
    assert report.tensor_cores is None


def test_a_kernel_that_does_not_compile_is_reported(folder: Path, tmp_path: Path) -> None:
    broken = (folder / "kernel.py").read_text().replace("silu(gate)", "silu(gate, gate, gate)")
    (tmp_path / "kernel.py").write_text(broken)
    reports = compile_for(tmp_path, ("sm_80", "sm_90"))
    assert all(report.error and report.registers is None for report in reports)


def test_a_compiler_that_dies_costs_one_target_not_the_run(folder: Path, tmp_path: Path) -> None:
    dying = (folder / "kernel.py").read_text() + "\nimport os\nos.abort()\n"
    (tmp_path / "kernel.py").write_text(dying)
    (report,) = compile_for(tmp_path, ("sm_90",))
    assert "SIGABRT" in (report.error or "")


@pytest.mark.parametrize("target", ["sm_70", "90", "h100", "", "sm_90; rm"])
def test_unknown_targets_are_refused(folder: Path, target: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        compile_for(folder, (target,))
