"""One question to an endpoint, through the real client: what every answer and every fault becomes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from endpoint_double import KEY, MODEL, Double, Reply, Script, fenced

from coda_agent.authors import endpoint as module
from coda_agent.authors.endpoint import (
    Allowance,
    Answer,
    Conversation,
    EndpointError,
    OutOfRequests,
    estimate,
    scrub,
    with_model,
)
from coda_agent.settings import Secret, Settings

CODE = "def epilogue(acc):\n    store(y, acc)\n"
MESSAGES = ({"role": "user", "content": "Write it."},)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.02)


class Asked:
    """One question put, and what was told meanwhile."""

    def __init__(
        self, double: Double, *, requests: int = 20, seconds: float = 20.0, key: str = KEY, **changes: Any
    ) -> None:
        self.told: list[dict[str, Any]] = []
        settings = Settings(MODEL, double.url, Secret(key), **changes)
        self.allowance = Allowance(requests)
        self.conversation = Conversation(settings, self.allowance)
        self.seconds = seconds

    def __call__(self) -> Answer:
        deadline = time.monotonic() + self.seconds
        return self.conversation.ask(MESSAGES, 500, lambda event: self.told.append(dict(event)), deadline)


Start = Callable[[Script], Double]


def after(*first: Reply) -> Script:
    """These replies, then a good one."""
    left = list(first)
    return lambda number, body: left.pop(0) if left else Reply(fenced(CODE))


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_with_its_usage(endpoint: Start, stream: bool) -> None:
    double = endpoint(lambda number, body: Reply(fenced(CODE), reasoning="thinking aloud"))
    answer = Asked(double, stream=stream)()
    assert (answer.text, answer.reasoning, answer.finish, answer.model) == (
        fenced(CODE),
        "thinking aloud",
        "stop",
        MODEL,
    )
    assert (answer.usage.prompt, answer.usage.completion, answer.usage.reasoning, answer.usage.estimated) == (
        1000,
        100,
        40,
        False,
    )
    assert Answer.from_dict(answer.as_dict()) == answer
    (body,) = double.requests
    assert body["messages"] == list(MESSAGES)
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 500
    assert double.authorizations == {f"Bearer {KEY}"}


@pytest.mark.parametrize("stream", [True, False])
def test_without_usage_it_is_estimated(endpoint: Start, stream: bool) -> None:
    answer = Asked(endpoint(lambda number, body: Reply(CODE, usage=False)), stream=stream)()
    assert answer.usage.estimated
    assert answer.usage.completion == estimate(CODE)


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_is_an_answer(endpoint: Start, stream: bool) -> None:
    answer = Asked(endpoint(lambda number, body: Reply(refusal="I would rather not.")), stream=stream)()
    assert (answer.text, answer.refusal) == ("", "I would rather not.")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Reply(status=500, error={"message": "oops"}), "HTTP 500"),
        (Reply(status=503), "HTTP 503"),
        (Reply(status=429, error={"message": "slow down"}), "HTTP 429"),
        (Reply(fault="reset"), "connection failed"),
        (Reply(fenced(CODE), fault="truncated"), "broke off"),
        (Reply("no code", fault="no-finish"), "broke off"),
        (Reply(fenced(CODE), fault="error-chunk"), "broke off"),
        (Reply(fault="malformed"), "no stream|broke off|no chat completion"),
    ],
)
def test_what_may_pass_is_asked_again(endpoint: Start, fault: Reply, words: str) -> None:
    double = endpoint(after(fault, fault))
    asked = Asked(double)
    answer = asked()
    assert (answer.text, answer.attempts) == (fenced(CODE), 3)
    assert len(double.requests) == 3
    retries = [event for event in asked.told if event["event"] == "retrying"]
    assert len(retries) == 2
    assert any(word in retries[0]["why"] for word in words.split("|")), retries[0]
    assert [event["event"] for event in asked.told if event["event"] == "sent"] == ["sent"] * 3


def test_malformed_json_without_streaming_is_asked_again(endpoint: Start) -> None:
    asked = Asked(endpoint(after(Reply(fault="malformed"))), stream=False)
    assert asked().attempts == 2


def test_what_does_not_pass_ends(endpoint: Start) -> None:
    double = endpoint(lambda number, body: Reply(status=500, error={"message": "broken for good"}))
    with pytest.raises(EndpointError, match=r"no answer in 4 attempts: HTTP 500: broken for good"):
        Asked(double)()
    assert len(double.requests) == module.ATTEMPTS


def test_a_stream_that_breaks_off_after_the_code_is_enough(endpoint: Start) -> None:
    double = endpoint(lambda number, body: Reply(fenced(CODE), fault="no-finish"))
    assert Asked(double)().finish == "broken off"
    assert len(double.requests) == 1


@pytest.mark.parametrize("header", [{"retry-after": "0.4"}, {"retry-after-ms": "400"}])
def test_retry_after_is_honoured(endpoint: Start, header: dict[str, str]) -> None:
    double = endpoint(after(Reply(status=429, headers=header)))
    assert Asked(double)().attempts == 2
    assert double.times[1] - double.times[0] >= 0.4


def test_a_wait_beyond_the_time_limit_is_not_begun(endpoint: Start) -> None:
    began = time.monotonic()
    with pytest.raises(EndpointError, match="HTTP 429"):
        Asked(endpoint(lambda number, body: Reply(status=429, headers={"retry-after": "3600"})), seconds=5)()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(status=401, error={"message": "Incorrect API key provided"}), "does not accept the key"),
        (Reply(status=403), "does not permit"),
        (Reply(status=404, error={"message": "no such model", "code": "model_not_found"}), f"knows no model '{MODEL}'"),
        (Reply(status=402), "wants to be paid"),
        (Reply(status=400, error={"message": "context length exceeded"}), "context length exceeded"),
        (
            Reply(status=429, error={"message": "You exceeded your quota", "code": "insufficient_quota"}),
            "no quota left",
        ),
    ],
)
def test_what_cannot_pass_is_asked_once(endpoint: Start, reply: Reply, words: str) -> None:
    double = endpoint(lambda number, body: reply)
    with pytest.raises(EndpointError) as caught:
        Asked(double)()
    assert words in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(double.requests) == 1


def test_a_port_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    conversation = Conversation(Settings(MODEL, url, Secret(KEY)), Allowance(9))
    with pytest.raises(EndpointError, match="connection refused"):
        conversation.ask(MESSAGES, 500, lambda event: None, time.monotonic() + 20)
    assert conversation.allowance.left == 8


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_ends_with_the_time_limit(endpoint: Start, stream: bool) -> None:
    began = time.monotonic()
    with pytest.raises(EndpointError, match="nothing heard within"):
        Asked(endpoint(lambda number, body: Reply(fault="hang")), seconds=1.0, stream=stream)()
    assert time.monotonic() - began < 4


def test_a_slow_answer_is_waited_for_and_a_dripping_one_cut(endpoint: Start) -> None:
    assert Asked(endpoint(lambda number, body: Reply(fenced(CODE), delay=0.5)))().text == fenced(CODE)
    began = time.monotonic()
    answer = Asked(endpoint(lambda number, body: Reply("word " * 400, fault="drip")), seconds=1.5)()
    assert answer.finish == "length"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("stream", [True, False])
def test_halves_of_characters_do_no_harm(endpoint: Start, stream: bool) -> None:
    answer = Asked(endpoint(lambda number, body: Reply("a\ud800b", reasoning="\udfff")), stream=stream)()
    assert answer.text == "a?b"


def test_progress_is_told(endpoint: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PULSE", 0.0)
    asked = Asked(endpoint(lambda number, body: Reply(fenced(CODE))))
    asked()
    sizes = [event["characters"] for event in asked.told if event["event"] == "growing"]
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(fenced(CODE))


def test_the_limit_on_requests_counts_repeated_ones(endpoint: Start) -> None:
    double = endpoint(lambda number, body: Reply(status=500))
    with pytest.raises(OutOfRequests):
        Asked(double, requests=2)()
    assert len(double.requests) == 2


def picky(*rejected: str) -> Script:
    def script(number: int, body: dict[str, Any]) -> Reply:
        for name in rejected:
            if body.get(name):
                other = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
                return Reply(status=400, error={"message": f"Unsupported parameter: '{name}'.{other}", "param": name})
        return Reply(fenced(CODE))

    return script


@pytest.mark.parametrize(
    "rejected",
    [
        ("temperature",),
        ("max_tokens",),
        ("max_tokens", "max_completion_tokens"),
        ("stream_options",),
        ("stream",),
        ("temperature", "max_tokens", "stream_options"),
    ],
)
def test_a_rejected_parameter_is_dropped_for_good(endpoint: Start, rejected: tuple[str, ...]) -> None:
    double = endpoint(picky(*rejected))
    asked = Asked(double, temperature=0.3)
    assert asked().text == fenced(CODE)
    assert len(double.requests) == 1 + len(rejected)
    assert not set(rejected) & {name for name, value in double.requests[-1].items() if value}
    asked()
    assert len(double.requests) == 2 + len(rejected)
    if rejected == ("max_tokens",):
        assert double.requests[-1]["max_completion_tokens"] == 500


def test_a_key_that_the_endpoint_repeats_is_struck_out() -> None:
    said = {"message": f"bad key {KEY}", "list": [KEY], KEY: 1}
    assert KEY not in str(scrub(said, Secret(KEY)))
    assert KEY not in repr(Settings(MODEL, "", Secret(KEY)))


def test_the_only_model_of_an_endpoint_needs_no_name(endpoint: Start) -> None:
    double = endpoint(lambda number, body: Reply())
    assert with_model(Settings("", double.url, Secret(KEY))).model == MODEL
    double.models.append("another")
    with pytest.raises(EndpointError, match="serves double-1, another"):
        with_model(Settings("", double.url, Secret(KEY)))
