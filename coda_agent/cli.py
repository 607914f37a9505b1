"""The command line. Each command reads its options, calls one function, and prints what comes back.

With ``--json`` a command prints one JSON document on stdout, errors included, and everything for people on stderr.
Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .errors import BAD_REQUEST, DONE, ENVIRONMENT, INTERNAL, INTERRUPTED

if TYPE_CHECKING:
    from .events import Event

app = typer.Typer(
    name="coda-agent",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fused GEMM-epilogue GPU kernels you can trust: written by a model or derived, verified, committed to a library.",
)

runs_app = typer.Typer(no_args_is_help=False, help="List the runs of generate, and show one.")
app.add_typer(runs_app, name="runs")


class Author(str, Enum):
    derive = "derive"
    llm = "llm"
    file = "file"


class Backend(str, Enum):
    auto = "auto"
    interpreter = "interpreter"
    cuda = "cuda"


LibraryOption = Annotated[
    Path | None,
    typer.Option(
        "--library",
        metavar="DIR",
        help="The library (default: $CODA_LIBRARY, else the installed kernel_library).",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and text for people on stderr.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors and the last line only; names only in lists.")
]
OperatorArgument = Annotated[
    str, typer.Argument(metavar="OPERATOR", help="A catalogue name, or path.py:name for your own.", show_default=False)
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The model to ask, for the author llm (default: $CODA_MODEL).", show_default=False
    ),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="An OpenAI-compatible endpoint (default: $OPENAI_BASE_URL, else OpenAI).",
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option(metavar="N", help="Candidates asked for in parallel (default: 2).", show_default=False)
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Rounds a sample: the first answer and its repairs (default: 4).", show_default=False
    ),
]
TokensOption = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens a run may use (default: 200000).", show_default=False)
]
RequestsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Requests a run may send (default: 32).", show_default=False)
]


#: Signals that asked this run to end.
_signals: list[int] = []


class _Interrupted(Exception):
    """Ctrl-C, in a form that typer passes on."""


class _Output:
    """Where a command's answer goes: a JSON document, or text for people."""

    def __init__(self, as_json: bool) -> None:
        from .report import console

        self.as_json = as_json
        self.console = console(stderr=as_json)
        self.document: Any = None


@contextlib.contextmanager
def _answering(as_json: bool) -> Iterator[_Output]:
    """Keep stdout for the document: whatever else prints meanwhile, a user's file included, goes to stderr."""
    output = _Output(as_json)
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            yield output
    except KeyboardInterrupt:
        raise _Interrupted from None
    if as_json:
        _print_json(output.document)


def _print_json(document: Any) -> None:
    from .library import to_json

    sys.stdout.write(to_json(document, ascii_only=True))
    sys.stdout.flush()


def _exit(code: int) -> None:
    if code != DONE:
        raise typer.Exit(code)


@app.command()
def generate(
    operator: Annotated[str | None, typer.Argument(metavar="OPERATOR", help="A catalogue name, or path.py:name for your own; left out with --resume and --replay.", show_default=False)] = None,
    library: LibraryOption = None,
    author: Annotated[Author | None, typer.Option(help="Who writes the epilogue (default: llm where an endpoint is configured, else derive).", show_default=False)] = None,
    epilogue: Annotated[Path | None, typer.Option(metavar="FILE", help="An epilogue written by someone else; implies --author file.", show_default=False)] = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    samples: SamplesOption = None,
    rounds: RoundsOption = None,
    budget_tokens: TokensOption = None,
    max_requests: RequestsOption = None,
    backend: Annotated[Backend | None, typer.Option(help="Where to verify; auto is the GPU where there is one (default: auto).", show_default=False)] = None,
    target: Annotated[list[str] | None, typer.Option(metavar="ARCH", help="Compile for sm_80, gfx942, ...; repeatable (default: sm_80, sm_90, sm_100).", show_default=False)] = None,
    examples: Annotated[int | None, typer.Option(metavar="N", help="Cases to verify on (default: enough).", show_default=False)] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Time limit of the verification, with llm of the whole run (default: 300, with llm 900).", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the verification's cases (default: a fresh one).", show_default=False)] = None,
    no_commit: Annotated[bool, typer.Option("--no-commit", help="Verify, but leave the library as it is.")] = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a run that did not end; answers it has are not asked for again.", show_default=False)] = None,
    replay: Annotated[str | None, typer.Option(metavar="RUN", help="Run again offline, with the answers that a run was given.", show_default=False)] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Write, compile, verify and commit the kernel of an operator."""
    from . import pipeline
    from .report import Reporter

    request = pipeline.Request(
        operator,
        library=library,
        author=author.value if author else None,
        epilogue=epilogue,
        backend=backend.value if backend else None,  # type: ignore[arg-type]
        targets=target or None,
        examples=examples,
        timeout=timeout,
        seed=seed,
        commit=not no_commit,
        model=model,
        base_url=base_url,
        samples=samples,
        rounds=rounds,
        budget_tokens=budget_tokens,
        max_requests=max_requests,
        resume=resume,
        replay=replay,
    )
    with _answering(as_json) as output, Reporter(output.console, quiet=quiet) as tell:
        finished = pipeline.generate(request, _attentive(tell))
        output.document = finished.result
    _exit(finished.exit_code)


@app.command()
def verify(
    kernels: Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Kernels of the library.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every kernel of the library.")] = False,
    library: LibraryOption = None,
    operator: Annotated[str | None, typer.Option(metavar="PATH:NAME", help="The operator, for a kernel made from a file of yours.", show_default=False)] = None,
    backend: Annotated[Backend, typer.Option(help="Where to verify; auto is the GPU where there is one.")] = Backend.auto,
    examples: Annotated[int | None, typer.Option(metavar="N", help="Cases a kernel (default: enough).", show_default=False)] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Five times the cases.")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="Also count how many wrong versions of each kernel are rejected.")] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the cases (default: a fresh one).", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit a kernel.")] = 600.0,
    case: Annotated[str | None, typer.Option(metavar="JSON", help="Replay one case, as a counterexample prints it.", show_default=False)] = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="Leave the certificates as they are.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Judge committed kernels again, and renew their certificates."""
    from . import certify
    from .report import Reporter

    request = certify.Request(
        kernels or (),
        everything=everything,
        library=library,
        operator=operator,
        backend=backend.value,  # type: ignore[arg-type]
        examples=examples,
        thorough=thorough,
        mutants=mutants,
        seed=seed,
        timeout=timeout,
        case=certify.read_case(case),
        record=not no_record,
    )
    with _answering(as_json) as output, Reporter(output.console, quiet=quiet) as tell:
        output.document, code = certify.verify(request, _attentive(tell))
    _exit(code)


@app.command()
def bench(
    kernels: Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Kernels of the library.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every kernel of the library.")] = False,
    library: LibraryOption = None,
    operator: Annotated[str | None, typer.Option(metavar="PATH:NAME", help="The operator, for a kernel made from a file of yours.", show_default=False)] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="MxNxK", help="A problem; repeatable (default: the paper's).", show_default=False)] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="NAME", help="The problems of a model, such as llama3-8b; repeatable.", show_default=False)] = None,
    width: Annotated[list[int] | None, typer.Option(metavar="D", help="Model width of the paper's problems; repeatable (default: 2048, 4096, 8192).", show_default=False)] = None,
    tokens: Annotated[int, typer.Option(metavar="M", help="Rows, where a shape does not say.")] = 16384,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bfloat16, float16 or float32.")] = "bfloat16",
    tune: Annotated[bool, typer.Option("--tune", help="Search configurations first, and keep the fastest in the record.")] = False,
    no_record: Annotated[bool, typer.Option("--no-record", help="Leave the records as they are.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Measure committed kernels beside cuBLAS and torch.compile, in alternation; without a GPU, predict."""
    from .bench import run
    from .bench.shapes import WIDTHS
    from .report import Reporter

    request = run.Request(
        kernels or (),
        everything=everything,
        library=library,
        operator=operator,
        shapes=shape or (),
        models=model or (),
        widths=width or WIDTHS,
        tokens=tokens,
        dtype=dtype,
        tune=tune,
        record=not no_record,
    )
    with _answering(as_json) as output, Reporter(output.console, quiet=quiet) as tell:
        output.document, code = run.bench(request, _attentive(tell))
    _exit(code)


@app.command()
def operators(as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the operators that come with coda-agent."""
    from dataclasses import asdict

    from .operators.listing import listing
    from .report import operators_table

    with _answering(as_json) as output:
        found = listing()
        output.document = {"operators": [asdict(item) for item in found]}
        if quiet:
            output.console.print("\n".join(item.name for item in found))
        elif not as_json:
            operators_table(output.console, found)


@app.command(name="list")
def list_kernels(library: LibraryOption = None, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the kernels of a library, and whether they are as they were verified."""
    from .library import locate
    from .report import kernel_row, kernels_table

    with _answering(as_json) as output:
        found = locate(library)
        entries = found.entries()
        output.document = {"library": found.path, "kernels": [kernel_row(entry) for entry in entries]}
        if quiet:
            output.console.print("\n".join(entry.name for entry in entries), end="\n" if entries else "")
        elif not entries:
            output.console.print(f"no kernels in {found.path} yet: coda-agent generate swiglu", soft_wrap=True)
        elif not as_json:
            kernels_table(output.console, entries)


@app.command()
def show(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel of the library.", show_default=False)],
    library: LibraryOption = None,
    triton: Annotated[bool, typer.Option("--triton", help="Print the generated kernel.py.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a kernel: reference, epilogue, certificate, targets, provenance."""
    from .library import locate
    from .report import code, kernel_page, kernel_row

    with _answering(as_json) as output:
        found = locate(library)
        entry, note = found.entry(kernel), ""
        epilogue, text = entry.text("epilogue.py"), entry.text("kernel.py")
        if entry.record and entry.record.get("runtime_sha256") != found.runtime_sha256():
            note = "verified with another version of the library's runtime"
        shown = {"epilogue": epilogue, **({"triton": text} if triton else {})}
        output.document = {
            **kernel_row(entry),
            "note": note or None,
            "folder": entry.folder,
            **shown,
            "record": entry.record,
        }
        if quiet:
            output.console.print(entry.status)
        elif triton and not as_json:
            code(output.console, text)
        elif not as_json:
            kernel_page(output.console, entry, epilogue, note)


@app.command()
def prompt(
    operator: OperatorArgument,
    repair_from: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Print what would follow the best answer of a run.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a model would be asked for an operator."""
    from .writing import prompt_for

    with _answering(as_json) as output:
        text, messages = prompt_for(operator, repair_from)
        output.document = {"operator": operator, "prompt": text, "messages": messages}
        if not as_json:
            sys.stdout.write(text.rstrip("\n") + "\n")


@runs_app.callback(invoke_without_command=True)
def list_runs(context: typer.Context, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the runs of generate."""
    if context.invoked_subcommand:
        return
    from . import runs
    from .report import runs_table

    with _answering(as_json) as output:
        rows = [runs.row(run) for run in runs.all_runs()]
        output.document = {"folder": str(runs.home()), "runs": rows}
        if quiet:
            output.console.print("\n".join(row["run"] for row in rows), end="\n" if rows else "")
        elif not rows:
            output.console.print(f"no runs in {runs.home()} yet", soft_wrap=True)
        elif not as_json:
            runs_table(output.console, rows)


@runs_app.command(name="list")
def list_runs_too(context: typer.Context, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the runs of generate."""
    context.invoked_subcommand = None
    list_runs(context, as_json, quiet)


@runs_app.command(name="show")
def show_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="An id, its beginning, 'last', or a folder.", show_default=False)
    ],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a run: what was asked, every attempt, how it ended."""
    from . import runs
    from .report import run_page

    with _answering(as_json) as output:
        found = runs.page(runs.find(run))
        output.document = found
        if quiet:
            output.console.print(found["status"])
        elif not as_json:
            run_page(output.console, found)


@app.command(name="eval")
def evaluate(
    operators: Annotated[list[str] | None, typer.Option(metavar="OPERATOR", help="An operator, or several with commas; repeatable (default: the whole catalogue).", show_default=False)] = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    samples: SamplesOption = None,
    rounds: RoundsOption = None,
    budget_tokens: TokensOption = None,
    max_requests: RequestsOption = None,
    backend: Annotated[Backend, typer.Option(help="Where to verify; auto is the GPU where there is one.")] = Backend.auto,
    target: Annotated[list[str] | None, typer.Option(metavar="ARCH", help="Compile for sm_80, gfx942, ...; repeatable (default: sm_90).", show_default=False)] = None,
    examples: Annotated[int, typer.Option(metavar="N", help="Cases to verify each candidate on.")] = 24,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Time limit an operator (default: 900).", show_default=False)] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the verification's cases.")] = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Measure how well a model writes epilogues: pass rate by round, tokens and time per accepted kernel."""
    from . import evaluate as evaluation
    from .report import Reporter, evaluation_table

    request = evaluation.Request(
        operators or (),
        model=model,
        base_url=base_url,
        samples=samples,
        rounds=rounds,
        budget_tokens=budget_tokens,
        max_requests=max_requests,
        backend=backend.value,  # type: ignore[arg-type]
        targets=target or None,
        examples=examples,
        timeout=timeout,
        seed=seed,
    )
    with _answering(as_json) as output:
        with Reporter(output.console, quiet=quiet) as tell:
            output.document = evaluation.evaluate(request, _attentive(tell))
        evaluation_table(output.console, output.document)


@app.command()
def doctor(library: LibraryOption = None, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Say what this machine has and lacks for generating kernels."""
    from dataclasses import asdict

    from .doctor import examine
    from .report import check_line

    with _answering(as_json) as output:
        checks, lacking = [], []
        for check in examine(library):
            checks.append(check)
            if check.needed and check.status == "missing":
                lacking.append(check.name)
            if not quiet or check.status == "missing":
                check_line(output.console, check)
        output.document = {"ready": not lacking, "lacking": lacking, "checks": [asdict(check) for check in checks]}
        output.console.print(
            f"generate cannot run: {', '.join(lacking)}" if lacking else "ready to generate", soft_wrap=True
        )
    _exit(ENVIRONMENT if lacking else DONE)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coda-agent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


#: What typer raises for a bad command line. Older versions take it from click, newer ones carry their own.
_UsageError: Any = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """The console entry. Returns the exit code; expected errors become one sentence, or one JSON document."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with _interruptible():
        try:
            return int(app(args=given, prog_name="coda-agent", standalone_mode=False) or DONE)
        except _UsageError as error:
            return _fail(given, "usage", _usage(error), BAD_REQUEST)
        except (_Interrupted, KeyboardInterrupt, typer.Abort):
            code = 128 + _signals[0] if _signals else INTERRUPTED
            return _fail(given, "interrupted", "interrupted; the library is as it was", code)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except Exception as error:
            return _explain(given, error)


def _explain(given: Sequence[str], error: Exception) -> int:
    from .errors import exit_code

    code = exit_code(error)
    if code is not None:
        return _fail(given, type(error).__name__, str(error), code)
    if os.environ.get("CODA_DEBUG") == "1":
        raise error
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return _fail(
        given,
        "internal",
        f"internal error: {what} (run again with CODA_DEBUG=1 for a traceback, and please report it with that)",
        INTERNAL,
    )


def _fail(given: Sequence[str], kind: str, message: str, code: int) -> int:
    from .report import clean

    sys.stderr.write(f"error: {clean(message)}\n")
    if "--json" in given:
        _print_json({"status": "error", "error": {"kind": kind, "message": message}, "exit_code": code})
    return code


def _usage(error: Any) -> str:
    text = str(getattr(error, "message", "") or error.format_message())
    possible = getattr(error, "possibilities", None)
    if possible:
        text = f"{text.rstrip('.')}; did you mean {' or '.join(sorted(possible))}?"
    elif not hasattr(error, "option_name"):
        text = error.format_message()
    context = getattr(error, "ctx", None)
    return f"{text}\n{context.command_path} --help says how" if context else text


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, and being told to end, interrupt whatever stage is at work, which cleans up behind itself."""

    def interrupt(number: int, frame: object) -> None:
        _signals.append(number)
        raise KeyboardInterrupt

    _signals.clear()
    try:
        previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _attentive(tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """``tell``, and an interrupt that got lost: Python drops exceptions raised while it collects garbage."""

    def told(event: Event) -> None:
        if _signals:
            raise KeyboardInterrupt
        tell(event)

    return told
