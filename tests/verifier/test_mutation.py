"""Mutants are rejected, survivors are named, and a correct kernel is neither rejected nor killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from coda_agent.authors.contract import signature
from coda_agent.authors.derive import derive
from coda_agent.compiler import Description, generate
from coda_agent.compiler.mutate import mutants
from coda_agent.operators import Operator, load
from coda_agent.operators.listing import listing
from coda_agent.sandbox import parse
from coda_agent.sandbox.ir import Epilogue
from verifier import verify
from verifier.cases import Case, Signature, revealing
from verifier.isolation import Worker
from verifier.mutation import score
from verifier.properties import Judge
from verifier.soak import main, soak


@dataclass
class Wrong:
    kind: str
    change: str
    kernel: str


def program(name: str) -> tuple[Operator, Epilogue, Description]:
    op = load(name)
    defaults = {o.name: o.default for o in op.operands if o.default is not None}
    return op, parse(derive(op), signature(op)), Description(name, op.doc, defaults)


def kernel(name: str) -> tuple[Operator, str]:
    op, epilogue, description = program(name)
    return op, generate(epilogue, description)


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_every_fate_of_a_mutant_is_told() -> None:
    op, text = kernel("bias")
    run = "kernel = Kernel("
    given = [
        Wrong("none", "nothing", text),
        Wrong("syntax", "half a file", text[: len(text) // 2] + "\n("),
        Wrong("crash", "kills its process", edited(text, run, f"import ctypes\nctypes.string_at(0)\n{run}")),
        Wrong("hang", "never ends", edited(text, run, f"import time\ntime.sleep(60)\n{run}")),
        Wrong("sign", "+ became -", edited(text, "acc + load_row(", "acc - load_row(")),
    ]
    told: list[dict[str, object]] = []
    report = score(op, given, backend="interpreter", seed=1, examples=0, case_timeout=8.0, jobs=1, on_event=told.append)
    assert (report.killed, report.total) == (4, 5)
    assert report.score == 0.8
    assert report.survivors == [{"kind": "none", "change": "nothing"}]
    assert report.by_kind["sign"] == [1, 1]
    assert report.killed_by == {
        "kernel-raised": 1,
        "worker-crashed (signal 11)": 1,
        "worker-hung": 1,
        "elementwise_bound": 1,
    }
    assert [event["done"] for event in told] == [1, 2, 3, 4, 5]
    assert json.loads(json.dumps(report.as_dict()))["killed"] == 4


def test_time_runs_out() -> None:
    op, text = kernel("bias")
    report = score(op, [Wrong("none", "nothing", text)] * 3, backend="interpreter", seed=1, timeout=0.0, jobs=1)
    assert (report.total, report.unjudged) == (0, 3)


#: Right to bf16 only in the wrong place.
MISROUNDED = [
    ("gelu", "gelu_map(acc + ", "gelu_map(acc.to(tl.bfloat16).to(tl.float32) + "),
    ("residual_rmsnorm", "tl.sum(x * x, axis=1)", "tl.sum((x * x).to(tl.bfloat16).to(tl.float32), axis=1)"),
    ("swiglu", "    y = silu(gate) * up", "    y = silu(gate).to(tl.bfloat16).to(tl.float32) * up"),
]


def test_rounding_in_the_wrong_place_is_rejected(tmp_path: Path) -> None:
    with Worker(tmp_path, Signature((), ())) as worker:
        for name, old, new in MISROUNDED:
            op, text = kernel(name)
            worker.signature = Signature.of(op)
            for kind, content in (("right", text), ("wrong", edited(text, old, new))):
                folder = tmp_path / f"{name}_{kind}"
                folder.mkdir()
                (folder / "kernel.py").write_text(content)
                worker.load(folder)
                for scale in (1.0, 16.0):
                    failures = Judge(op, worker).check(Case(m=19, n=22, k=40, dtype="bf16", scale=scale, seed=5))
                    assert [f.prop for f in failures][:1] == (["elementwise_bound"] if kind == "wrong" else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in listing()])
def test_every_mutant_of_the_catalogue_is_killed(tmp_path: Path, name: str) -> None:
    op, epilogue, description = program(name)
    (tmp_path / "kernel.py").write_text(generate(epilogue, description))
    cases = revealing(op, "interpreter", 7)
    assert verify(op, tmp_path, backend="interpreter", examples=0, cases=cases).passed
    report = score(op, mutants(epilogue, description), backend="interpreter", seed=7)
    assert report.survivors == []
    assert report.unjudged == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "seeds"), [("swiglu", "pytorch", 100), ("rmsnorm_cross_entropy", "kernel", 10)]
)
def test_correct_kernels_are_not_rejected(tmp_path: Path, name: str, form: str, seeds: int) -> None:
    op, text = kernel(name)
    (tmp_path / "kernel.py").write_text(text)
    result = soak(op, tmp_path, seeds=seeds, first=5000, examples=6, backend="interpreter", form=form)
    assert result.rejections == []
    assert result.seeds == seeds


def test_the_soak_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.py").write_text(kernel("bias")[1])
    arguments = ["bias", "--kernel", str(tmp_path), "--backend", "interpreter", "--form", "pytorch", "--seeds", "1"]
    assert main([*arguments, "--examples", "4"]) == 0
    assert "1 seeds" in capsys.readouterr().out
    assert main(["no_such_operator"]) == 2
    assert main(["bias", "--kernel", str(tmp_path / "nowhere")]) == 2
