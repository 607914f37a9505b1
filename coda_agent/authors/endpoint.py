"""Asking a model behind an OpenAI-compatible endpoint, through the ``openai`` package.

Endpoints differ in what they take and in how they fail. One :class:`Conversation` with an endpoint learns which
parameters it rejects, repeats what may succeed when repeated, and turns the rest into :class:`EndpointError`, whose
message says what to do. The package's own retries stay off: they know neither the limit on requests nor the time that
is left, and they end where a stream begins.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from coda_agent.errors import EnvironmentProblem
from coda_agent.settings import Secret, Settings

from .answers import find

Message = Mapping[str, str]
Tell = Callable[[Mapping[str, Any]], None]

#: HTTP requests for one answer, the first included.
ATTEMPTS = 4
#: Seconds to wait before a repeated request: the first time, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
#: Characters of an answer; what goes on beyond is no epilogue.
LONGEST_ANSWER = 1_000_000
#: Seconds between two words on how an answer grows.
_PULSE = 0.5


class EndpointError(EnvironmentProblem):
    """The endpoint gives no answers, and asking again will not help."""


class OutOfRequests(Exception):
    """The limit on requests does not allow another one."""


class _Transient(Exception):
    """An attempt failed in a way that another may not. ``wait`` is what the endpoint asked for, in seconds."""

    def __init__(self, what: str, wait: float | None = None) -> None:
        super().__init__(what)
        self.wait = wait


@dataclass(frozen=True)
class Usage:
    """Tokens, as the endpoint counts them; estimated from the text where it does not say."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    estimated: bool = False

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True)
class Answer:
    """What came back for one question, unread: ``text`` may hold anything."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str = ""
    model: str = ""
    usage: Usage = Usage()
    seconds: float = 0.0
    attempts: int = 1
    dropped: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answer:
        usage = Usage(**data.get("usage", {}))
        return cls(**{**data, "usage": usage, "dropped": tuple(data.get("dropped", ()))})


@dataclass
class Allowance:
    """How many HTTP requests are left, whichever thread sends them."""

    left: int
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self) -> None:
        with self._lock:
            if self.left < 1:
                raise OutOfRequests
            self.left -= 1


def estimate(text: str) -> int:
    """About how many tokens ``text`` is, rather more than fewer."""
    return len(text.encode("utf-8", "replace")) // 3 + 1


def scrub(value: Any, key: Secret) -> Any:
    """``value`` with every occurrence of the key replaced: endpoints like to repeat the key they refuse."""
    if not key or len(key.value) < 6:
        return value
    if isinstance(value, str):
        return value.replace(key.value, "[key]")
    if isinstance(value, Mapping):
        return {scrub(name, key): scrub(item, key) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item, key) for item in value]
    return value


def client(settings: Settings, timeout: float | None = None) -> Any:
    """The ``openai`` package's client. Raises :class:`EndpointError` where the package cannot be used."""
    try:
        import openai
    except ImportError as error:
        raise EndpointError(f"the author 'llm' needs the package openai: pip install openai ({error})") from error
    import logging

    for name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their debug output holds whole requests
    try:
        return openai.OpenAI(
            api_key=settings.key.value,
            base_url=settings.base_url or None,
            timeout=timeout or settings.request_timeout,
            max_retries=0,
        )
    except Exception as error:
        raise EndpointError(f"the openai package refuses this endpoint: {error}") from error


class Conversation:
    """One endpoint as it was found to be. Safe to use from several threads."""

    def __init__(self, settings: Settings, allowance: Allowance) -> None:
        self.settings = settings
        self.allowance = allowance
        self.client = client(settings)
        self.stop = threading.Event()
        official = urlsplit(settings.base_url).hostname in (None, "", "api.openai.com")
        self._limit_name = "max_completion_tokens" if official else "max_tokens"
        self._dropped: set[str] = set()

    def ask(self, messages: Sequence[Message], max_tokens: int, tell: Tell, deadline: float) -> Answer:
        """One answer, however many attempts it takes. ``deadline`` is on the monotonic clock."""
        began, problem, attempts = time.monotonic(), "", 0
        adjustments = 0
        while attempts - adjustments < ATTEMPTS:
            self.allowance.take()
            attempts += 1
            tell({"event": "sent", "attempt": attempts})
            try:
                answer = self._attempt(messages, max_tokens, tell, deadline)
                return Answer(
                    **{
                        **vars(answer),
                        "text": _encodable(answer.text),
                        "reasoning": _encodable(answer.reasoning),
                        "refusal": _encodable(answer.refusal),
                        "seconds": round(time.monotonic() - began, 3),
                        "attempts": attempts,
                        "dropped": tuple(sorted(self._dropped)),
                    }
                )
            except _Adjusted as change:
                adjustments += 1
                tell({"event": "adjusted", "what": str(change)})
                continue
            except _Transient as failure:
                problem = str(failure)
                wait = self._wait(attempts - adjustments, failure.wait)
                left = deadline - time.monotonic()
                if left <= 0 or (failure.wait is not None and wait > left):
                    break
                if attempts - adjustments < ATTEMPTS:
                    tell({"event": "retrying", "why": problem, "seconds": round(wait, 2)})
                    if self.stop.wait(min(wait, left)):
                        break
        raise EndpointError(
            f"{self.settings.host} gave no answer in {attempts} attempt{'s' * (attempts != 1)}: {problem}"
        )

    @staticmethod
    def _wait(failures: int, asked: float | None) -> float:
        if asked is not None:
            return asked
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1))
        return longest * random.uniform(0.75, 1.0)

    def _parameters(self, max_tokens: int) -> dict[str, Any]:
        wanted: dict[str, Any] = {self._limit_name: max_tokens, "stream": self.settings.stream}
        if self.settings.stream:
            wanted["stream_options"] = {"include_usage": True}
        if self.settings.temperature is not None:
            wanted["temperature"] = self.settings.temperature
        if "stream" in self._dropped:
            wanted.pop("stream_options", None)
        return {name: value for name, value in wanted.items() if name not in self._dropped}

    def _attempt(self, messages: Sequence[Message], max_tokens: int, tell: Tell, deadline: float) -> Answer:
        import openai

        sent = self._parameters(max_tokens)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Transient("the time limit of the run was reached")
        prompt = sum(estimate(message["content"]) for message in messages)
        try:
            reply = self.client.with_options(timeout=min(self.settings.request_timeout, left)).chat.completions.create(
                model=self.settings.model, messages=list(messages), **sent
            )
            if sent.get("stream"):
                return self._stream(reply, prompt, tell, deadline)
            return self._whole(reply, prompt)
        except openai.APIStatusError as error:
            raise self._refused(error, sent) from error
        except openai.APITimeoutError as error:
            raise _Transient(f"nothing heard within {min(self.settings.request_timeout, left):.0f} s") from error
        except openai.APIConnectionError as error:
            raise self._unreachable(error) from error
        except openai.APIError as error:  # an error inside a stream
            raise _Transient(f"the endpoint reports an error: {_brief(error.message)}") from error
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise _Transient(
                f"the answer is no chat completion ({type(error).__name__}: {_brief(str(error))})"
            ) from error

    # --- Answers -----------------------------------------------------------------------------------------------------

    def _whole(self, reply: Any, prompt: int) -> Answer:
        if not getattr(reply, "choices", None):
            raise _Transient(f"the answer is no chat completion: {_brief(_said(reply))}")
        choice = reply.choices[0]
        message = choice.message
        text, reasoning = _text(message.content), _reasoning(message)
        usage = _usage(getattr(reply, "usage", None), prompt, text + reasoning)
        refusal = _text(getattr(message, "refusal", None))
        return Answer(text[:LONGEST_ANSWER], reasoning, refusal, choice.finish_reason or "", _text(reply.model), usage)

    def _stream(self, chunks: Any, prompt: int, tell: Tell, deadline: float) -> Answer:
        import openai

        if not hasattr(chunks, "response"):
            raise _Transient(f"the answer is no stream: {_brief(_said(chunks))}")
        parts: dict[str, list[str]] = {"text": [], "reasoning": [], "refusal": []}
        size, finish, model, usage, cut = 0, "", "", None, ""
        pulse = time.monotonic()
        try:
            with contextlib.closing(chunks):
                for chunk in chunks:
                    usage = getattr(chunk, "usage", None) or usage
                    model = _text(getattr(chunk, "model", None)) or model
                    for choice in (getattr(chunk, "choices", None) or ())[:1]:
                        finish = choice.finish_reason or finish
                        delta = choice.delta
                        for name, piece in (
                            ("text", _text(getattr(delta, "content", None))),
                            ("reasoning", _reasoning(delta)),
                            ("refusal", _text(getattr(delta, "refusal", None))),
                        ):
                            if piece:
                                parts[name].append(piece)
                                size += len(piece)
                    now = time.monotonic()
                    if now - pulse >= _PULSE:
                        pulse = now
                        tell({"event": "growing", "characters": size})
                    if self.stop.is_set() or now > deadline or size > LONGEST_ANSWER:
                        cut = "cut short by a limit"
                        finish = finish or "length"
                        break
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            cut = f"{type(error).__name__}: {_brief(str(error))}"
        text, reasoning, refusal = ("".join(parts[name]) for name in ("text", "reasoning", "refusal"))
        if not finish:
            found = find(text)
            if not (found.source and found.complete):  # else what matters had arrived, and was paid for
                raise _Transient(f"the stream broke off after {size} characters{f' ({cut})' if cut else ''}")
            finish = "broken off"
        return Answer(text, reasoning, refusal, finish, model, _usage(usage, prompt, text + reasoning))

    # --- Failures ----------------------------------------------------------------------------------------------------

    def _refused(self, error: Any, sent: Mapping[str, Any]) -> Exception:
        """What to make of an HTTP error status."""
        code, said, host = error.status_code, _brief(_reason(error)), self.settings.host
        if code in (400, 422):
            change = self._adjust(f"{getattr(error, 'param', None) or ''} {_reason(error)}".lower(), sent)
            if change:
                return _Adjusted(change)
            return EndpointError(f"{host} refuses the request (HTTP {code}): {said}")
        if code == 401:
            return EndpointError(f"{host} does not accept the key (HTTP 401): {said}; check the variable that holds it")
        if code == 403:
            return EndpointError(
                f"{host} does not permit this (HTTP 403): {said}; check the key's rights and the model"
            )
        if code == 404:
            return EndpointError(
                f"{host} knows no model '{self.settings.model}', or is no OpenAI-compatible endpoint (HTTP 404): {said}; "
                "check --model, and that --base-url ends where /chat/completions begins (often /v1)"
            )
        if code == 429 and getattr(error, "code", None) in ("insufficient_quota", "billing_hard_limit_reached"):
            return EndpointError(f"{host}: the account has no quota left: {said}")
        if code == 402:
            return EndpointError(f"{host} wants to be paid first (HTTP 402): {said}")
        if code in (408, 409, 425, 429) or code >= 500:
            return _Transient(f"HTTP {code}: {said}", _retry_after(error.response.headers))
        return EndpointError(f"{host} refuses the request (HTTP {code}): {said}")

    def _adjust(self, complaint: str, sent: Mapping[str, Any]) -> str:
        """Drop or rename the parameter that a complaint is about; empty where it is about none that we sent."""
        limit = self._limit_name
        if limit in sent and (limit in complaint or "max_tokens" in complaint or "max_completion_tokens" in complaint):
            other = "max_completion_tokens" if limit == "max_tokens" else "max_tokens"
            if "limit" not in self._dropped and other in complaint:
                self._limit_name = other
                self._dropped.add("limit")  # renamed once; the next complaint drops it
                return f"{limit} became {other}"
            self._dropped.add(limit)
            return f"{limit} is no longer sent"
        for name in ("stream_options", "temperature", "stream"):
            if name in sent and sent[name] and (name in complaint or (name == "stream" and "streaming" in complaint)):
                self._dropped.add(name)
                return f"{name} is no longer sent"
        return ""

    def _unreachable(self, error: BaseException) -> Exception:
        """A connection that failed: at once where nobody listens, else it may work the next time."""
        cause, seen = error.__cause__ or error.__context__, 0
        host = self.settings.host
        words = str(error)
        while cause is not None and seen < 8:
            words = str(cause) or words
            if isinstance(cause, ConnectionRefusedError) or "refused" in str(cause).lower():
                return EndpointError(
                    f"nothing listens at {host}: connection refused; is the server running, the port right?"
                )
            text = str(cause).lower()
            if any(
                sign in text
                for sign in ("name or service not known", "getaddrinfo", "nodename nor servname", "name resolution")
            ):
                return EndpointError(f"{host} cannot be found: {_brief(str(cause))}; check --base-url and the network")
            if "certificate verify failed" in text:
                return EndpointError(f"{host}: its certificate cannot be verified: {_brief(str(cause))}")
            cause, seen = cause.__cause__ or cause.__context__, seen + 1
        return _Transient(f"the connection failed: {_brief(words)}")


class _Adjusted(Exception):
    """The endpoint rejected a parameter; the request is worth repeating without."""


# --- Reading what endpoints say ----------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Text, whether it comes as a string or as a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(
            _text(part.get("text")) if isinstance(part, dict) else _text(getattr(part, "text", "")) for part in value
        )
    return ""


def _encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: JSON can spell halves of characters, which can be neither stored nor sent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _reasoning(message: Any) -> str:
    for name in ("reasoning_content", "reasoning", "thinking"):
        found = _text(getattr(message, name, None))
        if found:
            return found
    return ""


def _usage(reported: Any, prompt: int, said: str) -> Usage:
    def number(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    asked, given = (
        number(getattr(reported, "prompt_tokens", None)),
        number(getattr(reported, "completion_tokens", None)),
    )
    details = getattr(reported, "completion_tokens_details", None)
    reasoning = number(getattr(details, "reasoning_tokens", None)) or 0
    if asked is None or given is None:
        return Usage(
            asked if asked is not None else prompt, given if given is not None else estimate(said), reasoning, True
        )
    return Usage(asked, given, reasoning)


def _reason(error: Any) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner
        return str(inner)
    return str(body or error.message)


def _said(reply: Any) -> str:
    problem = getattr(reply, "error", None)
    return str(problem) if problem else str(reply)


def _brief(text: str, limit: int = 240) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= limit else f"{words[:limit]}…"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an endpoint asks to wait: retry-after-ms, retry-after in seconds or as a date."""
    import email.utils

    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            seconds = float(headers.get(name, "")) / unit
            if 0 <= seconds < 86_400:
                return seconds
    with contextlib.suppress(TypeError, ValueError, IndexError):
        date = email.utils.mktime_tz(email.utils.parsedate_tz(headers.get("retry-after", "")))  # type: ignore[arg-type]
        return max(0.0, date - time.time())
    return None


def models(settings: Settings, timeout: float = 5.0) -> Iterator[str]:
    """Names of the models that an endpoint lists. Raises what the ``openai`` package raises."""
    for model in client(settings, timeout).with_options(timeout=timeout).models.list().data:
        yield str(model.id)


def with_model(settings: Settings) -> Settings:
    """``settings`` with a model: where none is named and the endpoint serves exactly one, that one."""
    if settings.model or not settings.base_url:
        return settings
    try:
        served = list(models(settings))
    except EndpointError:
        raise
    except Exception as error:
        raise EndpointError(
            f"no model is named (--model, CODA_MODEL), and {settings.host} does not list its models ({type(error).__name__})"
        ) from None
    if len(served) != 1:
        names = ", ".join(served[:8]) or "none"
        raise EndpointError(f"no model is named: add --model NAME or set CODA_MODEL; {settings.host} serves {names}")
    return replace(settings, model=served[0])
