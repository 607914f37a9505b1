"""No test reads the user's configuration, asks the user's endpoint, or writes among the user's runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from endpoint_double import KEY, MODEL, Double, Script
from pytest_httpserver import HTTPServer


@pytest.fixture(autouse=True)
def _no_user_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "CODA_MODEL"):
        monkeypatch.delenv(name, raising=False)
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("CODA_RUNS", str(base / "runs"))
    monkeypatch.setenv("CODA_CONFIG", str(base / "no-such-config.toml"))


@pytest.fixture(scope="session")
def endpoint_server() -> Iterator[HTTPServer]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = HTTPServer(threaded=True)
    server.start()
    yield server
    server.clear()
    server.stop()


@pytest.fixture
def endpoint(endpoint_server: HTTPServer) -> Iterator[Callable[[Script], Double]]:
    """Starts an endpoint with a script."""
    started: list[Double] = []

    def start(script: Script) -> Double:
        endpoint_server.clear()
        started.append(Double(endpoint_server, script))
        return started[-1]

    yield start
    for double in started:
        double.close()


@pytest.fixture
def runs_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this test's runs are kept, and nobody else's."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("CODA_RUNS", str(folder))
    return folder


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, endpoint: Callable[[Script], Double]) -> Callable[[Script], Double]:
    """Starts an endpoint, and configures it as a user does."""

    def start(script: Script) -> Double:
        double = endpoint(script)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", double.url)
        monkeypatch.setenv("CODA_MODEL", MODEL)
        return double

    return start
