"""The command line: exit codes, one JSON document, clear errors, and no waiting for imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coda_agent import pipeline
from coda_agent.cli import main
from coda_agent.library import Library

ROOT = Path(__file__).parent.parent
HEADER = (
    "import torch\nfrom coda_agent.operators import operator, Tile, HalfTile, RowVector, ColVector, Scalar, Reduced\n"
)
GOOD = (
    HEADER
    + "@operator\ndef capped(acc: Tile, b: RowVector) -> Tile:\n    '''Bias, then clip.'''\n    return torch.relu(acc + b) * 0.5\n"
)
RECORD: dict[str, Any] = {
    "schema": 1,
    "operator": {"reference": "def swiglu(acc): ...", "origin": "catalogue"},
    "author": {"name": "derive"},
    "verification": {
        "backend": "interpreter",
        "examples": 12,
        "max_error_ratio": 0.5,
        "percent_of_torch_error": 70.0,
        "properties": {"contract": {"passed": True, "examples": 9}},
    },
    "targets": [{"target": "sm_90", "registers": 200, "shared_bytes": 2048, "spill_bytes": 0, "tensor_cores": "wgmma"}],
    "versions": {"torch": "2"},
    "created": "2026-01-02T03:04:05Z",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CODA_LIBRARY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "CODA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    library = Library(tmp_path / "kernels")
    library.commit("swiglu", {"epilogue.py": "def epilogue(acc): ...\n", "kernel.py": "KERNEL = 1\n"}, RECORD)
    return library.path


class Answer:
    """What a command printed. ``json`` insists on exactly one document on stdout."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in out + err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def coda(capfd: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Answer(code, *capfd.readouterr())

    return call


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coda_agent", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def error(answer: Answer, code: int) -> str:
    assert answer.code == code, answer.err
    assert answer.json["status"] == "error"
    assert answer.json["exit_code"] == code
    message = answer.json["error"]["message"]
    assert message in answer.err
    assert isinstance(message, str)
    return message


# --- Requests that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["genrate"], "Did you mean 'generate'"),
        (["generate", "swiglu", "--jsn"], "did you mean --json"),
        (["generate"], "OPERATOR"),
        (["generate", "swiglu", "--backend", "gpu"], "interpreter"),
        (["generate", "swiglu", "--timeout", "soon"], "'--timeout'"),
        (["generate", "swiglu", "--author", "me"], "derive"),
        (["generate", "swiglu", "rope"], "rope"),
        (["show"], "KERNEL"),
        (["nothing", "--json"], "No such command"),
        (["generate", "swiglo"], "did you mean swiglu"),
        (["generate", ""], "no operator given"),
        (["generate", "nowhere.py:f"], "no such file"),
        (["generate", ".:f"], "directory"),
        (["generate", "swiglu", "--epilogue", "nowhere.py"], "no such file"),
        (["generate", "swiglu", "--epilogue", "."], "directory"),
        (["generate", "swiglu", "--author", "file"], "--epilogue"),
        (["generate", "swiglu", "--target", "sm_3"], "unknown target"),
        (["generate", "swiglu", "--examples", "0"], "--examples"),
        (["generate", "swiglu", "--library", __file__], "is a file"),
        (["list", "--library", __file__], "is a file"),
        (["show", "swiglu", "--library", "empty"], "none yet"),
        (["prompt", "swiglo"], "did you mean swiglu"),
    ],
)  # fmt: skip
def test_bad_requests_exit_2_and_say_what_to_do(coda: Any, arguments: list[str], words: str) -> None:
    human = coda(*arguments)
    assert human.code == 2
    assert words in human.err
    if "--json" not in arguments:
        assert "error" not in human.out
    assert words in error(coda(*arguments, "--json"), 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "not valid Python"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("import os\n", "no operator"),
        (GOOD, "did you mean capped"),
        (HEADER + "def f(acc): ...\n", "@operator"),
        (HEADER + "@operator\ndef f(acc: Tile) -> HalfTile:\n    return acc\n", "HalfTile"),
        (HEADER + "@operator\ndef f(acc: Tile) -> Tile:\n    return acc, acc\n", "returned 2"),
        (HEADER + "@operator\ndef f(acc: Tile) -> Tile:\n    raise RuntimeError('why not')\n", "why not"),
        (HEADER + "@operator\ndef f(acc: Tile) -> Tile:\n    raise SystemExit(0)\n", "ends the program"),
        (HEADER + "@operator\ndef f(acc: Tile, b):\n    return acc\n", "annotation"),
        ("\udcff\udcfe", "UTF-8"),
    ],
)
def test_user_files_that_are_wrong_exit_2(coda: Any, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    name = "caped" if text == GOOD else "f"
    assert words in error(coda("generate", f"{file}:{name}", "--library", tmp_path / "kernels", "--json"), 2)
    assert not (tmp_path / "kernels").exists()


def test_a_reserved_name_exits_2(coda: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD.replace("capped", "runtime"))
    assert "keep that name" in error(coda("generate", "mine.py:runtime", "--library", "kernels", "--json"), 2)


# --- The environment -------------------------------------------------------------------------------------------------


def test_what_the_environment_lacks_exits_3(coda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no endpoint is configured" in error(
        coda("generate", "swiglu", "--author", "llm", "--library", "kernels", "--json"), 3
    )
    assert "cannot be used" in error(
        coda(
            "generate",
            "swiglu",
            "--library",
            "/proc/nowhere/kernels",
            "--author",
            "derive",
            "--json",
            "--examples",
            "1",
            "--target",
            "sm_90",
        ),
        3,
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "GPU" in error(coda("generate", "swiglu", "--backend", "cuda", "--library", "kernels", "--json"), 3)
    assert not Path("kernels").exists()


def test_an_unexpected_fault_is_one_line(coda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> Any:
        raise RuntimeError("a\nlong story")

    monkeypatch.setattr(pipeline, "generate", fault)
    answer = coda("generate", "swiglu")
    assert answer.code == 70
    assert answer.err.startswith("error: internal error: RuntimeError: a (run again with CODA_DEBUG=1")
    assert answer.err.count("\n") == 1
    monkeypatch.setenv("CODA_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["generate", "swiglu"])


def test_ctrl_c_exits_130(coda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "generate", interrupt)
    assert "interrupted" in error(coda("generate", "swiglu", "--json"), 130)


# --- Epilogues that are refused --------------------------------------------------------------------------------------

HOSTILE = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\x00",
    "null bytes": b"def epilogue(acc):\x00\n",
    "import": b"import os\ndef epilogue(acc):\n    store(y, acc)\n",
    "dunder": b"def epilogue(acc):\n    store(y, acc.__class__.__bases__)\n",
    "loop": b"def epilogue(acc):\n    while True:\n        pass\n",
    "huge constant": b"def epilogue(acc):\n    store(y, acc * 9**9**9)\n",
    "huge literal": b"def epilogue(acc):\n    store(y, acc * " + b"9" * 5000 + b")\n",
    "deep nesting": b"def epilogue(acc):\n    store(y, " + b"(" * 9000 + b"acc" + b")" * 9000 + b")\n",
    "deep calls": b"def epilogue(acc):\n    store(y, " + b"exp(" * 900 + b"acc" + b")" * 900 + b")\n",
    "two functions": b"def epilogue(acc):\n    store(y, acc)\ndef epilogue(acc):\n    store(y, acc)\n",
    "wrong operands": b"def epilogue(acc, b):\n    store(y, acc + load_row(b))\n",
    "wrong type": b"def epilogue(acc):\n    store(z, acc)\n    store(y, acc)\n",
    "escape sequences": b"def epilogue(acc):\n    store(y, '\x1b[2J\x1b]0;title\x07')\n",
    "100 kB": b"def epilogue(acc):\n" + b"    x = exp(acc)\n" * 6000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_epilogues_exit_1_with_diagnostics(coda: Any, tmp_path: Path, name: str) -> None:
    file = tmp_path / "epilogue.py"
    file.write_bytes(HOSTILE[name])
    answer = coda("generate", "swiglu", "--epilogue", file, "--library", tmp_path / "kernels", "--json")
    assert answer.code == 1
    assert answer.json["status"] == "rejected"
    assert answer.json["diagnostics"]
    assert "\x1b" not in answer.err
    assert not (tmp_path / "kernels").exists()


def test_a_megabyte_is_not_read(coda: Any, tmp_path: Path) -> None:
    (tmp_path / "epilogue.py").write_bytes(b"#" * 1_000_000)
    assert "larger than" in error(
        coda("generate", "swiglu", "--epilogue", "epilogue.py", "--library", "kernels", "--json"), 2
    )


# --- Reading a library -----------------------------------------------------------------------------------------------


def test_list(coda: Any, kernels: Path) -> None:
    answer = coda("list", "--library", kernels, "--json")
    assert answer.code == 0
    (row,) = answer.json["kernels"]
    assert row == {
        "name": "swiglu",
        "status": "verified",
        "reason": None,
        "backend": "interpreter",
        "examples": 12,
        "max_error_ratio": 0.5,
        "percent_of_torch_error": 70.0,
        "author": "derive",
        "created": "2026-01-02T03:04:05Z",
    }
    assert "swiglu" in coda("list", "--library", kernels).out
    assert coda("list", "--library", kernels, "--quiet").out == "swiglu\n"
    assert "no kernels" in coda("list", "--library", "nowhere").out
    assert coda("list", "--library", "nowhere", "--json").json["kernels"] == []


def test_a_stale_kernel_shows_everywhere(coda: Any, kernels: Path) -> None:
    (kernels / "swiglu" / "kernel.py").write_text("edited\n")
    assert coda("list", "--library", kernels, "--json").json["kernels"][0]["status"] == "stale"
    assert "stale" in coda("list", "--library", kernels).out
    shown = coda("show", "swiglu", "--library", kernels).out
    assert "stale" in shown
    assert "kernel.py was changed after it was verified" in shown


def test_a_broken_record_is_listed_and_shown(coda: Any, kernels: Path) -> None:
    (kernels / "swiglu" / "record.json").write_text("{")
    assert coda("list", "--library", kernels, "--json").json["kernels"][0]["status"] == "broken"
    assert "record.json cannot be read" in coda("show", "swiglu", "--library", kernels).out


def test_show(coda: Any, kernels: Path) -> None:
    text = coda("show", "swiglu", "--library", kernels).out
    for words in (
        "swiglu  verified",
        "Reference",
        "Epilogue",
        "Certificate",
        "12 cases on the interpreter",
        "sm_90   200 registers",
        "wgmma",
    ):
        assert words in text
    assert coda("show", "swiglu", "--library", kernels, "--triton").out == "KERNEL = 1\n"
    document = coda("show", "swiglu", "--library", kernels, "--triton", "--json").json
    assert document["triton"] == "KERNEL = 1\n"
    assert document["record"]["author"] == {"name": "derive"}


def test_operators(coda: Any) -> None:
    found = {item["name"]: item for item in coda("operators", "--json").json["operators"]}
    assert found["swiglu"]["outputs"] == {"z": "Tile | None", "y": "HalfTile"}
    assert found["rmsnorm_cross_entropy"]["operands"]["ignore_index"] == "Scalar[int] = -100"
    assert "swiglu\n" in coda("operators", "--quiet").out
    assert "SwiGLU" in coda("operators").out


@pytest.mark.parametrize("width", ["80", "200"])
def test_tables_fit_their_terminal_and_lose_nothing(
    coda: Any, kernels: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for command in (["operators"], ["list", "--library", kernels]):
        lines = coda(*command).out.splitlines()
        assert max(map(len, lines)) <= int(width)
        assert not any("…" in line for line in lines)
        assert "\x1b" not in "".join(lines)


def test_doctor_names_variables_and_never_their_values(
    coda: Any, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setattr(
        "coda_agent.doctor._answering",
        lambda settings, detail: __import__("coda_agent.doctor", fromlist=["Check"]).Check("endpoint", "ok", detail),
    )
    monkeypatch.setattr(
        "coda_agent.doctor._interpreter",
        lambda: __import__("coda_agent.doctor", fromlist=["Check"]).Check("interpreter", "ok", "", needed=True),
    )
    answer = coda("doctor", "--library", kernels, "--json")
    assert answer.code == 0
    assert answer.json["ready"] is True
    names = {check["name"] for check in answer.json["checks"]}
    assert {
        "python",
        "torch",
        "triton",
        "numpy",
        "hypothesis",
        "interpreter",
        "ptxas",
        "GPU",
        "library",
        "endpoint",
    } <= names
    assert "OPENAI_API_KEY is set, OPENAI_BASE_URL is not set" in answer.out
    assert "secret" not in answer.out + answer.err


def test_doctor_exits_3_when_something_needed_is_missing(coda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"coda-agent": "0", "python": "3", "torch": "2", "triton": None, "numpy": "2", "hypothesis": "6"}
    monkeypatch.setattr("coda_agent.doctor.versions", lambda: versions)
    answer = coda("doctor", "--json", "--library", "kernels")
    assert answer.code == 3
    assert answer.json["lacking"] == ["triton"]


# --- No waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["generate", "--help"], ["--version"], ["operators"], ["operators", "--json"], ["list"], ["show", "nothing"], ["generate", "--nonsense"], ["generate", "swiglo"], ["oprators"]],
)  # fmt: skip
def test_nothing_heavy_is_imported_for_quick_answers(arguments: list[str]) -> None:
    code = "import sys; from coda_agent.cli import main; main(sys.argv[1:]); print(*{m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "typer" in loaded
    assert not {"torch", "triton", "numpy", "hypothesis", "sympy", "kernel_library"} & loaded


# --- The whole way ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_user_operator_from_file_to_import(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('noise on stdout')\n" + GOOD)
    kernels = tmp_path / "kernels"
    done = shell(
        "generate",
        f"{tmp_path}/mine.py:capped",
        "--library",
        str(kernels),
        "--examples",
        "8",
        "--target",
        "sm_90",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["author"]) == ("committed", "derive")
    assert result["verification"]["max_error_ratio"] <= 1
    assert "noise on stdout" in done.stderr
    assert "why" not in result
    assert "no endpoint is configured" in done.stderr
    code = """
import sys, warnings; warnings.simplefilter("ignore")
import kernels; assert "torch" not in sys.modules
from kernels import capped
import torch
x, w, b = torch.randn(5, 16), torch.randn(7, 16), torch.randn(7)
torch.testing.assert_close(capped(x, w, b), torch.relu(x @ w.T + b) * 0.5)
assert torch.ops.coda_kernels.capped
assert not any(name.split(".")[0] in ("coda_agent", "verifier", "kernel_library") for name in sys.modules)
"""
    used = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert used.returncode == 0, used.stderr


@pytest.mark.slow
def test_swapped_gate_and_up_is_rejected_with_a_counterexample(coda: Any, tmp_path: Path) -> None:
    (tmp_path / "swap.py").write_text(
        "def epilogue(acc):\n    up, gate = even_odd(acc)\n    store(z, acc)\n    store(y, silu(gate) * up)\n"
    )
    answer = coda("generate", "swiglu", "--epilogue", "swap.py", "--library", "kernels", "--target", "sm_90", "--json")
    assert answer.code == 1
    assert answer.json["status"] == "rejected"
    assert answer.json["counterexample"]["output"] == "y"
    assert "the kernel is wrong" in answer.err
    assert "but must be" in answer.err
    assert not (tmp_path / "kernels").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "coda_agent",
            "generate",
            "swiglu",
            "--library",
            str(tmp_path / "kernels"),
            "--target",
            "sm_90",
            "--examples",
            "5000",
            "--json",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("verifying"):
            break
    time.sleep(4)  # until the worker is at work
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(out)["exit_code"] == code
    assert not (tmp_path / "kernels").exists()
    assert [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor_")] == []
    assert _living(str(scratch)) == []


def _living(needle: str) -> list[int]:
    """Processes whose environment mentions ``needle``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_the_replay_line_is_for_kernels_that_can_be_replayed() -> None:
    from coda_agent.report import counterexample

    found = {"message": "beyond the element-wise bound", "case": {"m": 1, "n": 2}}
    assert not any("again:" in line for line in counterexample(found))
    assert counterexample(found, "swiglu")[-1] == """again: coda-agent verify swiglu --case '{"m":1,"n":2}'"""
