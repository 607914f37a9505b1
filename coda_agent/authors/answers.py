"""Finding the epilogue in what a model said."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass

from coda_agent.sandbox.parser import FUNCTION_NAME

_DEFINITION = re.compile(rf"^[ \t]*def[ \t]+{FUNCTION_NAME}\b", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n`]*$", re.MULTILINE)
_TAG = re.compile(r"<(?P<close>/?)(?:think|thinking|thought|reasoning|seed:think)>", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """The text of an epilogue, or why there is none. ``complete`` is False where its code block was never closed."""

    source: str = ""
    problem: str = ""
    complete: bool = True


def find(text: str) -> Found:
    """The epilogue in an answer: the last code block that defines one, or the definition alone where none is fenced."""
    said = without_thinking(text)
    if not said.strip():
        return Found(problem="the answer is empty" if not text.strip() else "the answer is nothing but thinking")
    blocks = _blocks(said)
    defining = [(block, closed) for block, closed in blocks if _DEFINITION.search(block)]
    if defining:
        # Drafts come first; of equals the last is meant. A block that does not parse is taken only where none does.
        block, closed = next((item for item in reversed(defining) if _parses(item[0])), defining[-1])
        return Found(_dedented(block), complete=closed)
    if _DEFINITION.search(said):
        return Found(_unfenced(said))
    if blocks:
        return Found(problem=f"no code block of the answer defines `{FUNCTION_NAME}`")
    return Found(problem="the answer has no code block")


def without_thinking(text: str) -> str:
    """``text`` without what a reasoning model thought aloud in tags, closed or not."""
    kept: list[str] = []
    start = depth = 0
    for tag in _TAG.finditer(text):
        if depth == 0 and tag["close"]:
            kept = []  # the model's template opened the thinking in the prompt
        elif depth == 0:
            kept.append(text[start : tag.start()])
        depth = max(0, depth + (-1 if tag["close"] else 1))
        start = tag.end()
    return "".join(kept) + ("" if depth else text[start:])


def _blocks(text: str) -> list[tuple[str, bool]]:
    """The contents of the fenced blocks of Markdown, and whether each is closed."""
    blocks: list[tuple[str, bool]] = []
    start, fence = None, ""
    for match in _FENCE.finditer(text):
        mark = match["fence"]
        if start is None:
            start, fence = match.end() + 1, mark
        elif mark[0] == fence[0] and len(mark) >= len(fence) and match[0].strip() == mark:
            blocks.append((text[start : match.start()], True))
            start = None
    if start is not None:
        blocks.append((text[start:], False))
    return blocks


def _unfenced(text: str) -> str:
    """From the last definition on, the lines that belong to it."""
    lines = text[list(_DEFINITION.finditer(text))[-1].start() :].splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    kept = [lines[0]]
    for line in lines[1:]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent and not line.lstrip().startswith((")", "#")):
            break
        kept.append(line)
    return _dedented("\n".join(kept))


def _dedented(block: str) -> str:
    return textwrap.dedent(block.expandtabs(4)).strip("\n") + "\n"


def _parses(block: str) -> bool:
    try:
        ast.parse(_dedented(block))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
