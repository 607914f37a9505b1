"""What people see: progress on a terminal, plain lines in a pipe, and the same facts either way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .wording import number, words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from .doctor import Check
    from .events import Event
    from .library import Entry
    from .operators.listing import Listed

#: Columns of a table in a pipe, where no terminal gives a width.
_PIPE_WIDTH = 160
_STYLES = {
    "verified": "green",
    "committed": "green",
    "ok": "green",
    "stale": "yellow",
    "absent": "dim",
    "broken": "red",
    "missing": "red",
    "rejected": "red",
}


def console(*, stderr: bool = False) -> Console:
    """Where human text goes. Honours NO_COLOR and COLUMNS; text is never read as markup."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPE_WIDTH
    return made


def clean(text: str) -> str:
    """Text of unknown origin with control characters spelled out, so that it cannot act on a terminal."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text
    )


class Reporter:
    """Tells a run's events to a person. A context manager, since a progress bar must be put away."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._source = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._quarter = -1
        # The committed kernel at hand; empty while a candidate is judged.
        self._kernel = ""
        self._run = ""
        self._growing: dict[int, int] = {}
        self._passing = False

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        handler = getattr(self, f"_{type(event).__name__.lower()}", None)
        if handler is not None:
            handler(event)

    def _say(self, label: str, text: str = "", style: str = "", always: bool = False) -> None:
        if always or not self.quiet:
            if self._passing:  # what only said how far something had come is written over
                from rich.control import Control
                from rich.segment import ControlType

                self.console.control(Control((ControlType.ERASE_IN_LINE, 2)))
                self._passing = False
            line = Text(f"{label:<9} ", style=style or "bold")
            self.console.print(line.append(clean(text), style="not bold"), soft_wrap=True)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _started(self, event: Any) -> None:
        self._run = event.run
        self._say(event.operator.name, event.operator.summary)

    def _notice(self, event: Any) -> None:
        self._say("note", event.message, "yellow")

    def _authorchosen(self, event: Any) -> None:
        self._say("author", f"{event.author}: {event.why}")

    def _roundstarted(self, event: Any) -> None:
        if event.round == 1:
            self._say("run", self._run)
        questions = f"{event.samples} question{'s' * (event.samples != 1)}"
        self._say("round", f"{event.round} of {event.rounds}: {questions}")

    def _requestretried(self, event: Any) -> None:
        again = f"; again in {event.seconds:.1f} s" if event.seconds else "; asking again"
        self._say("note", f"sample {event.sample}: {event.why}{again}", "yellow")

    def _answergrows(self, event: Any) -> None:
        if self.quiet or not self.console.is_terminal:
            return
        self._growing[event.sample] = event.characters
        sizes = ", ".join(f"sample {sample} {size} characters" for sample, size in sorted(self._growing.items()))
        self.console.print(f"answers   {sizes}", end="\r", style="dim", soft_wrap=True)
        self._passing = True

    def _answered(self, event: Any) -> None:
        self._growing.pop(event.sample, None)
        cut = f", ended by {event.finish}" if event.finish not in ("stop", "") else ""
        self._say("answer", f"r{event.round}-s{event.sample}: {event.tokens} tokens in {event.seconds:.1f} s{cut}")

    def _nocandidate(self, event: Any) -> None:
        self._say("nothing", f"r{event.round}-s{event.sample}: {event.why}", "red")

    def _samplelost(self, event: Any) -> None:
        self._say("note", f"sample {event.sample} ends: {event.why}", "yellow")

    def _considering(self, event: Any) -> None:
        self._quarter = -1
        self._say("candidate", event.candidate)

    def _duplicate(self, event: Any) -> None:
        self._say(
            "same", f"{event.candidate} computes what an earlier candidate did, and is not judged again", "yellow"
        )

    def _guessed(self, event: Any) -> None:
        for guess in event.guesses:
            self._say("guess", guess)

    def _epiloguewritten(self, event: Any) -> None:
        self._source = event.source

    def _compiled(self, event: Any) -> None:
        self._say("epilogue", event.digest[:16])
        if not self.quiet:
            code(self.console, self._source, indent=4)
        self._say("kernel", f"{event.lines} lines of Triton")

    def _targetcompiled(self, event: Any) -> None:
        self._say(event.report.target, target(event.report.as_dict()), "red" if event.report.error else "")

    def _verificationprogress(self, event: Any) -> None:
        if self.quiet:
            return
        if not self.console.is_terminal:
            quarter = 4 * event.done // max(event.total, 1)
            if quarter > self._quarter:
                self._quarter = quarter
                self._say("verifying", f"{event.done} of {event.total} cases on the {event.backend} backend")
            return
        if self._progress is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("[bold]verifying[/] "),
                BarColumn(),
                TextColumn("{task.completed} of {task.total} cases, worst error {task.fields[ratio]:.2f} of its bound"),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=event.total, ratio=0.0)
            self._progress.start()
        assert self._task is not None
        self._progress.update(self._task, completed=event.done, total=event.total, ratio=event.max_error_ratio)

    def _verified(self, event: Any) -> None:
        self._stop()
        self._say("verified", evidence(event.report.as_dict()), "green")

    def _checking(self, event: Any) -> None:
        self._quarter = -1
        self._kernel = event.kernel
        self._say(event.kernel)

    def _mutationprogress(self, event: Any) -> None:
        if self.quiet:
            return
        if self.console.is_terminal:
            self.console.print(
                f"mutants   {event.killed} of {event.done} rejected, {event.total - event.done} to go",
                end="\r",
                style="dim",
            )
        elif event.done == event.total:
            self._say("mutants", f"{event.done} judged")

    def _mutated(self, event: Any) -> None:
        survivors = event.report["survivors"]
        self._say("mutants", mutation(event.report), "red" if survivors else "green")
        for survivor in survivors:
            self._say("", f"survives: {survivor['kind']}: {survivor['change']}", always=True)

    def _benchmarked(self, event: Any) -> None:
        self._say("", benchmark(event.row), always=True)

    def _predicted(self, event: Any) -> None:
        row = event.row
        times = ", ".join(
            f"{name} {gpu['fused_ms']:.3f} ms ({gpu['unfused_ms']:.3f} unfused)" for name, gpu in row["gpus"].items()
        )
        self._say(row["kernel"], f"{row['m']}x{row['n']}x{row['k']} at best: {times}", always=True)

    def _recorded(self, event: Any) -> None:
        self._say("recorded", "the certificate is now of a GPU" if event.upgraded else "certificate renewed", "green")

    def _diagnostics(self, event: Any) -> None:
        self._say("rejected", "the epilogue was refused", "red", always=True)
        lines = event.source.splitlines()
        for item in event.items:
            self._say("", f"{item.line}:{item.column}: {item.rule}: {item.message}", always=True)
            if 0 < item.line <= len(lines) and len(lines[item.line - 1]) <= 160:
                self.console.print(f"{'':14}{clean(lines[item.line - 1])}", style="dim", soft_wrap=True)
            if item.hint:
                self._say("", f"    hint: {item.hint}", always=True)

    def _rejected(self, event: Any) -> None:
        self._stop()
        found = event.counterexample or {}
        reason = (
            f"the kernel is wrong: {event.reason} does not hold"
            if event.reason == found.get("property")
            else event.reason
        )
        self._say("rejected", reason, "red", always=True)
        for line in counterexample(found, self._kernel):
            self._say("", line, always=True)

    def _committed(self, event: Any) -> None:
        how = "; the version before it is replaced" if event.replaced else ""
        self._say("committed", f"{event.folder}{how}", "green", always=True)

    def _finished(self, event: Any) -> None:
        if event.result["status"] == "verified":
            self._say("done", "verified, and not committed, as asked", "green", always=True)
        elif event.result["status"] == "committed":
            folder, name = event.result["kernel"]["folder"], event.result["operator"]
            package = os.path.basename(os.path.dirname(os.path.abspath(folder)))
            self._say("use it", f"from {package} import {name}")
        if event.result.get("usage"):
            self._say("usage", usage(event.result["usage"]))


def counterexample(found: Mapping[str, Any], kernel: str = "") -> list[str]:
    """A counterexample of the verifier in plain words, and how to see it again on a committed kernel."""
    lines = words(found)
    if kernel and found.get("case"):
        lines.append(f"again: coda-agent verify {kernel} --case '{json.dumps(found['case'], separators=(',', ':'))}'")
    return lines


def target(report: Mapping[str, Any]) -> str:
    """What compiling for one target gave, in a line."""
    if report.get("error"):
        return f"does not compile: {report['error']}"
    parts = []
    if report.get("registers") is not None:
        parts.append(f"{report['registers']} registers")
    if report.get("shared_bytes") is not None:
        parts.append(f"{report['shared_bytes'] / 1024:.0f} KiB shared memory")
    if report.get("spill_bytes") is not None:
        parts.append(f"{report['spill_bytes']} bytes spilled" if report["spill_bytes"] else "no spills")
    parts.append(f"tensor cores by {report['tensor_cores']}" if report.get("tensor_cores") else "no tensor cores")
    return ", ".join(parts)


def evidence(verification: Mapping[str, Any]) -> str:
    """A certificate in a line."""
    percent = verification.get("percent_of_torch_error")
    beside = f", {percent:.0f}% of torch's error" if isinstance(percent, (int, float)) else ""
    return (
        f"{verification.get('examples')} cases on the {verification.get('backend')} backend in {number(verification.get('duration'))} s: "
        f"worst error {number(verification.get('max_error_ratio'))} of its bound{beside} (seed {verification.get('seed')})"
    )


def mutation(report: Mapping[str, Any] | None) -> str:
    """A mutation score in a line."""
    if not report:
        return "mutants not tried"
    return f"{report.get('killed')} of {report.get('total')} mutants rejected on the {report.get('backend')} backend"


def benchmark(row: Mapping[str, Any]) -> str:
    """One measurement in a line."""

    def ratio(name: str) -> str:
        found = row.get(name)
        return f"{found['median']:.3f}x [{found['low']:.3f}, {found['high']:.3f}]" if found else "-"

    stored = f" +{','.join(row['include'])}" if row.get("include") else ""
    written = f", {ratio('vs_written')} as users write it" if row.get("vs_written") else ""
    return (
        f"{row['m']}x{row['n']}x{row['k']}{stored}: {row['ms']['kernel']:.3f} ms, "
        f"{ratio('vs_compile')} of torch.compile{written}, {ratio('vs_gemm')} of the GEMM alone, recovered {row['recovered']}"
    )


def code(console: Console, text: str, *, indent: int = 0) -> None:
    """Python source, highlighted on a terminal."""
    text = clean(text).rstrip("\n")
    if console.is_terminal:
        from rich.padding import Padding
        from rich.syntax import Syntax

        console.print(
            Padding(
                Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True), (0, 0, 0, indent)
            )
        )
    else:
        for line in text.splitlines():
            console.print(f"{' ' * indent}{line}", soft_wrap=True)


def operators_table(console: Console, operators: Iterable[Listed]) -> None:
    table = _table("name", "summary", "operands", "outputs")
    for item in operators:
        table.add_row(item.name, item.summary, _pairs(item.operands), _pairs(item.outputs))
    _print(console, table)


def kernels_table(console: Console, entries: Iterable[Entry]) -> None:
    table = _table("name", "status", "backend", "examples", "worst / bound", "of torch's error", "author", "date")
    for entry in entries:
        row = kernel_row(entry)
        percent = row["percent_of_torch_error"]
        cells = [
            row["backend"],
            row["examples"],
            number(row["max_error_ratio"]),
            f"{percent:.0f}%" if isinstance(percent, (int, float)) else None,
        ]
        cells += [row["author"], str(row["created"] or "")[:10]]
        status = Text(entry.status, style=_STYLES[entry.status])
        table.add_row(entry.name, status, *("–" if cell in (None, "") else clean(str(cell)) for cell in cells))
    _print(console, table)


def kernel_row(entry: Entry) -> dict[str, Any]:
    """What ``list`` says of one kernel."""
    verification = _mapping(entry.record, "verification")
    return {
        "name": entry.name,
        "status": entry.status,
        "reason": entry.reason or None,
        **{key: verification.get(key) for key in ("backend", "examples", "max_error_ratio", "percent_of_torch_error")},
        "author": _mapping(entry.record, "author").get("name"),
        "created": entry.record.get("created"),
    }


def kernel_page(console: Console, entry: Entry, epilogue: str, note: str = "") -> None:
    """Everything a reader needs to trust one kernel."""
    record, operator = entry.record, _mapping(entry.record, "operator")
    verification = _mapping(record, "verification")

    def head(title: str) -> None:
        console.print()
        console.print(Text(title, style="bold"))

    console.print(
        Text(entry.name, style="bold").append(f"  {entry.status}", style=_STYLES[entry.status]), soft_wrap=True
    )
    for line in (entry.reason, note):
        if line:
            console.print(clean(line), soft_wrap=True)
    head("Reference")
    code(console, str(operator.get("reference", "not recorded")), indent=2)
    head("Epilogue")
    code(console, epilogue or "missing", indent=2)
    head("Certificate")
    console.print("  " + (evidence(verification) if verification else "none"), soft_wrap=True)
    for name, found in _mapping(verification, "properties").items():
        console.print(
            f"  {'passed' if found.get('passed') else 'failed'}  {name}, {found.get('examples')} cases", soft_wrap=True
        )
    console.print(f"  {mutation(verification.get('mutation'))}", soft_wrap=True)
    if record.get("benchmark"):
        head("Benchmark")
        for row in record["benchmark"]:
            console.print(f"  {row.get('gpu')}: {benchmark(row)}", soft_wrap=True)
    head("Targets")
    for report in record.get("targets") or ():
        console.print(f"  {report.get('target'):<8}{target(report)}", soft_wrap=True)
    head("Provenance")
    author = _mapping(record, "author")
    source = "; ".join(f"{key} {value}" for key, value in author.items() if key != "name")
    versions = ", ".join(f"{name} {version}" for name, version in _mapping(record, "versions").items())
    for label, text in (
        ("author", f"{author.get('name')}{f' ({source})' if source else ''}"),
        ("operator", str(operator.get("origin"))),
        ("created", str(record.get("created"))),
        ("versions", versions),
        ("folder", str(entry.folder)),
    ):
        console.print(f"  {label:<10}{clean(text)}", soft_wrap=True)


def check_line(console: Console, check: Check) -> None:
    line = (
        Text(f"{check.status:<9}", style=_STYLES[check.status])
        .append(f"{check.name:<12}", style="bold")
        .append(clean(check.detail), style="default")
    )
    console.print(line, soft_wrap=True)
    if check.advice:
        console.print(f"{'':21}{clean(check.advice)}", style="dim", soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    return table


def _print(console: Console, table: Table) -> None:
    """A table; in a pipe, without the blanks that fill its last column."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), soft_wrap=True)


def _pairs(items: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {annotation}" for name, annotation in items.items()) or "–"


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = record.get(key)
    return found if isinstance(found, Mapping) else {}


def runs_table(console: Console, rows: Iterable[Mapping[str, Any]]) -> None:
    table = _table("run", "operator", "author", "model", "status", "tokens", "seconds", "reason")
    for row in rows:
        tokens = (row["usage"] or {}).get("total_tokens")
        status = Text(row["status"], style=_STYLES.get(row["status"], "yellow"))
        cells = [row["operator"], row["author"], row["model"]], [tokens, number(row["duration"]), row["reason"]]
        shown = [
            ["–" if cell in (None, "") else clean(" ".join(str(cell).split()))[:120] for cell in part] for part in cells
        ]
        table.add_row(row["run"], *shown[0], status, *shown[1])
    _print(console, table)


def run_page(console: Console, page: Mapping[str, Any]) -> None:
    """One run: what was asked, every attempt, how it ended."""
    status = Text(f"{page['run']}  ", style="bold").append(page["status"], style=_STYLES.get(page["status"], "yellow"))
    console.print(status, soft_wrap=True)
    endpoint = page["manifest"].get("endpoint") or {}
    for label, text in (
        ("operator", page["operator"]),
        ("author", f"{page['author']}{': ' + endpoint['model'] + ' at ' + endpoint['url'] if endpoint else ''}"),
        ("usage", usage(page["usage"])),
        ("reason", page["reason"]),
        ("folder", page["folder"]),
    ):
        if text:
            console.print(f"  {label:<10}{clean(str(text))}", soft_wrap=True)
    for attempt in page["attempts"]:
        console.print()
        stage = attempt.get("stage") or ("accepted" if attempt.get("passed") else "rejected")
        console.print(Text(attempt["name"], style="bold").append(f"  {stage}"), soft_wrap=True)
        if attempt.get("source"):
            code(console, attempt["source"], indent=2)
        found = [str(attempt["reason"])] if attempt.get("reason") else []
        found += [
            f"{item['line']}:{item['column']}: {item['rule']}: {item['message']}"
            for item in attempt.get("diagnostics") or ()
        ]
        found += [f"guess: {guess}" for guess in attempt.get("guesses") or ()]
        for line in [*found, *counterexample(attempt.get("counterexample") or {})]:
            console.print(f"  {clean(line)}", soft_wrap=True)
    if page["status"] in ("unfinished", "failed"):
        console.print(f"\ncoda-agent generate --resume {page['run']} goes on with it", soft_wrap=True)


def usage(used: Mapping[str, Any] | None) -> str:
    """What a model's answers took, in a line."""
    if not used:
        return ""
    about = "about " if used.get("estimated") else ""
    cost = used.get("cost")
    return (
        f"{used['requests']} request{'s' * (used['requests'] != 1)}, {about}{used['total_tokens']} tokens "
        f"({used['prompt_tokens']} asked, {used['completion_tokens']} answered)"
        + (f", {cost['amount']:g} {cost['currency']}" if cost else "")
    )


def evaluation_table(console: Console, document: Mapping[str, Any]) -> None:
    """Pass rates by round, and what an accepted kernel takes."""
    total = document["total"]
    rounds = [f"round {number}" for number in range(1, len(total["accepted_by_round"]) + 1)]
    table = _table("operator", *rounds, "tokens", "tokens / kernel", "seconds / kernel")
    for row in [*document["operators"], {"operator": "all", **total}]:
        passed = [f"{count}/{row['samples']}" for count in row["accepted_by_round"]]
        table.add_row(
            row["operator"],
            *passed,
            str(row["tokens"]),
            *(number(row[f"{what}_per_accepted"]) for what in ("tokens", "seconds")),
        )
    _print(console, table)
