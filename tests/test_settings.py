"""Options over environment over file, and no key where it does not belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coda_agent.errors import EnvironmentProblem, RequestError
from coda_agent.settings import Limits, Price, load, public_url, require_endpoint, require_model

FILE = """
[llm]
model = "from-file"
base_url = "http://localhost:1/v1"
api_key_env = "MY_KEY"
samples = 5
rounds = 6
stream = false
temperature = 0.5

[prices."from-file"]
input = 2.0
output = 8
"""


def config(folder: Path, text: str) -> dict[str, str]:
    path = folder / "config.toml"
    path.write_text(text)
    return {"CODA_CONFIG": str(path)}


def test_without_anything_the_defaults_hold() -> None:
    settings = load(environment={"CODA_CONFIG": "/no/such/file"})
    assert settings.limits == Limits()
    assert (settings.model, settings.base_url, bool(settings.key), settings.sources) == ("", "", False, ())


def test_options_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    environment = config(tmp_path, FILE)
    settings = load(environment={**environment, "MY_KEY": "sk-secret", "OPENAI_API_KEY": "sk-other"})
    assert (settings.model, settings.base_url, settings.key.value) == (
        "from-file",
        "http://localhost:1/v1",
        "sk-secret",
    )
    assert (settings.limits.samples, settings.limits.rounds, settings.stream, settings.temperature) == (
        5,
        6,
        False,
        0.5,
    )
    assert settings.price == Price(2.0, 8.0)
    assert settings.sources == (environment["CODA_CONFIG"], "MY_KEY")
    environment |= {"OPENAI_BASE_URL": "http://localhost:2/v1", "CODA_MODEL": "from-environment"}
    settings = load(environment=environment)
    assert (settings.model, settings.base_url, settings.price) == ("from-environment", "http://localhost:2/v1", None)
    settings = load(model="given", base_url="http://localhost:3/v1", samples=1, environment=environment)
    assert (settings.model, settings.base_url, settings.limits.samples) == ("given", "http://localhost:3/v1", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[llm", "not valid TOML"),
        ('[llm]\napi_key = "sk-secret"', "holds a key"),
        ("[llm]\nsample = 1", "unknown entry 'sample'"),
        ("[other]\nx = 1", "unknown entry 'other'"),
        ("llm = 1", "must be a table"),
        ('[llm]\nsamples = "two"', "whole number"),
        ("[llm]\nsamples = true", "whole number"),
        ("[llm]\ntimeout = 0", "positive"),
        ('[llm]\nstream = "yes"', "true or false"),
        ('[llm]\nbase_url = "localhost:8000"', "must be a URL"),
        ('[prices."m"]\ninput = 1', "needs input and output"),
        ("[prices]\nm = 1", "needs input and output"),
    ],
)
def test_a_file_that_is_wrong_is_a_request_error(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        load(environment=config(tmp_path, text))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no endpoint is configured"),
        ({"base_url": "https://models.example.com/v1"}, "no key for https://models.example.com/v1"),
    ],
)
def test_what_an_endpoint_needs(given: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        require_endpoint(load(**given, environment={}))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "192.168.1.5", "10.0.0.1", "gpu-box", "llm.lan"])
def test_a_local_endpoint_needs_no_key(host: str) -> None:
    settings = require_endpoint(load(base_url=f"http://{host}:8000/v1", environment={}))
    assert settings.key
    with pytest.raises(EnvironmentProblem, match="no model"):
        require_model(settings)


def test_what_is_secret_in_a_url_is_left_out() -> None:
    assert public_url("https://user:pass@host.example:8443/v1/?token=x#y") == "https://host.example:8443/v1"
    assert public_url("http://[::1]:8000/v1") == "http://[::1]:8000/v1"
