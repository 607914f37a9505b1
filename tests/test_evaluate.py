"""Pass rates by round, as numbers and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import MODEL, Double, Reply, Script, fenced

import verifier.gate
from coda_agent.cli import main
from coda_agent.compiler import aot
from coda_agent.doctor import _endpoint
from coda_agent.evaluate import score, total
from coda_agent.runs import all_runs
from verifier.gate import Report

GOOD = {
    "swiglu": "def epilogue(acc):\n    gate, up = even_odd(acc)\n    store(z, acc)\n    store(y, silu(gate) * up)\n",
    "bias": "def epilogue(acc, b):\n    store(y, acc + load_row(b))\n",
}
BAD = "def epilogue(acc):\n    store(nothing, acc)\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: dict[str, Any] = {
        "properties": {}, "examples": 3, "max_error_ratio": 0.5, "percent_of_torch_error": 70.0, "seed": 0,
        "backend": "interpreter", "device": "cpu", "versions": {}, "duration": 0.1,
    }  # fmt: skip
    monkeypatch.setattr(verifier.gate, "verify", lambda *_, **__: Report(passed=True, **plain))
    monkeypatch.setattr(aot, "compile_for", lambda folder, targets: [aot.CompileReport(target) for target in targets])


def test_every_sample_is_a_trial(
    quick: None,
    configured: Callable[[Script], Double],
    runs_folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text(f'[prices."{MODEL}"]\ninput = 1.0\noutput = 10.0\n')
    monkeypatch.setenv("CODA_CONFIG", str(tmp_path / "config.toml"))
    asked: dict[str, int] = {}

    def script(number: int, body: dict[str, Any]) -> Reply:
        name = "bias" if "The target: `bias`" in body["messages"][0]["content"] else "swiglu"
        asked[name] = asked.get(name, 0) + 1
        # Of swiglu one sample passes at once, and the other after a repair; bias is never right.
        return Reply(fenced(GOOD[name] if name == "swiglu" and asked[name] != 1 else BAD))

    configured(script)
    library = tmp_path / "kernels"
    monkeypatch.setenv("CODA_LIBRARY", str(library))
    assert main(["eval", "--operators", "swiglu,bias", "--samples", "2", "--rounds", "2", "--json"]) == 0
    said = capfd.readouterr()
    document = json.loads(said.out)
    first, second = document["operators"]
    assert (first["operator"], first["accepted_by_round"], first["pass_rate_by_round"]) == (
        "swiglu",
        [1, 2],
        [0.5, 1.0],
    )
    assert (first["tokens"], first["requests"], first["tokens_per_accepted"]) == (3300, 3, 1650)
    assert first["cost"] == {"amount": 0.006, "currency": "USD"}
    assert (second["accepted_by_round"], second["tokens_per_accepted"]) == ([0, 0], None)
    assert document["total"]["pass_rate_by_round"] == [0.25, 0.5]
    assert document["model"] == MODEL
    assert not library.exists()
    assert len(all_runs()) == 2
    assert "round 2" in said.err
    assert "tokens / kernel" in said.err


def test_totals_of_nothing_accepted() -> None:
    result = {
        "operator": "x", "attempts": [], "duration": 1.0, "run": "r", "status": "rejected",
        "usage": {"total_tokens": 0, "requests": 0, "cost": None},
    }  # fmt: skip
    row = score(result, 2, 3)
    assert row["accepted_by_round"] == [0, 0, 0]
    assert total([row, row])["seconds_per_accepted"] is None


def test_bad_requests(capfd: pytest.CaptureFixture[str], configured: Callable[[Script], Double]) -> None:
    configured(lambda number, body: Reply())
    for arguments, code, words in (
        (["eval", "--operators", "swiglo"], 2, "did you mean swiglu"),
        (["eval", "--operators", ","], 2, "names no operator"),
    ):
        assert main(arguments) == code
        assert words in capfd.readouterr().err


def test_doctor_tries_the_endpoint(configured: Callable[[Script], Double], monkeypatch: pytest.MonkeyPatch) -> None:
    double = configured(lambda number, body: Reply())
    found = _endpoint()
    assert found.status == "ok"
    assert f"{double.url} answers" in found.detail
    monkeypatch.setenv("CODA_MODEL", "unheard-of")
    assert "does not list the model unheard-of" in _endpoint().advice
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    found = _endpoint()
    assert (found.status, "401" in found.detail, "wrong" in found.detail) == ("missing", True, False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    found = _endpoint()
    assert (found.status, found.needed) == ("missing", False)
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("CODA_MODEL")
    assert _endpoint().status == "absent"
