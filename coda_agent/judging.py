"""Judging one candidate: sandbox, compiler, verifier, in the order in which they are cheap."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .authors.contract import signature
from .events import Compiled, Diagnostics, EpilogueWritten, Event, Rejected, TargetCompiled, Verified
from .operators import Operator
from .sandbox import Epilogue, SandboxError, parse

if TYPE_CHECKING:
    from verifier import Report

    from .compiler.aot import CompileReport

#: Seconds that judging one candidate may take, unless the request says otherwise.
TIMEOUT = 300.0


@dataclass
class Judged:
    """What came of one candidate. ``reason`` is empty where it passed; fields of stages it did not reach are too."""

    text: str
    epilogue: Epilogue | None = None
    files: dict[str, str] = field(default_factory=dict)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    targets: list[CompileReport] = field(default_factory=list)
    report: Report | None = None
    reason: str | None = None
    counterexample: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        return self.reason is None and self.report is not None

    def as_dict(self) -> dict[str, Any]:
        """The verdict and its evidence, as a run keeps them."""
        return {
            "passed": self.passed,
            "reason": self.reason,
            "digest": self.epilogue.digest if self.epilogue else None,
            "diagnostics": self.diagnostics,
            "targets": [report.as_dict() for report in self.targets],
            "verification": self.report.as_dict() if self.report else None,
            "counterexample": self.counterexample,
        }


@dataclass(frozen=True)
class Judge:
    """Judges candidates for one operator, all with the same options."""

    operator: Operator
    tell: Callable[[Event], None]
    backend: Literal["auto", "interpreter", "cuda"] = "auto"
    targets: Sequence[str] | None = None
    examples: int | None = None
    seed: int | None = None

    def check(self, source: bytes | str) -> Judged:
        """The sandbox's part, which costs nothing: parse, type-check, print as Triton."""
        text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        judged = Judged(text)
        self.tell(EpilogueWritten(text))
        try:
            epilogue = judged.epilogue = parse(source, signature(self.operator))
        except SandboxError as error:
            judged.reason = "the epilogue was refused"
            judged.diagnostics = [item.as_dict() for item in error.diagnostics]
            self.tell(Diagnostics(tuple(error.diagnostics), text))
            return judged
        from .compiler import Description, generate

        operator = self.operator
        kernel = generate(epilogue, Description(operator.name, operator.doc, operator.defaults))
        judged.files = {"epilogue.py": epilogue.source or text, "kernel.py": kernel}
        self.tell(Compiled(kernel.count("\n"), epilogue.digest))
        return judged

    def test(self, judged: Judged, timeout: float, *, compiled: bool = True) -> None:
        """The expensive part: compile for every target unless it is known to be wrong, and verify."""
        from .certify import judge

        with tempfile.TemporaryDirectory(prefix="coda-") as temporary:
            folder = Path(temporary) / self.operator.name
            folder.mkdir()
            for name, text in judged.files.items():
                (folder / name).write_text(text, encoding="utf-8", newline="\n")
            if compiled and not self.compile(judged, folder):
                return
            report = judged.report = judge(
                self.operator,
                folder,
                self.tell,
                backend=self.backend,
                examples=self.examples,
                seed=self.seed,
                timeout=timeout,
            )
            if report.passed and not compiled and not self.compile(judged, folder):
                return
        if report.passed:
            self.tell(Verified(report))
        else:
            self._reject(judged, report.reason or "it does not pass", report.counterexample)

    def compile(self, judged: Judged, folder: Path) -> bool:
        from .compiler.aot import DEFAULT_TARGETS, compile_for

        judged.targets = compile_for(folder, tuple(dict.fromkeys(self.targets or DEFAULT_TARGETS)))
        for report in judged.targets:
            self.tell(TargetCompiled(report))
        failed = [report for report in judged.targets if report.error]
        if failed:
            self._reject(judged, f"it does not compile for {failed[0].target}: {failed[0].error}")
        return not failed

    def _reject(self, judged: Judged, reason: str, counterexample: dict[str, Any] | None = None) -> None:
        judged.reason, judged.counterexample = reason, counterexample
        self.tell(Rejected(reason, counterexample))
