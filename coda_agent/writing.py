"""Where the author ``llm``, the judges of its candidates and the run's folder meet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .authors import Candidate
from .authors.courier import ANSWERS, JOURNAL
from .authors.endpoint import Answer, EndpointError, Message
from .authors.exchange import Exchange, Mail, Recorded, sent, stored
from .authors.llm import Attempt, Loop, Outcome, Stage, Tell, Verdict, conversation
from .authors.prompting import render
from .certify import user_code
from .errors import RequestError
from .events import (
    Answered,
    AnswerGrows,
    Considering,
    Duplicate,
    Event,
    Guessed,
    NoCandidate,
    Notice,
    RequestRetried,
    RequestSent,
    RoundStarted,
    SampleLost,
)
from .judging import TIMEOUT, Judge, Judged
from .operators import load
from .runs import Run, find, page
from .settings import Settings


@dataclass
class Written:
    """What a model wrote in the end, and what it took. ``judged`` is the best candidate, accepted or not."""

    settings: Settings
    outcome: Outcome
    judged: Judged | None
    requests: int
    cost: dict[str, Any] | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reason(self) -> str:
        best = self.outcome.best
        closest = f"; the closest candidate, {best.name}: {best.verdict.reason}" if best and best.verdict.reason else ""
        return f"{self.outcome.stopped}{closest}"

    @property
    def failure(self) -> EndpointError | None:
        return self.outcome.failure

    @property
    def prompt_hash(self) -> str:
        assert self.outcome.best is not None
        return self.outcome.best.prompt_hash

    @property
    def usage(self) -> dict[str, Any]:
        tally = self.outcome.tally
        return {
            "requests": self.requests,
            "answers": tally.answers,
            "prompt_tokens": tally.prompt,
            "completion_tokens": tally.completion,
            "reasoning_tokens": tally.reasoning,
            "total_tokens": tally.total,
            "estimated": tally.estimated,
            "cost": self.cost,
        }

    def candidate(self) -> Candidate:
        best = self.outcome.best
        assert best is not None
        details = {
            "model": self.settings.model,
            "answered_by": best.answer.model or None,
            "endpoint": self.settings.host,
            "round": best.round,
            "sample": best.sample,
            "usage": self.usage,
        }
        return Candidate(best.source, "llm", details)


def write(
    judge: Judge, settings: Settings, run: Run, *, every_sample: bool = False, recording: Run | None = None
) -> Written:
    """Let a model write candidates until one passes or a limit is reached.

    Answers that lie in the run's folder are not asked for again; with ``recording``, answers are those of that run only.
    """
    tell = judge.tell
    if recording is not None:
        exchange: Exchange = Recorded(recording.folder)
    else:
        exchange = Mail(settings, run.folder, lambda words: tell(Notice(words)))
    deadline = time.monotonic() + settings.limits.timeout
    bench = _Bench(judge, run, deadline, fresh=recording is not None)
    source = recording or run

    def keep(name: str, messages: Sequence[Message]) -> None:
        run.write(f"prompts/{name}.json", {"messages": list(messages)})

    loop = Loop(
        judge.operator,
        settings,
        exchange,
        bench,
        lambda *heard: _told(tell, *heard),
        keep,
        deadline,
        every_sample,
        lambda name: stored(source.folder, name),
    )
    try:
        outcome = loop.run()
    finally:
        exchange.close()
    for attempt in outcome.attempts:
        if attempt.verdict.stage is Stage.NOTHING:
            run.write(f"verdicts/{attempt.name}.json", attempt.verdict.as_dict())
    if recording is not None:
        for path in sorted((recording.folder / ANSWERS).glob("*.json")):
            run.write(f"{ANSWERS}/{path.name}", recording.read(f"{ANSWERS}/{path.name}"))
        run.write(JOURNAL, recording.read(JOURNAL))
    best = outcome.best
    written = Written(settings, outcome, bench.of(best) if best else None, len(sent(source.folder)))
    written.attempts = [_row(attempt) for attempt in outcome.attempts]
    price = settings.price
    if price is not None:
        amount = (outcome.tally.prompt * price.input + outcome.tally.completion * price.output) / 1e6
        written.cost = {"amount": round(amount, 6), "currency": price.currency}
    return written


def _row(attempt: Attempt) -> dict[str, Any]:
    return {
        "round": attempt.round,
        "sample": attempt.sample,
        "stage": attempt.verdict.stage.name.lower(),
        "reason": attempt.verdict.reason or None,
        "guesses": list(attempt.verdict.guesses),
        "digest": attempt.verdict.digest or None,
        "duplicate_of": attempt.duplicate_of or None,
        "tokens": attempt.answer.usage.total,
        "seconds": attempt.answer.seconds,
    }


@dataclass
class _Bench:
    """Judges candidates, each computation once, and keeps what it finds in the run's folder."""

    judge: Judge
    run: Run
    deadline: float
    fresh: bool = False
    _judged: dict[str, Judged] = field(default_factory=dict)
    _verdicts: dict[str, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in [] if self.fresh else sorted((self.run.folder / "verdicts").glob("*.json")):
            try:
                verdict = Verdict.from_dict(self.run.read_json(f"verdicts/{path.name}"))
            except (KeyError, TypeError, ValueError):
                continue
            # Acceptance is never taken from a file: whoever is to be committed is judged again.
            if verdict.digest and verdict.final and verdict.stage is not Stage.ACCEPTED:
                self._verdicts[verdict.digest] = verdict

    def __call__(self, name: str, source: str, tell: Tell) -> Verdict:
        self.run.write(f"candidates/{name}.py", source)
        self.judge.tell(Considering(name))
        judged = self._judged[name] = self.judge.check(source)
        verdict = self._verdict(name, judged)
        document = {**judged.as_dict(), **verdict.as_dict()}
        self.run.write(f"verdicts/{name}.json", document)
        return verdict

    def of(self, attempt: Attempt) -> Judged:
        """What was found about the candidate of an attempt."""
        judged = self._judged.get(attempt.name) or Judged(attempt.source, reason=attempt.verdict.reason)
        if judged.reason is None and not judged.passed:  # a duplicate, or known from before
            judged.reason, judged.counterexample = attempt.verdict.reason, attempt.verdict.counterexample
        return judged

    def _verdict(self, name: str, judged: Judged) -> Verdict:
        if judged.epilogue is None:
            count = len(judged.diagnostics)
            rule = judged.diagnostics[0]["message"] if judged.diagnostics else ""
            reason = f"refused: {rule}" + (f" (and {count - 1} more)" if count > 1 else "")
            return Verdict(Stage.REFUSED, reason, diagnostics=tuple(judged.diagnostics), closeness=-count)
        digest = judged.epilogue.digest
        if digest in self._verdicts:
            self.judge.tell(Duplicate(name, digest))
            twin = self._verdicts[digest]
            for other in self._judged.values():
                if other is not judged and other.passed and other.epilogue and other.epilogue.digest == digest:
                    judged.report, judged.targets = other.report, other.targets
            return twin
        from .diagnosis import examine, of_counterexample

        with user_code(self.judge.operator.name):
            examination = examine(self.judge.operator, judged.epilogue)
        right = examination.exact and examination.padded
        left = self.deadline - time.monotonic()
        self.judge.test(judged, max(1.0, min(TIMEOUT, left)), compiled=right)
        verdict = self._tested(judged, digest, right)
        if verdict.stage is Stage.WRONG:
            more = of_counterexample(verdict.counterexample or {}, examination)
            closeness = 2.0 if right else 1.0 if examination.exact else examination.right_share
            verdict = replace(verdict, guesses=(*examination.guesses, *more), closeness=closeness)
            if verdict.guesses:
                self.judge.tell(Guessed(name, verdict.guesses))
        if verdict.final:
            self._verdicts[digest] = verdict
        return verdict

    @staticmethod
    def _tested(judged: Judged, digest: str, right: bool) -> Verdict:
        if judged.passed:
            return Verdict(Stage.ACCEPTED, digest=digest)
        reason = judged.reason or "it does not pass"
        if judged.report is None or judged.report.passed:
            problems = tuple(f"{report.target}: {report.error}" for report in judged.targets if report.error)
            return Verdict(Stage.UNCOMPILED, reason, digest, problems=problems)
        late = reason.startswith("out-of-time")
        return Verdict(Stage.WRONG, reason, digest, counterexample=judged.counterexample, final=not late)


def _told(tell: Any, what: str, number: int, sample: int, details: Mapping[str, Any]) -> None:
    """What the loop and the courier say, as events."""
    event: Event | None = None
    if what == "round":
        event = RoundStarted(number, details["rounds"], details["samples"])
    elif what == "sent":
        event = RequestSent(number, sample, int(details.get("attempt", 1)))
    elif what == "retrying":
        event = RequestRetried(number, sample, str(details.get("why")), float(details.get("seconds", 0)))
    elif what == "adjusted":
        event = RequestRetried(number, sample, str(details.get("what")), 0.0)
    elif what == "growing":
        event = AnswerGrows(number, sample, int(details.get("characters", 0)))
    elif what == "answer":
        event = Answered(number, sample, details["tokens"], details["seconds"], details["finish"])
    elif what == "nothing":
        event = NoCandidate(number, sample, details["why"])
    elif what == "gave-up":
        event = SampleLost(number, sample, details["why"])
    if event is not None:
        tell(event)


def prompt_for(spec: str, repair_from: str | None = None) -> tuple[str, list[Message]]:
    """What a model is asked for an operator, as text and as messages; with ``repair_from``, what it is asked next.

    The text of a repair is its last message, for a conversation that holds the others already.
    """
    prompt = render(operator := load(spec))
    if repair_from is None:
        return prompt, [{"role": "user", "content": prompt}]
    run = find(repair_from)
    if run.manifest.get("operator") != operator.name:
        raise RequestError(f"the run {run.id} is for {run.manifest.get('operator')}, not for {operator.name}")
    attempts = []
    for entry in page(run)["attempts"]:
        try:
            attempts.append((entry["name"], entry["source"], _verdict_of(entry)))
        except (KeyError, TypeError, ValueError):
            continue
    if not attempts:
        raise RequestError(f"the run {run.id} has no candidate that was judged, so there is nothing to repair")
    name, source, verdict = max(attempts, key=lambda item: item[2].rank)
    if verdict.stage is Stage.ACCEPTED:
        raise RequestError(f"the candidate {name} of the run {run.id} was accepted, so there is nothing to repair")
    number, sample = (int(part[1:]) for part in name.split("-"))
    answer = stored(run.folder, name) or Answer()
    best = Attempt(number, sample, source, verdict, answer, "")
    messages = list(conversation(operator, prompt, best, best))
    return messages[-1]["content"], messages


def _verdict_of(entry: Mapping[str, Any]) -> Verdict:
    """The verdict of a run's attempt, whoever wrote it."""
    if "stage" in entry:
        return Verdict.from_dict(entry)
    diagnostics = tuple(entry.get("diagnostics") or ())
    stage = Stage.ACCEPTED if entry.get("passed") else Stage.REFUSED if diagnostics else Stage.WRONG
    problems = tuple(f"{t['target']}: {t['error']}" for t in entry.get("targets") or () if t.get("error"))
    return Verdict(
        Stage.UNCOMPILED if problems else stage,
        str(entry.get("reason") or ""),
        str(entry.get("digest") or ""),
        diagnostics=diagnostics,
        problems=problems,
        counterexample=entry.get("counterexample"),
    )
