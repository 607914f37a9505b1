"""What the tests of the language share: a signature with an operand of every kind, matching inputs, valid programs."""

from __future__ import annotations

from typing import Any

import torch

from coda_agent.sandbox import EXTENTS, Diagnostic, Epilogue, Operand, Output, SandboxError, Signature, parse

M, N = 5, 12

OPERANDS = {
    "c": Operand(EXTENTS["Tile"]),
    "h": Operand(EXTENTS["HalfTile"]),
    "p": Operand(EXTENTS["PairTile"]),
    "b": Operand(EXTENTS["RowVector"]),
    "r": Operand(EXTENTS["ColVector"]),
    "t": Operand(EXTENTS["ColVector"], "int"),
    "cap": Operand(EXTENTS["Scalar"]),
    "n": Operand(EXTENTS["Scalar"], "int"),
}
TILE_OUT = {"y": Output(EXTENTS["Tile"])}
SIGNATURE = Signature(OPERANDS, TILE_OUT)
HEAD = f"def epilogue(acc, {', '.join(OPERANDS)}):\n"


def inputs(seed: int = 0) -> tuple[torch.Tensor, dict[str, Any]]:
    """An accumulator and the operands, in fp64. Indices ``t`` are partly out of range."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    operands = {
        "c": draw(M, N),
        "h": draw(M, N // 2),
        "p": draw(M, 2 * N),
        "b": draw(N),
        "r": draw(M),
        "t": torch.tensor([0, 11, -1, 12, 3]),
        "cap": torch.tensor(0.75, dtype=torch.float64),
        "n": torch.tensor(3),
    }
    return 2 * draw(M, N), operands


def program(*lines: str) -> str:
    """A whole epilogue with every operand as a parameter."""
    return HEAD + "".join(f"    {line}\n" for line in lines)


def check(*lines: str, outputs: dict[str, Output] | None = None) -> Epilogue:
    return parse(program(*lines), Signature(OPERANDS, outputs or TILE_OUT))


def refused(source: str | bytes, signature: Signature = SIGNATURE) -> list[Diagnostic]:
    """The diagnostics of a program that must be refused."""
    found = errors(source, signature)
    assert found, f"accepted: {source[:200]!r}"
    for diagnostic in found:
        assert diagnostic.line >= 1
        assert diagnostic.column >= 1
        assert diagnostic.rule
        assert diagnostic.message
        assert len(str(diagnostic)) < 2000
    return found


def errors(source: str | bytes, signature: Signature = SIGNATURE) -> list[Diagnostic]:
    """What is wrong with a program; empty for a valid one. Any exception but SandboxError is let through."""
    try:
        parse(source, signature)
    except SandboxError as error:
        return error.diagnostics or [Diagnostic(0, 0, "", "refused without a diagnostic")]
    return []


VALID = (
    program("gate, up = even_odd(acc)", "store(y, interleave(silu(gate) * up, load_tile(h)))"),
    program("x = acc * load_col(r) + load_row(b)", "x += load_tile(c)", "store(y, where(x > 0, x, -x) ** 3)"),
    program('"""Documented."""', "hit = (col_index() == load_col(t)) & ~(acc < 0.5)", "store(y, where(hit, acc, 0.0))"),
    program("cap = load_scalar(cap)", "store(y, cap * tanh(acc / cap))  # capped"),
    program("g, u = even_odd(load_tile(p))", "store(y, maximum(g, minimum(u, inf)) - exp(-abs(acc)) / load_scalar(n))"),
)
