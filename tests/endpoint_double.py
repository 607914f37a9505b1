"""An OpenAI-compatible endpoint on loopback whose answers and faults the tests write.

Real HTTP through a real server, asked by the real ``openai`` client. What a reply is follows from the request alone (its
round is told from the number of its messages), so that threads and processes may ask in any order.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

KEY = "sk-loopback-0123456789abcdef"
MODEL = "double-1"


@dataclass
class Reply:
    """One answer, or a way not to give one. ``fault``: reset, hang, drip, truncated, no-finish, malformed, error-chunk."""

    text: str = ""
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    reasoning: str = ""
    refusal: str = ""
    finish: str = "stop"
    usage: bool = True
    delay: float = 0.0


Script = Callable[[int, dict[str, Any]], Reply]


def fenced(source: str) -> str:
    return f"Here it is.\n\n```python\n{source}```\n"


class Double:
    """The endpoint. ``script`` gives the reply to a request: its round, and its body."""

    def __init__(self, server: HTTPServer, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.authorizations: set[str] = set()
        self.models = [MODEL]
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.url = server.url_for("/v1")
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._complete)
        server.expect_request("/v1/models", method="GET").respond_with_handler(self._models)

    def rounds(self) -> list[int]:
        return [_round(body) for body in self.requests]

    def close(self) -> None:
        self._over.set()

    def _models(self, request: Request) -> Response:
        if request.headers.get("authorization") == "Bearer wrong":
            return _json({"error": {"message": "bad key"}}, 401)
        return _json({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    def _complete(self, request: Request) -> Response:
        body = json.loads(request.get_data())
        with self._lock:
            self.requests.append(body)
            self.times.append(time.monotonic())
            self.authorizations.add(request.headers.get("authorization", ""))
            reply = self.script(_round(body), body)
        if reply.delay:
            self._over.wait(reply.delay)
        if reply.fault == "reset":
            _reset(request)
        if reply.fault == "hang":
            self._over.wait(60)
        if reply.status != 200:
            return _json({"error": {"message": "", "type": "test", **reply.error}}, reply.status, reply.headers)
        if reply.fault == "malformed":
            return Response('{"choices": [{"mess', content_type="application/json")
        if body.get("stream"):
            return Response(self._stream(reply, request), content_type="text/event-stream")
        message = {"role": "assistant", "content": reply.text, "refusal": reply.refusal or None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        choice = {"index": 0, "finish_reason": reply.finish, "message": message}
        return _json(
            {**_head("chat.completion"), "choices": [choice], **({"usage": _usage(reply)} if reply.usage else {})}
        )

    def _stream(self, reply: Reply, request: Request) -> Iterator[bytes]:
        head = _head("chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()

        yield chunk({"role": "assistant"})
        if reply.reasoning:
            yield chunk({"reasoning_content": reply.reasoning})
        text = reply.text[: len(reply.text) // 2] if reply.fault in ("truncated", "error-chunk") else reply.text
        for start in range(0, len(text), 40):
            if reply.fault == "drip":
                self._over.wait(0.3)
            yield chunk({"content": text[start : start + 40]})
        if reply.fault == "truncated":
            _reset(request)
        if reply.fault == "error-chunk":
            yield b'data: {"error": {"message": "the model crashed"}}\n\n'
            return
        if reply.fault == "no-finish":
            return
        if reply.refusal:
            yield chunk({"refusal": reply.refusal})
        yield chunk({}, reply.finish)
        if reply.usage:
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': _usage(reply)})}\n\n".encode()
        yield b"data: [DONE]\n\n"


def _round(body: dict[str, Any]) -> int:
    """1 for a first question; repairs say how often they were asked by what the last answer was marked with."""
    messages = body["messages"]
    return 1 if len(messages) == 1 else 2


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "total_tokens": 1100,
        "completion_tokens_details": {"reasoning_tokens": 40 if reply.reasoning else 0},
    }


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers or {}, content_type="application/json")


def _reset(request: Request) -> None:
    """Break the connection as a crashing server does."""
    connection: socket.socket = request.environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())  # closing the object would wait for the files made of it
    raise ConnectionResetError
