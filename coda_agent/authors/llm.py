"""The author ``llm``: a model writes candidates, and what is found wrong with each becomes its next question.

The loop knows nothing of compilers and verifiers: it is given a judge. Rounds are taken together: every sample's question
of a round goes out at once, and the answers are judged one after the other in the order of the samples, so that the same
answers always lead to the same questions. That is what makes runs replayable, and resumable for free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from coda_agent.operators import Operator
from coda_agent.settings import Limits, Settings
from coda_agent.wording import words

from .answers import find
from .endpoint import Answer, EndpointError, Message, estimate
from .exchange import Exchange, OutOfBudget, Question
from .prompting import fenced, prompt_hash, render, render_repair

#: Tokens below which an answer is not worth asking for.
_SHORTEST_ANSWER = 256
#: Characters of an answer without a candidate that are shown to the model again.
_SHOWN = 2000


class Stage(IntEnum):
    """How far a candidate came."""

    NOTHING = 0
    REFUSED = 1
    WRONG = 2
    UNCOMPILED = 3
    ACCEPTED = 4


@dataclass(frozen=True)
class Verdict:
    """What was found about one candidate, in the order in which it helps to mend it. All of it is plain data."""

    stage: Stage
    reason: str = ""
    digest: str = ""
    guesses: tuple[str, ...] = ()
    diagnostics: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    counterexample: dict[str, Any] | None = None
    #: Within a stage, more is closer to acceptance.
    closeness: float = 0.0
    #: Whether the same candidate would be judged so again: a verdict for want of time would not.
    final: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "stage": self.stage.name.lower()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        known: dict[str, Any] = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name in ("guesses", "diagnostics", "problems"):
            known[name] = tuple(known.get(name) or ())
        return cls(**{**known, "stage": Stage[str(data["stage"]).upper()]})

    @property
    def rank(self) -> tuple[int, float]:
        return (int(self.stage), self.closeness)


@dataclass(frozen=True)
class Attempt:
    """One sample's candidate of one round."""

    round: int
    sample: int
    source: str
    verdict: Verdict
    answer: Answer
    prompt_hash: str
    duplicate_of: str = ""

    @property
    def name(self) -> str:
        return question_name(self.round, self.sample)


@dataclass
class Tally:
    """What a run has used up."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    answers: int = 0
    estimated: bool = False

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def add(self, answer: Answer) -> None:
        usage = answer.usage
        self.prompt += usage.prompt
        self.completion += usage.completion
        self.reasoning += usage.reasoning
        self.answers += 1
        self.estimated |= usage.estimated


@dataclass
class _Sample:
    """One line of attempts."""

    number: int
    best: Attempt | None = None
    last: Attempt | None = None
    failed: EndpointError | None = None

    @property
    def open(self) -> bool:
        return self.failed is None and not (self.best and self.best.verdict.stage is Stage.ACCEPTED)


@dataclass
class Outcome:
    """How a run of the loop ended: the best attempt, and in ``stopped`` why there were no more."""

    best: Attempt | None
    attempts: list[Attempt]
    tally: Tally
    stopped: str
    failure: EndpointError | None = None
    accepted: list[Attempt] = field(default_factory=list)


#: Told of what happens, as ``(what, round, sample, details)``.
Tell = Callable[[str, int, int, Mapping[str, Any]], None]
#: Judges the text of a candidate, called by a name such as ``r1-s1``.
Judge = Callable[[str, str, Tell], Verdict]


def question_name(round_number: int, sample: int) -> str:
    return f"r{round_number}-s{sample}"


@dataclass
class Loop:
    """Rounds of questions and judgements for one operator."""

    operator: Operator
    settings: Settings
    exchange: Exchange
    judge: Judge
    tell: Tell
    keep: Callable[[str, Sequence[Message]], None]
    deadline: float
    every_sample: bool = False
    #: The answer that is there already to a question, for which nothing has to be paid.
    known: Callable[[str], Answer | None] = lambda name: None

    def run(self) -> Outcome:
        limits: Limits = self.settings.limits
        self.prompt = render(self.operator)
        samples = [_Sample(number) for number in range(1, limits.samples + 1)]
        outcome = Outcome(None, [], Tally(), "")
        for number in range(1, limits.rounds + 1):
            asking = [sample for sample in samples if sample.open]
            if not asking:
                break
            questions = self._questions(number, asking, outcome.tally)
            if not questions:
                outcome.stopped = self._token_limit(outcome.tally)
                break
            self.tell("round", number, 0, {"rounds": limits.rounds, "samples": len(questions)})
            answers = self.exchange.ask(list(questions.values()), self._progress, self.deadline)
            self._hear(number, samples, questions, answers, outcome)
            if outcome.accepted and not self.every_sample:
                break
            if outcome.stopped:
                break
            if time.monotonic() >= self.deadline:
                outcome.stopped = f"the time limit of {limits.timeout:g} s was reached"
                break
            if len(questions) < len(asking):
                outcome.stopped = self._token_limit(outcome.tally)
                break
        return self._ended(samples, outcome)

    # --- Asking ------------------------------------------------------------------------------------------------------

    def messages(self, sample: _Sample) -> tuple[Message, ...]:
        """What the next question of a sample says: the task, its best candidate, what is wrong with that."""
        return conversation(self.operator, self.prompt, sample.best, sample.last)

    def _questions(self, number: int, asking: Sequence[_Sample], tally: Tally) -> dict[int, Question]:
        """One question a sample, as far as the tokens that are left allow."""
        left = self.settings.limits.budget_tokens - tally.total
        drafts, fresh = {}, []
        for sample in asking:
            messages = self.messages(sample)
            drafts[sample.number] = messages
            if self.known(question_name(number, sample.number)) is None:
                fresh.append(sample.number)
        questions = {}
        for position, (sample_number, messages) in enumerate(drafts.items()):
            most = self.settings.max_tokens
            if sample_number in fresh:
                prompt = sum(estimate(message["content"]) for message in messages)
                waiting = sum(1 for other in list(drafts)[position:] if other in fresh)
                # An equal share, or all that is left where a share would be too little.
                share = left // waiting - prompt
                if share < _SHORTEST_ANSWER:
                    share = left - prompt
                if share < _SHORTEST_ANSWER:
                    continue
                most = min(most, share)
                left -= prompt + most
            text = "\n".join(message["content"] for message in messages)
            name = question_name(number, sample_number)
            self.keep(name, messages)
            questions[sample_number] = Question(name, messages, most, prompt_hash(text))
        return questions

    def _token_limit(self, tally: Tally) -> str:
        return (
            f"the budget of {self.settings.limits.budget_tokens} tokens allows no further question ({tally.total} used)"
        )

    def _progress(self, event: Mapping[str, Any]) -> None:
        number, _, sample = str(event.get("id")).partition("-")
        self.tell(str(event.get("event")), int(number[1:]), int(sample[1:]), event)

    # --- Hearing -----------------------------------------------------------------------------------------------------

    def _hear(
        self,
        number: int,
        samples: Sequence[_Sample],
        questions: Mapping[int, Question],
        answers: Mapping[str, Answer | Exception],
        outcome: Outcome,
    ) -> None:
        heard: list[tuple[_Sample, Question, Answer]] = []
        for sample in samples:
            question = questions.get(sample.number)
            if question is None:
                continue
            answer = answers[question.name]
            if isinstance(answer, Answer):
                outcome.tally.add(answer)
                heard.append((sample, question, answer))
            elif isinstance(answer, OutOfBudget):
                outcome.stopped = str(answer)
            else:
                sample.failed = answer if isinstance(answer, EndpointError) else EndpointError(str(answer))
                self.tell("gave-up", number, sample.number, {"why": str(answer)})
        for sample, question, answer in heard:
            attempt = self._judged(number, sample, question, answer, outcome)
            outcome.attempts.append(attempt)
            sample.last = attempt
            if sample.best is None or attempt.verdict.rank >= sample.best.verdict.rank:
                sample.best = attempt
            if attempt.verdict.stage is Stage.ACCEPTED:
                outcome.accepted.append(attempt)
                if not self.every_sample:
                    return

    def _judged(self, number: int, sample: _Sample, question: Question, answer: Answer, outcome: Outcome) -> Attempt:
        usage = answer.usage
        details = {"tokens": usage.total, "seconds": answer.seconds, "finish": answer.finish}
        self.tell("answer", number, sample.number, details)
        source, problem = read(answer)
        if problem:
            verdict, twin = Verdict(Stage.NOTHING, problem), ""
            self.tell("nothing", number, sample.number, {"why": problem})
        else:
            verdict = self.judge(question.name, source, self.tell)
            twin = next(
                (a.name for a in outcome.attempts if a.verdict.digest and a.verdict.digest == verdict.digest), ""
            )
        return Attempt(number, sample.number, source, verdict, answer, question.prompt_hash, twin)

    def _ended(self, samples: Sequence[_Sample], outcome: Outcome) -> Outcome:
        attempts = outcome.accepted or [sample.best for sample in samples if sample.best]
        outcome.best = max(attempts, key=lambda attempt: attempt.verdict.rank, default=None)
        failures = [sample.failed for sample in samples if sample.failed]
        if not outcome.accepted and failures and not any(sample.open for sample in samples):
            outcome.failure = failures[0]
        limits = self.settings.limits
        if not outcome.stopped and not outcome.accepted:
            outcome.stopped = (
                f"{limits.rounds} round{'s' * (limits.rounds != 1)} of {limits.samples} sample{'s' * (limits.samples != 1)} "
                "gave no kernel that passes"
            )
        return outcome


def read(answer: Answer) -> tuple[str, str]:
    """The candidate in an answer, or what is wrong with the answer."""
    found = find(answer.text)
    if answer.finish == "length" and not (found.source and found.complete):
        return (
            "",
            "the answer was cut off before the code was complete: answer with the code block, and think less before it",
        )
    if found.source:
        return found.source, ""
    if answer.refusal:
        return "", f"the model declined to answer: {' '.join(answer.refusal.split())[:200]}"
    if answer.finish == "content_filter":
        return "", "the endpoint's content filter withheld the answer"
    if not answer.text.strip() and answer.reasoning:
        return "", "the answer is nothing but thinking"
    return "", found.problem


def conversation(operator: Operator, prompt: str, best: Attempt | None, last: Attempt | None) -> tuple[Message, ...]:
    """The messages that ask for the next candidate after ``best``, the best so far, and ``last``."""
    first: Message = {"role": "user", "content": prompt}
    if best is None or last is None:
        return (first,)
    note = ""
    if last is not best:
        note = (
            f"An attempt after this one was worse ({last.verdict.reason or 'not better'}): start again from this one."
        )
    elif best.duplicate_of:
        note = "This computes exactly what an earlier attempt computed, which was wrong in the same way: change the computation."
    if best.source:
        said = fenced(best.source, "python")
    else:
        said = best.answer.text.strip()[:_SHOWN] or "(no answer)"
    repair = repair_message(operator, best.source, best.verdict, note)
    return (first, {"role": "assistant", "content": said}, {"role": "user", "content": repair})


def repair_message(operator: Operator, source: str, verdict: Verdict, note: str = "") -> str:
    """What is wrong with a candidate, as its author is told."""
    lines = source.splitlines()
    diagnostics = []
    for item in verdict.diagnostics:
        text = f"{item['line']}:{item['column']}: {item['rule']}: {item['message']}"
        if 0 < item["line"] <= len(lines) and len(lines[item["line"] - 1]) <= 160:
            text += f"\n    line: {lines[item['line'] - 1].strip()}"
        diagnostics.append(text + (f"\n    hint: {item['hint']}" if item.get("hint") else ""))
    return render_repair(
        operator,
        source,
        diagnostics,
        "\n".join(words(verdict.counterexample or {})) or None,
        guesses=verdict.guesses,
        problems=verdict.problems,
        missing="" if source else verdict.reason,
        note=note,
    )
