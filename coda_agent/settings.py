"""How the user's models are reached, and what they may use up: options, the environment, a configuration file.

    # config.toml in the user's configuration folder, or where CODA_CONFIG says
    [llm]
    model = "name"
    base_url = "http://localhost:8000/v1"
    api_key_env = "MY_KEY"          # the variable that holds the key; the key itself has no place in a file
    samples = 2
    rounds = 4
    budget_tokens = 200000
    max_requests = 32
    timeout = 900                   # seconds, the whole run
    request_timeout = 300           # seconds without a word from the endpoint
    max_tokens = 16384              # of one answer
    temperature = 0.8               # left to the endpoint unless given
    stream = true

    [prices."name"]                 # of a million tokens
    input = 1.0
    output = 4.0
    currency = "USD"

An option beats the environment, which beats the file.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import EnvironmentProblem, RequestError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEY, BASE_URL, MODEL, CONFIG = "OPENAI_API_KEY", "OPENAI_BASE_URL", "CODA_MODEL", "CODA_CONFIG"
#: Where the ``openai`` package goes unless told otherwise.
OPENAI_URL = "https://api.openai.com/v1"
#: What is sent where an endpoint of the user's own needs no key.
NO_KEY = "no-key"


@dataclass(frozen=True)
class Secret:
    """A key, which shows in no message, record or log by accident."""

    value: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __str__(self) -> str:
        return "[key]" if self.value else ""


@dataclass(frozen=True)
class Price:
    """Of a million tokens."""

    input: float
    output: float
    currency: str = "USD"


@dataclass(frozen=True)
class Limits:
    """What one run may use up. Every HTTP request counts, those repeated after a failure too."""

    samples: int = 2
    rounds: int = 4
    budget_tokens: int = 200_000
    max_requests: int = 32
    timeout: float = 900.0


@dataclass(frozen=True)
class Settings:
    """One model behind one endpoint, and the limits of a run. ``sources`` says where the endpoint was named."""

    model: str = ""
    base_url: str = ""
    key: Secret = Secret()
    limits: Limits = Limits()
    request_timeout: float = 300.0
    max_tokens: int = 16_384
    temperature: float | None = None
    stream: bool = True
    prices: Mapping[str, Price] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def price(self) -> Price | None:
        return self.prices.get(self.model)

    @property
    def host(self) -> str:
        """Scheme, host and path of the endpoint; user names, passwords and queries left out."""
        return public_url(self.base_url or OPENAI_URL)


def public_url(url: str) -> str:
    """``url`` without what may be secret in it."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def load(
    *,
    model: str | None = None,
    base_url: str | None = None,
    samples: int | None = None,
    rounds: int | None = None,
    budget_tokens: int | None = None,
    max_requests: int | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """What options, environment and file say together. Raises :class:`RequestError` for values that make no sense."""
    path = config_path(environment)
    file = _read(path)
    llm = file.get("llm", {})
    key_name = str(llm.get("api_key_env", KEY))
    key = environment.get(key_name, "").strip()
    sources = []
    url = ""
    for name, value in (
        ("--base-url", base_url),
        (BASE_URL, environment.get(BASE_URL)),
        (str(path), llm.get("base_url")),
    ):
        if value and not url:
            url = _checked_url(name, str(value).strip())
            sources.append(name)
    if key:
        sources.append(key_name)
    given = {
        "samples": samples,
        "rounds": rounds,
        "budget_tokens": budget_tokens,
        "max_requests": max_requests,
        "timeout": timeout,
    }
    chosen = {name: llm[name] for name in given if name in llm} | {k: v for k, v in given.items() if v is not None}
    settings = Settings(
        model=(model or environment.get(MODEL, "") or str(llm.get("model", ""))).strip(),
        base_url=url,
        key=Secret(key),
        limits=replace(Limits(), **chosen),
        prices={name: Price(**_price(path, name, entry)) for name, entry in file.get("prices", {}).items()},
        sources=tuple(sources),
        **{name: llm[name] for name in ("request_timeout", "max_tokens", "temperature", "stream") if name in llm},
    )
    _check(settings)
    return settings


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The configuration file, whether or not it exists."""
    if environment.get(CONFIG):
        return Path(environment[CONFIG]).expanduser()
    import platformdirs

    return platformdirs.user_config_path("coda-agent") / "config.toml"


def require_endpoint(settings: Settings) -> Settings:
    """``settings`` if a model can be asked with them; a local endpoint of the user's own may do without a key."""
    if not settings.key and not settings.base_url:
        raise EnvironmentProblem(
            f"no endpoint is configured: set {KEY} for OpenAI, or {BASE_URL} (or --base-url) for any other "
            "OpenAI-compatible server; --author derive needs none"
        )
    if not settings.key and not _is_local(settings.base_url):
        raise EnvironmentProblem(f"no key for {settings.host}: set {KEY} (any text will do where none is needed)")
    return settings if settings.key else replace(settings, key=Secret(NO_KEY))


def require_model(settings: Settings) -> Settings:
    """``settings`` if they name a model."""
    if not settings.model:
        raise EnvironmentProblem(
            f'no model is named: add --model NAME, set {MODEL}, or write model = "NAME" under [llm] in the configuration file'
        )
    return settings


def _is_local(url: str) -> bool:
    """Whether ``url`` is of this machine or a private network, where keys are rare."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan"))
    return address.is_loopback or address.is_private


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the configuration file {path} cannot be read: {error}") from error
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"the configuration file {path} is not valid TOML: {error}") from error
    for table in ("llm", "prices"):
        if not isinstance(data.get(table, {}), dict):
            raise RequestError(f"the configuration file {path}: [{table}] must be a table")
    llm = data.get("llm", {})
    if "api_key" in llm:
        raise RequestError(
            f"the configuration file {path} holds a key: put it in an environment variable, and write "
            f'api_key_env = "ITS_NAME" (default: "{KEY}")'
        )
    known = {"model", "base_url", "api_key_env", "request_timeout", "max_tokens", "temperature", "stream"} | {
        item.name for item in fields(Limits)
    }
    unknown = sorted({*data} - {"llm", "prices"}) + sorted({*llm} - known)
    if unknown:
        raise RequestError(
            f"the configuration file {path} has an unknown entry '{unknown[0]}': [llm] takes {', '.join(sorted(known))}"
        )
    return data


def _price(path: Path, name: str, entry: Any) -> dict[str, Any]:
    try:
        price = {"input": float(entry["input"]), "output": float(entry["output"])}
        return price | {"currency": str(entry.get("currency", "USD"))}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise RequestError(
            f'the configuration file {path}: [prices."{name}"] needs input and output, of a million tokens, as numbers'
        ) from None


def _checked_url(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise RequestError(f"{name} must be a URL such as http://localhost:8000/v1")
    return url


def _check(settings: Settings) -> None:
    limits = settings.limits
    for name, value, most in (
        ("samples", limits.samples, 64),
        ("rounds", limits.rounds, 64),
        ("budget-tokens", limits.budget_tokens, 10**12),
        ("max-requests", limits.max_requests, 10**6),
        ("max-tokens", settings.max_tokens, 10**7),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise RequestError(f"{name} must be a whole number from 1 to {most}; got {value!r}")
    for name, seconds in (("timeout", limits.timeout), ("request_timeout", settings.request_timeout)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 10**7:
            raise RequestError(f"{name} must be a positive number of seconds; got {seconds!r}")
    if settings.temperature is not None and not isinstance(settings.temperature, (int, float)):
        raise RequestError(f"temperature must be a number; got {settings.temperature!r}")
    if not isinstance(settings.stream, bool):
        raise RequestError(f"stream must be true or false; got {settings.stream!r}")
