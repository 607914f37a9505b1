"""The library folder: commits that are whole or absent, honest status, and packages that need the folder alone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from coda_agent import library as library_module
from coda_agent.library import Library, LibraryError, LibraryRequestError, check_name, locate, to_json

ROOT = Path(__file__).parent.parent
RECORD: dict[str, Any] = {"schema": 1, "name": "double", "author": {"name": "test"}}
KERNEL = """
class _Kernel:
    def register(self, namespace):
        self.namespace = namespace

kernel = _Kernel()

def double(x):
    return 2 * x
"""
FILES = {"epilogue.py": "def epilogue(acc):\n    store(y, acc)\n", "kernel.py": KERNEL}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock", "__pycache__"}


def python(code: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, paths))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "kernels", patience=0.3)


def test_commit_initialises_a_missing_folder(library: Library) -> None:
    entry = library.commit("double", FILES, RECORD)
    assert entry.status == "verified"
    assert names(library.path) == {"__init__.py", "runtime", "double"}
    assert names(entry.folder) == {"epilogue.py", "kernel.py", "record.json"}
    text = (entry.folder / "record.json").read_text()
    record = json.loads(text)
    assert text == to_json(record)
    assert set(record["sha256"]) == {"epilogue.py", "kernel.py"}
    assert record["runtime_sha256"] == library.runtime_sha256()
    assert str(library.path) not in text


def test_commit_replaces_the_version_before(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    library.commit("double", {**FILES, "kernel.py": KERNEL + "# new\n"}, RECORD)
    assert (library.path / "double" / "kernel.py").read_text().endswith("# new\n")
    assert names(library.path) == {"__init__.py", "runtime", "double"}


def test_an_existing_empty_folder_and_a_hidden_file_are_fine(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert Library(tmp_path).commit("double", FILES, RECORD).status == "verified"


@pytest.mark.parametrize("name", ["kernel.py", "epilogue.py"])
def test_an_edited_file_makes_a_kernel_stale(library: Library, name: str) -> None:
    file = library.commit("double", FILES, RECORD).folder / name
    file.write_text(file.read_text() + "#\n")
    (entry,) = library.entries()
    assert (entry.status, entry.reason) == ("stale", f"{name} was changed after it was verified")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"sha256": 1}',
        '{"sha256": {}}',
        '{"schema": 99, "sha256": {"epilogue.py": "", "kernel.py": ""}}',
        "\udcff",
        "[" * 100_000,
    ],
)
def test_a_broken_record_is_reported_not_raised(library: Library, text: str) -> None:
    folder = library.commit("double", FILES, RECORD).folder
    (folder / "record.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    (entry,) = library.entries()
    assert entry.status == "broken"
    assert "record.json" in entry.reason


def test_missing_files_are_broken(library: Library) -> None:
    folder = library.commit("double", FILES, RECORD).folder
    (folder / "kernel.py").unlink()
    assert library.entry("double").reason == "kernel.py is missing"
    (folder / "record.json").unlink()
    (folder / "kernel.py").touch()
    assert library.entry("double").reason == "record.json is missing"


def test_an_unknown_kernel_gets_the_nearest_names(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    with pytest.raises(LibraryRequestError, match="did you mean double"):
        library.entry("duoble")


@pytest.mark.parametrize(
    "name", ["runtime", "blocks", "_private", "class", "not-a-name", "1st", "", "../up", "__init__"]
)
def test_reserved_names_are_refused(library: Library, name: str) -> None:
    with pytest.raises(LibraryRequestError, match="cannot name a kernel"):
        check_name(name)
    with pytest.raises(LibraryRequestError):
        library.commit(name, FILES, RECORD)
    assert not library.path.exists()


def test_a_file_is_not_a_library(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(LibraryRequestError):
            Library(path).preflight()
    assert file.read_text() == "mine"


@pytest.mark.parametrize("path", ["/", "nul\0byte", "x" * 5000])
def test_impossible_paths_are_requests_gone_wrong(path: str) -> None:
    with pytest.raises(LibraryRequestError):
        Library(path).preflight()


@pytest.mark.parametrize(("name", "text"), [("thesis.tex", ""), ("__init__.py", "import mine\n")])
def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    for act in (Library(tmp_path).preflight, lambda: Library(tmp_path).commit("double", FILES, RECORD)):
        with pytest.raises(LibraryRequestError):
            act()
    assert names(tmp_path) == {name}


def test_a_name_that_cannot_be_imported_is_warned_of(tmp_path: Path) -> None:
    assert "not a Python name" in Library(tmp_path / "my-kernels").warning
    assert Library(tmp_path / "my_kernels").warning == ""


def test_no_permission_is_the_environment(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(library_module.tempfile, "TemporaryFile", refuse)  # root may write anywhere
    with pytest.raises(LibraryError, match="no permission") as caught:
        library.preflight()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "no permission")],
)
def test_a_failing_disk_leaves_the_old_version(
    library: Library, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    library.commit("double", FILES, RECORD)
    before = {path: path.read_bytes() for path in library.path.rglob("*.*") if path.is_file()}

    def fail(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(library_module, "_write", fail)
    with pytest.raises(LibraryError, match=words) as caught:
        library.commit("double", {**FILES, "kernel.py": "new"}, RECORD)
    assert caught.value.exit_code == 3
    assert {path: path.read_bytes() for path in library.path.rglob("*.*") if path.is_file()} == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_while_swapping_restores_the_old_version(
    library: Library, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    library.commit("double", FILES, RECORD)
    rename, calls = os.rename, []

    def interrupted(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) == call:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(library_module.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        library.commit("double", {**FILES, "kernel.py": "new"}, RECORD)
    assert library.entry("double").status == "verified"
    assert (library.path / "double" / "kernel.py").read_text() == KERNEL
    assert names(library.path) == {"__init__.py", "runtime", "double"}


def test_what_a_killed_run_left_is_cleaned_by_the_next_commit(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    (library.path / ".new-double-x1").mkdir()
    (library.path / ".new-double-x1" / "kernel.py").write_text("half")
    os.rename(library.path / "double", library.path / ".old-double")  # killed between the two renames
    assert library.entries() == []
    library.commit("other", FILES, {**RECORD, "name": "other"})
    assert [entry.name for entry in library.entries()] == ["double", "other"]
    assert names(library.path) == {"__init__.py", "runtime", "double", "other"}


def test_a_runtime_that_differs_is_refreshed(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    expected = library.runtime_sha256()
    (library.path / "runtime" / "kernel.py").write_text("old")
    (library.path / "runtime" / "gone.py").write_text("old")
    assert library.runtime_sha256() != expected
    library.commit("double", FILES, RECORD)
    assert library.runtime_sha256() == expected
    assert not (library.path / "runtime" / "gone.py").exists()


def test_a_lock_held_by_another_run_says_which(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    code = f"""
    import sys, time
    from coda_agent.library import Library
    with Library({str(library.path)!r})._locked():
        print("held", flush=True)
        time.sleep(60)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        with pytest.raises(LibraryError, match=rf"process {holder.pid}\) holds .*\.lock") as caught:
            library.commit("double", FILES, RECORD)
        assert caught.value.exit_code == 3
        assert time.monotonic() - began < 5
    finally:
        holder.kill()
        holder.wait()
    library.commit("double", FILES, RECORD)  # a dead holder's lock does not bind


def test_processes_that_commit_at_once_all_succeed(library: Library) -> None:
    code = f"""
    import sys
    from coda_agent.library import Library
    for turn in range(5):
        text = {KERNEL!r} + "#" * int(sys.argv[1]) + "\\n"
        Library({str(library.path)!r}, patience=60).commit("double", {{"epilogue.py": text, "kernel.py": text}}, {RECORD!r})
    """
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(i)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for i in range(1, 4)
    ]
    for run in runs:
        _, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
    assert library.entry("double").status == "verified"
    assert names(library.path) == {"__init__.py", "runtime", "double"}


def test_locate_prefers_what_is_named(tmp_path: Path) -> None:
    assert locate(tmp_path / "a", {"CODA_LIBRARY": str(tmp_path / "b")}).path == tmp_path / "a"
    assert locate(None, {"CODA_LIBRARY": str(tmp_path / "b")}).path == tmp_path / "b"
    assert locate(None, {}).path == ROOT / "kernel_library"


def test_json_takes_every_float(tmp_path: Path) -> None:
    assert json.loads(to_json({"a": float("nan"), "b": [float("-inf")], "c": tmp_path})) == {
        "a": "nan",
        "b": ["-inf"],
        "c": str(tmp_path),
    }


# --- As a package ----------------------------------------------------------------------------------------------------


def test_a_library_is_a_package_that_needs_its_folder_alone(library: Library) -> None:
    library.commit("double", FILES, RECORD)
    done = python(
        """
        import sys
        import kernels
        assert not {"torch", "triton"} & set(sys.modules), "import must be light"
        assert dir(kernels) == kernels.__all__ == ["double"]
        import kernels.double.kernel  # must not hide the function
        from kernels import double
        from kernels import double as again
        assert callable(double) and double is again is kernels.double and double(2) == 4
        from kernels.double.kernel import kernel
        assert kernel.namespace == "coda_kernels"
        import kernels.double.kernel
        assert kernels.double is double
        for name in ("duoble", "_private", "runtime2", "__wrapped__"):
            try:
                getattr(kernels, name)
            except AttributeError as error:
                print(error)
            else:
                raise AssertionError(name)
        try:
            from kernels import duoble
        except ImportError as error:
            print(error)
        assert not any(m.split(".")[0] in ("coda_agent", "kernel_library", "verifier") for m in sys.modules)
        from kernels import *
        """,
        library.path.parent,
    )
    assert done.returncode == 0, done.stderr
    assert "did you mean double?" in done.stdout
    assert "cannot import name 'duoble' from 'kernels'" in done.stdout


def test_kernels_committed_after_the_import_are_found(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.commit("double", FILES, RECORD)
    monkeypatch.syspath_prepend(str(library.path.parent))
    import kernels  # type: ignore[import-not-found]

    try:
        library.commit("twice", {**FILES, "kernel.py": KERNEL.replace("double", "twice")}, {**RECORD, "name": "twice"})
        assert kernels.__all__ == ["double", "twice"]
        assert kernels.twice(3) == 6
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "kernels"]:
            del sys.modules[name]


def test_threads_may_ask_for_one_kernel_at_once(library: Library) -> None:
    kernel = KERNEL.replace(
        "self.namespace = namespace",
        "assert not hasattr(self, 'namespace'); import time; time.sleep(0.05); self.namespace = namespace",
    )
    library.commit("double", {**FILES, "kernel.py": kernel}, RECORD)
    done = python(
        """
        from concurrent.futures import ThreadPoolExecutor
        import kernels
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _: kernels.double, range(8)))) == 1
        """,
        library.path.parent,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_torch_is_named(library: Library) -> None:
    library.commit("double", {**FILES, "kernel.py": "import torch\n" + KERNEL}, RECORD)
    done = python("import sys; sys.modules['torch'] = None; import kernels; kernels.double", library.path.parent)
    assert "ImportError: kernels.double needs torch, which is not installed" in done.stderr
