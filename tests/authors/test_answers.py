"""Finding the epilogue in whatever a model says."""

from __future__ import annotations

import time

import pytest

from coda_agent.authors.answers import find, without_thinking

CODE = "def epilogue(acc):\n    store(y, acc)\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{CODE}```",
        f"Sure!\n\n```py\n{CODE}```\nDone.",
        f"```\n{CODE}```",
        f"~~~python\n{CODE}~~~",
        f"````python\n{CODE}````",
        f"   ```python\n   {CODE.replace(chr(10) + '    ', chr(10) + '       ')}   ```",
        CODE,
        f"The answer is:\n\n{CODE}\nThis stores acc.",
        f"```python\ndef helper(x):\n    return x\n```\n```python\n{CODE}```\n```bash\nls\n```",
        f"```python\ndef epilogue(acc):\n    store(y, 1\n```\nBetter:\n```python\n{CODE}```",
        f"<think>```python\ndef epilogue(acc):\n    wrong()\n```</think>\n```python\n{CODE}```",
        f"I think about it</think>\n```python\n{CODE}```",
        f"<think>a</think>```python\nx\n```<think>b <think>c</think></think>\n```python\n{CODE}```",
        f"```python\n{CODE}",
        f"```python\r\n{CODE}```".replace("\n", "\r\n"),
        f"```python title=epilogue.py\n{CODE}```",
    ],
)
def test_the_epilogue_is_found(answer: str) -> None:
    assert find(answer.replace("\r\n", "\n")).source == CODE


def test_of_several_the_last_that_parses_is_taken() -> None:
    second = CODE.replace("acc)\n    store", "acc, b)\n    store")
    assert find(f"```\n{CODE}```\n```\n{second}```").source == second
    assert find(f"```\n{CODE}```\n```\ndef epilogue(acc:\n```").source == CODE


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<think>hmm</think>", "nothing but thinking"),
        ("<think>hmm, never closed", "nothing but thinking"),
        ("I cannot help with that.", "no code block"),
        ("```python\nprint(1)\n```", "defines `epilogue`"),
    ],
)
def test_what_is_missing_is_named(answer: str, words: str) -> None:
    found = find(answer)
    assert found.source == ""
    assert words in found.problem


def test_an_unclosed_block_is_incomplete() -> None:
    assert not find(f"```python\n{CODE}").complete
    assert find(f"```python\n{CODE}```").complete


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "```\n", "def epilogue(", "~~~", "`", "<think></think>", "    def epilogue\n"]
)
def test_long_answers_take_no_time(piece: str) -> None:
    began = time.monotonic()
    find(piece * (300_000 // len(piece)))
    without_thinking(piece * (300_000 // len(piece)))
    assert time.monotonic() - began < 5
