"""Runs generated kernels on Triton's interpreter in a process of its own, many launches to one start of torch.

``python interpreted.py FOLDER`` reads ``FOLDER/cases.json``, launches every kernel of ``FOLDER/<number>/`` as asked, and
writes ``FOLDER/results.json``: for each case a list of problems, empty where all launches agree with the fp64 meaning.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coda_agent.compiler import Description, generate
from coda_agent.sandbox import EXTENTS, Operand, Output, Signature, parse

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launch:
    """One launch: sizes, dtype, layouts of A and W (``row``, ``column`` or ``odd`` strides), and a configuration."""

    m: int = 40
    n: int = 34
    k: int = 20
    dtype: str = "float32"
    a: str = "row"
    w: str = "row"
    config: dict[str, Any] = field(default_factory=dict)
    indices: tuple[int, int] = (0, 0)  # added to the range [0, n) that integer operands are drawn from


@dataclass(frozen=True)
class Case:
    """One kernel. Operands are ``name: (extent, element)``, outputs ``name: (extent, reduction, optional)``."""

    id: str
    source: str
    operands: dict[str, tuple[str, str]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, str | None, bool]] = field(default_factory=lambda: {"y": ("Tile", None, False)})
    name: str = "target"
    doc: str = "A target."
    launches: tuple[Launch, ...] = (Launch(),)

    @property
    def signature(self) -> Signature:
        return signature_of(self.operands, self.outputs)

    def generate(self) -> str:
        return generate(parse(self.source, self.signature), Description(self.name, self.doc))


def signature_of(operands: dict[str, Any], outputs: dict[str, Any]) -> Signature:
    return Signature(
        {name: Operand(EXTENTS[extent], element) for name, (extent, element) in operands.items()},
        {name: Output(EXTENTS[extent], reduction, optional) for name, (extent, reduction, optional) in outputs.items()},
    )


def run(cases: list[Case], folder: Path) -> dict[str, list[str]]:
    """Generate and launch every case; problems by case."""
    for number, case in enumerate(cases):
        (folder / str(number)).mkdir()
        (folder / str(number) / "kernel.py").write_text(case.generate(), encoding="utf-8")
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases]), encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, list[str]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results


def _main(folder: Path) -> None:
    import torch

    from kernel_library.runtime import load

    torch.set_num_threads(1)
    results = {}
    for index, case in enumerate(json.loads((folder / "cases.json").read_text(encoding="utf-8"))):
        problems: list[str] = []
        for number, launch in enumerate(case["launches"]):
            try:
                problems += [f"launch {number}: {text}" for text in _launch(load(folder / str(index)), case, launch)]
            except Exception:
                problems.append(f"launch {number} raised: {traceback.format_exc(limit=-3)}")
        results[case["id"]] = problems
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def _launch(kernel: Any, case: dict[str, Any], launch: dict[str, Any]) -> list[str]:
    import torch

    from coda_agent.sandbox.evaluator import evaluate
    from kernel_library.runtime import Config

    epilogue = parse(case["source"], signature_of(case["operands"], case["outputs"]))
    m, n, k, dtype = launch["m"], launch["n"], launch["k"], getattr(torch, launch["dtype"])
    generator = torch.Generator().manual_seed(m * 1000003 + n * 1009 + k)

    def matrix(rows: int, columns: int, layout: str = "row") -> torch.Tensor:
        value = torch.randn(rows, columns, generator=generator).to(dtype)
        if layout == "column":
            return value.T.contiguous().T
        if layout == "odd":
            wide = torch.full((rows, 2 * columns + 3), float("nan"), dtype=dtype)
            wide[:, 1 : 1 + 2 * columns : 2] = value
            return wide[:, 1 : 1 + 2 * columns : 2]
        return value

    a, w = matrix(m, k, launch["a"]), matrix(n, k, launch["w"])
    low, high = launch["indices"]
    shapes = {"Tile": (m, n), "HalfTile": (m, n // 2), "PairTile": (m, 2 * n), "RowVector": (n,), "ColVector": (m,)}
    operands: dict[str, Any] = {}
    for name, (extent, element) in case["operands"].items():
        if extent == "Scalar":
            operands[name] = 3 if element == "int" else 0.75
        elif element == "int":
            operands[name] = torch.randint(low, max(n + high, low + 1), shapes[extent], generator=generator)
        else:
            operands[name] = torch.randn(shapes[extent], generator=generator).to(dtype)
    tiles = {name: extent for name, (extent, reduction, _) in case["outputs"].items() if reduction is None}
    out = {name: torch.full(shapes[extent], float("nan"), dtype=dtype) for name, extent in tiles.items()}
    config = Config(**{"block_m": 32, "block_n": 32, "block_k": 32, "num_warps": 4, **launch["config"]})
    got = kernel.run(a, w, operands, config=config, out=out)
    plain = kernel.evaluate(a, w, operands)
    exact = {
        name: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for name, v in operands.items()
    }
    expected = evaluate(epilogue, a.double() @ w.double().T, exact)
    tolerance = 2e-5 if dtype == torch.float32 else 4e-3
    problems = []
    for form, results in (("kernel", got), ("PyTorch form", plain)):
        for name, want in expected.items():
            have = results[name].double()
            if have.shape != want.shape:
                problems.append(f"{form}: {name} has shape {tuple(have.shape)}, not {tuple(want.shape)}")
                continue
            unequal = ~torch.isclose(have, want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
            scale = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 1.0
            unequal &= ~((have - want).abs() <= tolerance * scale)
            if unequal.any():
                index = tuple(unequal.nonzero()[0].tolist())
                problems.append(
                    f"{form}: {name}{list(index)} is {have[index].item():.6g}, not {want[index].item():.6g}"
                )
    return problems


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
