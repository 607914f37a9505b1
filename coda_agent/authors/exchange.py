"""The run's side of asking: questions go to a courier process, answers come from the run's folder.

A question has a name within its run, such as ``r2-s1`` for the first sample's second round. An answer that lies in the
folder is never asked for again, which is all there is to resuming a run, and to replaying one.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from coda_agent.errors import EnvironmentProblem
from coda_agent.settings import Settings

from .courier import ANSWERS, JOURNAL, LOCK
from .endpoint import Answer, EndpointError, Message

Tell = Callable[[Mapping[str, Any]], None]

#: Seconds until the courier must be ready, most of it importing the ``openai`` package.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Question:
    """One request for a candidate."""

    name: str
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_hash: str


class Exchange(Protocol):
    """Where answers come from."""

    def ask(self, questions: Sequence[Question], tell: Tell, deadline: float) -> dict[str, Answer | Exception]: ...

    def close(self) -> None: ...


def stored(folder: Path, name: str) -> Answer | None:
    """The answer to a question of the run in ``folder``, if it was ever received."""
    try:
        data = json.loads((folder / ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
        data.pop("prompt_hash", None)
        return Answer.from_dict(data)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def sent(folder: Path) -> list[dict[str, Any]]:
    """Every HTTP request of the run in ``folder``, oldest first."""
    found = []
    try:
        lines = (folder / JOURNAL).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # a machine that lost power in the middle of a line
    return [entry for entry in found if isinstance(entry, dict)]


class Recorded:
    """Answers of the past, and no others: for replaying a run offline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, questions: Sequence[Question], tell: Tell, deadline: float) -> dict[str, Answer | Exception]:
        found = {question.name: stored(self.folder, question.name) for question in questions}
        missing: Exception = EndpointError("the recording has no answer to this question")
        if not any(found.values()):
            missing = OutOfBudget("the recording ends here")
        return {name: answer or missing for name, answer in found.items()}

    def close(self) -> None:
        """Nothing to be done."""


class Mail:
    """Asks through a courier process, started with the first question that has no answer yet."""

    def __init__(self, settings: Settings, folder: Path, wait: Callable[[str], None]) -> None:
        self.settings = settings
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._await_former(wait)

    def _await_former(self, wait: Callable[[str], None]) -> None:
        """Let the courier of a run that was killed write down what it is waiting for."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.folder / LOCK)
        deadline = time.monotonic() + self.settings.request_timeout + 10
        told = False
        while True:
            try:
                lock.acquire(timeout=0)
                lock.release()
                return
            except Timeout:
                if not told:
                    wait("an earlier process of this run is still receiving an answer; waiting for it")
                    told = True
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"another process is still asking for this run ({self.folder / LOCK} is held); try again when it is done"
                    ) from None
                time.sleep(0.1)

    def ask(self, questions: Sequence[Question], tell: Tell, deadline: float) -> dict[str, Answer | Exception]:
        """Answers by name, or what went wrong. ``tell`` hears of progress, in the caller's thread."""
        done: dict[str, Answer | Exception] = {}
        for question in questions:
            answer = stored(self.folder, question.name)
            if answer is not None:
                done[question.name] = answer
        waiting = {question.name: question for question in questions if question.name not in done}
        if not waiting:
            return done
        try:
            self._start(min(deadline, time.monotonic() + _PATIENCE))
            for question in waiting.values():
                seconds = deadline - time.monotonic()
                self._write({"id": question.name, "seconds": seconds, **_as_document(question)})
        except EndpointError as error:
            return {**done, **dict.fromkeys(waiting, error)}
        while waiting:
            event = self._next(deadline + 1.0)
            if event is None:
                self.kill()
                late = EndpointError(
                    f"{self.settings.host} had not answered when the time limit of the run was reached"
                )
                died = EndpointError("the process that asks the endpoint died; resume the run to go on")
                return {**done, **dict.fromkeys(waiting, late if time.monotonic() >= deadline else died)}
            name, what = str(event.get("id")), event.get("event")
            if name not in waiting:
                continue
            if what == "answered":
                done[name] = stored(self.folder, name) or EndpointError(
                    "the answer cannot be read back from the run's folder"
                )
            elif what == "failed":
                done[name] = EndpointError(str(event.get("message")))
            elif what == "exhausted":
                done[name] = OutOfBudget(f"the limit of {self.settings.limits.max_requests} requests is reached")
            else:
                tell(event)
                continue
            del waiting[name]
            tell(event)
        return done

    def close(self) -> None:
        """No more questions. A courier that still waits for answers ends by itself once it has written them down."""
        process = self.process
        if process is not None and process.stdin is not None:
            try:
                process.stdin.close()
                process.wait(timeout=0.2)
            except (OSError, subprocess.TimeoutExpired):
                pass

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self, deadline: float) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coda_agent.authors.courier"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        self._events = queue.Queue()
        threading.Thread(target=_pump, args=(self.process.stdout, self._events), daemon=True).start()
        settings = self.settings
        shown = ("model", "base_url", "request_timeout", "max_tokens", "temperature", "stream")
        self._write(
            {
                "folder": str(self.folder.absolute()),
                "settings": {name: getattr(settings, name) for name in shown},
                "key": settings.key.value,
                "requests": max(0, settings.limits.max_requests - len(sent(self.folder))),
            }
        )
        event = self._next(deadline)
        if event is None or event.get("event") != "ready":
            self.kill()
            raise EndpointError(
                str((event or {}).get("message") or "the process that asks the endpoint does not start")
            )

    def _write(self, document: Mapping[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(document) + "\n")
            self.process.stdin.flush()
        except OSError:  # it died: reading its events tells
            return

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """The courier's next word; None where there is none in time, or it has gone."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                return self._events.get(timeout=min(left, 0.25))  # short, so that Ctrl-C comes through
            except queue.Empty:
                continue
        return None


class OutOfBudget(Exception):
    """A limit of the run forbids another question."""


def _as_document(question: Question) -> dict[str, Any]:
    document = asdict(question)
    document.pop("name")
    return document


def _pump(stream: Any, events: queue.Queue[dict[str, Any] | None]) -> None:
    try:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.put(event)
    finally:
        events.put(None)
