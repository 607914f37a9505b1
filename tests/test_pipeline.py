"""A run as a stream of events: what is told, what is recorded, and what is left behind when it does not end well."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import verifier.gate
from coda_agent import pipeline
from coda_agent.authors.selection import select
from coda_agent.compiler import aot
from coda_agent.errors import EnvironmentProblem, RequestError
from coda_agent.library import Library, LibraryError, LibraryRequestError
from coda_agent.pipeline import Event, Request
from verifier.gate import Report

SWIGLU = "def epilogue(acc):\n    gate, up = even_odd(acc)\n    store(z, acc)\n    store(y, silu(gate) * up)\n"


def report(**changes: Any) -> Report:
    plain: dict[str, Any] = {
        "passed": True,
        "properties": {"contract": {"passed": True, "examples": 3}},
        "examples": 3,
        "max_error_ratio": 0.5,
        "percent_of_torch_error": 70.0,
        "seed": 7,
        "backend": "interpreter",
        "device": "cpu",
        "versions": {},
        "duration": 0.1,
    }
    return Report(**{**plain, **changes})


@pytest.fixture
def epilogue(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SWIGLU)
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Compilation and verification answered at once; what they were asked is kept."""
    asked: dict[str, Any] = {}

    def compile_for(folder: Path, targets: Any = aot.DEFAULT_TARGETS, **_: Any) -> list[aot.CompileReport]:
        asked.update(folder=folder, targets=targets, files={p.name: p.read_text() for p in folder.iterdir()})
        return [
            aot.CompileReport(target, registers=100, shared_bytes=1024, spill_bytes=0, tensor_cores="mma")
            for target in targets
        ]

    def verify(operator: Any, folder: Path, **options: Any) -> Report:
        asked.update(operator=operator, options=options)
        options["on_event"]({"event": "started", "backend": "interpreter", "total": 3, "seed": 7})
        options["on_event"]({"event": "progress", "done": 3, "total": 3, "max_error_ratio": 0.5})
        return report()

    monkeypatch.setattr(aot, "compile_for", compile_for)
    monkeypatch.setattr(verifier.gate, "verify", verify)
    return asked


def run(request: Request) -> tuple[list[Event], pipeline.Finished]:
    events: list[Event] = []
    finished = pipeline.generate(request, events.append)
    assert events[-1] is finished
    return events, finished


def test_a_run_tells_every_stage_in_order(quick: dict[str, Any], epilogue: Path, tmp_path: Path) -> None:
    events, finished = run(
        Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue, seed=7, examples=3, timeout=9)
    )
    assert [type(event).__name__ for event in events] == [
        "Started",
        "AuthorChosen",
        "EpilogueWritten",
        "Compiled",
        *["TargetCompiled"] * 3,
        *["VerificationProgress"] * 2,
        "Verified",
        "Committed",
        "Finished",
    ]
    assert finished.exit_code == 0
    assert quick["targets"] == aot.DEFAULT_TARGETS
    assert {name: quick["options"][name] for name in ("seed", "examples", "timeout", "backend")} == {
        "seed": 7,
        "examples": 3,
        "timeout": 9,
        "backend": "auto",
    }
    assert quick["files"]["epilogue.py"] == SWIGLU
    assert not quick["folder"].exists()


def test_the_result_and_the_record_agree(quick: dict[str, Any], epilogue: Path, tmp_path: Path) -> None:
    _, finished = run(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue))
    result = finished.result
    keys = {
        "operator",
        "author",
        "status",
        "kernel",
        "verification",
        "benchmark",
        "run",
        "diagnostics",
        "counterexample",
    }
    assert keys <= result.keys()
    assert (result["status"], result["author"], result["benchmark"], result["diagnostics"]) == (
        "committed",
        "file",
        None,
        [],
    )
    assert result["verification"]["properties"] == {"contract": {"passed": True, "examples": 3}}
    text = Path(result["kernel"]["paths"]["record.json"]).read_text()
    record = json.loads(text)
    assert record["sha256"] == result["kernel"]["sha256"]
    assert record["operator"]["reference"].startswith("@operator\ndef swiglu(")
    assert record["operator"]["outputs"][1] == {"name": "y", "extent": "HalfTile", "reduction": None, "optional": False}
    assert record["author"] == {"name": "file", "path": "mine.py"}
    assert [entry["target"] for entry in record["targets"]] == list(aot.DEFAULT_TARGETS)
    assert record["cost"]["gemm_flops"] > 0
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text


def test_without_commit_the_library_is_not_even_made(quick: dict[str, Any], epilogue: Path, tmp_path: Path) -> None:
    _, finished = run(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue, commit=False))
    assert finished.result["status"] == "verified"
    assert finished.result["kernel"]["folder"] is None
    assert not (tmp_path / "kernels").exists()


def test_a_wrong_kernel_leaves_the_committed_one(
    quick: dict[str, Any], epilogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue)
    run(request)
    before = {path: path.read_bytes() for path in (tmp_path / "kernels").rglob("*") if path.is_file()}
    found = {"property": "contract", "message": "outputs were not written"}
    monkeypatch.setattr(
        verifier.gate, "verify", lambda *_, **__: report(passed=False, reason="contract", counterexample=found)
    )
    events, finished = run(request)
    assert finished.exit_code == 1
    assert finished.result["status"] == "rejected"
    assert finished.result["counterexample"] == found
    assert pipeline.Rejected("contract", found) in events
    assert {path: path.read_bytes() for path in (tmp_path / "kernels").rglob("*") if path.is_file()} == before


def test_a_target_that_does_not_compile_is_a_rejection(
    quick: dict[str, Any], epilogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        aot, "compile_for", lambda folder, targets: [aot.CompileReport("sm_90", error="out of registers")]
    )
    _, finished = run(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue, targets=["sm_90"]))
    assert finished.exit_code == 1
    assert finished.result["reason"] == "it does not compile for sm_90: out of registers"


def test_a_refused_epilogue_carries_its_diagnostics(epilogue: Path, tmp_path: Path) -> None:
    epilogue.write_text("def epilogue(acc):\n    store(y, nothing)\n")
    events, finished = run(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue))
    assert finished.exit_code == 1
    assert finished.result["diagnostics"]
    assert {"line", "column", "rule", "message", "hint"} == finished.result["diagnostics"][0].keys()
    assert any(isinstance(event, pipeline.Diagnostics) for event in events)
    assert not (tmp_path / "kernels").exists()


@pytest.mark.parametrize("stage", ["compile_for", "verify", "commit"])
def test_an_interrupt_leaves_nothing(
    quick: dict[str, Any], epilogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    where = {"compile_for": aot, "verify": verifier.gate, "commit": Library}[stage]
    monkeypatch.setattr(where, stage, interrupt)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with pytest.raises(KeyboardInterrupt):
        pipeline.generate(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue), lambda event: None)
    assert not (tmp_path / "kernels").exists()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"targets": ["sm_1"]}, RequestError),
        ({"timeout": 0}, RequestError),
        ({"timeout": float("nan")}, RequestError),
        ({"examples": 0}, RequestError),
        ({"seed": -1}, RequestError),
        ({"author": "derive"}, RequestError),
        ({"author": "file", "epilogue": None}, RequestError),
        ({"author": "llm", "epilogue": None}, EnvironmentProblem),
        ({"library": Path(__file__)}, LibraryRequestError),
        ({"library": Path(__file__) / "below"}, LibraryRequestError),
        ({"library": Path("/proc/nowhere")}, LibraryError),
    ],
)
def test_requests_that_cannot_be_met(
    quick: dict[str, Any], epilogue: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception]
) -> None:
    options = {"library": tmp_path / "kernels", "epilogue": epilogue, **changes}
    with pytest.raises(error):
        pipeline.generate(Request("swiglu", **options), lambda event: None)
    assert not (tmp_path / "kernels").exists()


def test_a_gpu_that_is_not_there_is_the_environment(
    epilogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(EnvironmentProblem, match="--backend cuda needs an NVIDIA GPU"):
        pipeline.generate(
            Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue, backend="cuda"), lambda event: None
        )


def test_a_missing_triton_is_the_environment(epilogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = pipeline.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "triton" else find(name, *rest))
    with pytest.raises(EnvironmentProblem, match="triton is not installed"):
        pipeline.generate(Request("swiglu", library=tmp_path / "kernels", epilogue=epilogue), lambda event: None)


def test_the_author_follows_from_what_is_given(epilogue: Path) -> None:
    assert select(None, epilogue, {}).name == "file"
    assert select("file", epilogue, {}).why == "it was asked for"
    nothing = select(None, None, {})
    assert (nothing.name, "no endpoint is configured" in nothing.why) == ("derive", True)
    nameless = select(None, None, {"OPENAI_API_KEY": "sk-secret"})
    assert (nameless.name, nameless.why) == (
        "derive",
        "OPENAI_API_KEY is set, but no model is named (--model or CODA_MODEL)",
    )
    configured = select(None, None, {"OPENAI_API_KEY": "sk-secret", "CODA_MODEL": "some-model"})
    assert configured.name == "llm"
    assert configured.why == "OPENAI_API_KEY configures an endpoint; some-model at https://api.openai.com/v1"
    assert "secret" not in repr(configured)
