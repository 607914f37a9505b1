"""The process that talks to the endpoint, and writes down what was paid for.

An answer costs money from the moment the question is sent, so it must not be lost with the process that asked. Questions
are therefore put by a process of their own, in a session of its own: killed with the run or not, it waits for the answers
on their way, writes each to the run's folder, and only then ends. Whoever resumes the run waits for its lock first.

Run as a script it reads one JSON document a line from stdin: first who and where, then questions. What happens goes to
stdout, one document a line. The key comes through stdin, and leaves this process for the endpoint only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coda_agent.settings import Secret, Settings

#: Files in a run's folder.
LOCK, JOURNAL, ANSWERS = ".courier-lock", "requests.jsonl", "answers"


class Courier:
    """Answers questions until there are no more, for a run that may end before it does."""

    def __init__(self, hello: Mapping[str, Any]) -> None:
        from .endpoint import Allowance, Conversation

        self.folder = Path(hello["folder"])
        self.settings = Settings(**{**hello["settings"], "key": Secret(hello["key"])})
        self.allowance = Allowance(hello["requests"])
        self.conversation = Conversation(self.settings, self.allowance)
        self._lock = threading.Lock()

    def say(self, **event: Any) -> None:
        from .endpoint import scrub

        line = json.dumps(scrub(event, self.settings.key)) + "\n"
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
            sys.stdout.write(line)
            sys.stdout.flush()

    def question(self, asked: Mapping[str, Any]) -> None:
        """One question from being sent to being on disk."""
        from .endpoint import EndpointError, OutOfRequests, scrub

        name = asked["id"]

        def tell(event: Mapping[str, Any]) -> None:
            if event["event"] == "sent":
                self._journal({"id": name, **event, "at": round(time.time(), 3)})
            self.say(id=name, **event)

        try:
            deadline = time.monotonic() + asked["seconds"]
            answer = self.conversation.ask(asked["messages"], asked["max_tokens"], tell, deadline)
            document = scrub(answer.as_dict(), self.settings.key)
            write(self.folder / ANSWERS / f"{name}.json", {"prompt_hash": asked["prompt_hash"], **document})
            self.say(id=name, event="answered")
        except EndpointError as error:
            self.say(id=name, event="failed", message=str(error))
        except OutOfRequests:
            self.say(id=name, event="exhausted")
        except Exception as error:  # an endpoint can answer with anything
            self.say(id=name, event="failed", message=f"the answer cannot be read: {type(error).__name__}: {error}")

    def _journal(self, entry: Mapping[str, Any]) -> None:
        with self._lock, (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Put a JSON document in its place, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with new.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def main() -> int:
    import signal

    from filelock import FileLock, Timeout

    from coda_agent.errors import EnvironmentProblem

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run; what is on its way is still written down
    hello = json.loads(sys.stdin.readline() or "null")
    if hello is None:
        return 0
    try:
        with FileLock(Path(hello["folder"]) / LOCK, timeout=0):
            try:
                courier = Courier(hello)
            except EnvironmentProblem as error:
                print(json.dumps({"event": "unusable", "message": str(error)}), flush=True)
                return 0
            courier.say(event="ready")
            threads = []
            for line in sys.stdin:
                if not line.endswith("\n"):
                    break  # the run died while it wrote
                threads.append(threading.Thread(target=courier.question, args=(json.loads(line),), daemon=True))
                threads[-1].start()
            with courier.allowance._lock:
                courier.allowance.left = 0  # nobody decides any more whether to ask again
            for thread in threads:
                thread.join()
    except Timeout:
        print(json.dumps({"event": "unusable", "message": "another process is asking for this run"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
