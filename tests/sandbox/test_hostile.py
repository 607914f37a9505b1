"""Sources that mean harm, or none at all: each is refused with a diagnostic, fast, and never runs."""

from __future__ import annotations

import sys
import time

import pytest
from sandbox_programs import HEAD, SIGNATURE, program, refused

import coda_agent.sandbox.parser as parser
from coda_agent.sandbox import Signature, parse


def _store(expression: str) -> str:
    return program(f"store(y, {expression})")


EXPRESSIONS = {
    "import call": "__import__('os').system('touch /tmp/never')",
    "attribute": "acc.data",
    "attribute walk": "acc.__class__.__mro__[1].__subclasses__()",
    "dunder name": "__builtins__",
    "dunder call": "__import__('os')",
    "eval": "eval('1')",
    "exec": "exec('1')",
    "open": "open('/etc/passwd')",
    "getattr": "getattr(acc, 'data')",
    "globals": "globals()",
    "type": "type(acc)",
    "print": "print(acc)",
    "lambda": "(lambda: acc)()",
    "comprehension": "[acc for q in acc][0]",
    "generator": "sum(acc for q in acc)",
    "set": "{acc}",
    "dict": "{'a': acc}",
    "dict comprehension": "{q: q for q in acc}",
    "f-string": "f'{acc}'",
    "string": "'acc'",
    "bytes": "b'acc'",
    "walrus": "(q := acc)",
    "conditional": "acc if acc else acc",
    "slice": "acc[:, 0::2]",
    "starred": "exp(*[acc])",
    "keywords": "exp(**{})",
    "call of a call": "exp(acc)(acc)",
    "call of a subscript": "[exp][0](acc)",
    "method": "acc.sum()",
    "module": "tl.exp(acc)",
    "torch": "torch.exp(acc)",
    "device function": "store_tile(acc)",
    "matmul": "acc @ acc",
    "xor": "acc ^ acc",
    "ellipsis": "...",
    "complex": "1j",
    "huge integer": "9" * 4000,
    "integer past Python's limit": "9" * 10000,
    "hexadecimal": "0x" + "f" * 30000,
    "huge exponent": "1e999999999",
    "huge power": "9 ** 9 ** 9 ** 9",
    "shift": "1 << 999999999",
    "repetition": "'a' * 999999999",
    "full-width name": "ｅｘｐ(acc)",
    "full-width accumulator": "ａｃｃ",
    "mathematical letters": "𝑒𝑥𝑝(acc)",
    "ligature": "ﬁnd(acc)",
    "cyrillic a": "аcc",
    "greek": "α",
    "turkish": "ıncrease",
    "combining": "acc\u0301",
    "invisible": "acc\u200b",
    "right to left": "acc\u202e",
    "quoted newline": "'\\n'",
    "await": "await acc",
    "yield": "(yield acc)",
    "yield from": "(yield from acc)",
    "parentheses": "(" * 10000 + "acc" + ")" * 10000,
    "calls": "exp(" * 3000 + "acc" + ")" * 3000,
    "brackets": "[" * 100 + "acc" + "]" * 100,
    "minus": "-" * 30000 + "acc",
    "tilde": "~" * 30000 + "acc",
    "not": "not " * 7000 + "acc",
    "attributes": "acc" + ".a" * 15000,
    "sum": "acc" + "+acc" * 8000,
    "short sum": "acc" + "+acc" * 400,
    "powers": "acc" + "**2" * 8000,
    "subscripts": "acc" + "[0]" * 8000,
    "calls in a row": "acc" + "()" * 8000,
    "comparisons": "acc" + "<acc" * 6000,
    "ands": "acc" + " and acc" * 3000,
    "lambdas": "lambda: " * 3000 + "acc",
    "conditionals": "acc if acc else " * 1500 + "acc",
    "many arguments": f"exp({'acc,' * 7000})",
}

STATEMENTS = {
    "import": "import os",
    "import from": "from os import system",
    "star import": "from os import *",
    "while": "while True: pass",
    "for": "for q in acc: pass",
    "if": "if acc: pass",
    "with": "with acc: pass",
    "try": "try: pass\n    except: pass",
    "raise": "raise SystemExit",
    "assert": "assert acc",
    "del": "del acc",
    "global": "global acc",
    "nonlocal": "nonlocal acc",
    "class": "class A: pass",
    "nested function": "def inner(): pass",
    "async function": "async def inner(): pass",
    "return": "return",
    "pass": "pass",
    "match": "match acc:\n        case 1: pass",
    "annotation": "x: int = 3",
    "attribute assignment": "acc.x = 1",
    "subscript assignment": "acc[0] = 1",
    "dunder assignment": "__builtins__ = acc",
    "store assignment": "store = acc",
    "lone name": "acc",
    "lone string": "store(y, acc)\n    'text'",
    "nested unpacking": "(a, (b, d)) = even_odd(acc)",
    "type alias": "type A = int" if sys.version_info >= (3, 12) else "import os",
}

SOURCES: dict[str, str | bytes] = {
    "empty": "",
    "empty bytes": b"",
    "spaces": "   \n\t\n",
    "comments only": "# nothing\n# here\n",
    "docstring only": '"""Nothing."""\n',
    "prose": "Here is the epilogue you asked for:",
    "markdown": "```python\n" + _store("acc") + "```\n",
    "expression": "acc",
    "null byte": _store("acc") + "\0",
    "null byte in a name": _store("ac\0c").encode(),
    "not UTF-8": b"\xff\xfe\x00",
    "latin-1": _store("acc").encode() + b"# caf\xe9\n",
    "UTF-16": _store("acc").encode("utf-16"),
    "UTF-32": _store("acc").encode("utf-32"),
    "coding cookie": b"# -*- coding: rot13 -*-\nvzcbeg bf\n",
    "lone surrogate": _store("acc") + "# \ud800",
    "two marks": "\ufeff\ufeff" + _store("acc"),
    "megabyte": "x = 1\n" * 170000,
    "megabyte of bytes": b"\xff" * 2**20,
    "no newline in 1 MB": "a" * 2**20,
    "two functions": _store("acc") + _store("acc"),
    "function after import": "import os\n" + _store("acc"),
    "code after the function": _store("acc") + "epilogue(1)\n",
    "nested definition": f"{HEAD}    def epilogue(acc):\n        store(y, acc)\n",
    "class": f"class A:\n    {HEAD}        store(y, acc)\n",
    "lambda": "epilogue = lambda acc: acc\n",
    "async": f"async {HEAD}    store(y, acc)\n",
    "decorator": "@__import__('os').system\n" + _store("acc"),
    "default runs at definition": "def epilogue(acc, r=__import__('os').system('true')):\n    store(y, acc)\n",
    "annotation runs at definition": "def epilogue(acc: __import__('os').system('true')):\n    store(y, acc)\n",
    "deep annotation": f"def epilogue(acc: a{'.a' * 1500}):\n    store(y, acc)\n",
    "long annotation": f"def epilogue(acc: {'-' * 900}a):\n    store(y, acc)\n",
    "return annotation": "def epilogue(acc) -> __import__('os'):\n    store(y, acc)\n",
    "type parameter": "def epilogue[T: __import__('os')](acc):\n    store(y, acc)\n",
    "variadic": "def epilogue(*acc):\n    store(y, acc)\n",
    "no parameters": "def epilogue():\n    store(y, 1.0)\n",
    "wrong operand": "def epilogue(acc, weight):\n    store(y, acc)\n",
    "look-alike parameter": "def epilogue(acc, ｒ):\n    store(y, acc * load_col(r))\n",
    "look-alike function": "def ｅpilogue(acc):\n    store(y, acc)\n",
    "inconsistent tabs": "def epilogue(acc):\n\tx = acc\n        store(y, x)\n",
    "bad indent": "def epilogue(acc):\nstore(y, acc)\n",
    "unclosed": "def epilogue(acc):\n    store(y, (acc\n",
    "unclosed string": "def epilogue(acc):\n    store(y, '''acc\n",
    "indents": "".join("  " * i + "if acc:\n" for i in range(120)),
    "backslashes": "\\\n" * 15000,
    "semicolons": "def epilogue(acc): " + "acc;" * 8000,
    "many functions": "def f(): pass\n" * 2000,
    "many parameters": f"def epilogue({','.join(f'a{i}' for i in range(4000))}): pass\n",
    "many errors": HEAD + "    q = foo(acc)\n" * 1500,
    "long name": program(f"{'a' * 30000} = acc", "store(y, acc)"),
    "many targets": program(" = ".join("abcdefgh"[i % 8] for i in range(7000)) + " = acc"),
    "form feed in a string": program("store(y, '\f')"),
}

CORPUS = {
    **{f"expression: {name}": _store(text) for name, text in EXPRESSIONS.items()},
    **{f"statement: {name}": program(text, "store(y, acc)") for name, text in STATEMENTS.items()},
    **{f"source: {name}": source for name, source in SOURCES.items()},
}


@pytest.mark.parametrize("name", CORPUS)
def test_refused_quickly_with_a_diagnostic(name: str) -> None:
    started = time.perf_counter()
    found = refused(CORPUS[name])
    assert time.perf_counter() - started < 1.0
    assert all("\0" not in str(d) for d in found)


@pytest.mark.parametrize(
    "name", ["expression: minus", "expression: sum", "source: deep annotation", "expression: calls"]
)
def test_refused_from_a_deep_stack_too(name: str) -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            refused(CORPUS[name])

    deeper(700)


@pytest.mark.parametrize(
    "source",
    [
        program("store(y, acc)").replace("\n", "\r\n"),
        program("store(y, acc)").replace("\n", "\r"),
        "\f" + program("store(y, acc)"),
        "\ufeff" + program("store(y, acc)"),
        program("store(y, acc)  # gemütlich, 数学"),
        program('"""ｅｘｐ in a docstring."""', "store(y, acc)"),
        program("store(y, acc)").replace("    ", "\t"),
        program("store(y, acc)").rstrip("\n"),
        "# -*- coding: latin-1 -*-\n" + program("store(y, acc)"),
    ],
)
def test_unusual_but_plain_files_are_accepted(source: str) -> None:
    assert parse(source, SIGNATURE).digest == parse(source.encode(), SIGNATURE).digest


def test_nothing_is_compiled_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("the sandbox ran or compiled something")

    real = compile

    def parse_only(source: object, filename: str, mode: str, flags: int = 0, *args: object, **kwargs: object) -> object:
        assert flags & 0x400, "compiled to code"  # ast.PyCF_ONLY_AST
        return real(source, filename, mode, flags, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "compile", parse_only)
    monkeypatch.setattr(builtins, "eval", never)
    monkeypatch.setattr(builtins, "exec", never)
    for source in CORPUS.values():
        refused(source)


def test_an_operator_without_operands_says_so() -> None:
    (found,) = refused("def epilogue(acc, r):\n    store(y, acc)\n", Signature({}, SIGNATURE.outputs))
    assert "the only parameter is acc" in found.hint


def test_the_limits_are_those_of_the_documentation() -> None:
    assert (parser.MAX_SOURCE, parser.MAX_OPERATIONS, parser.MAX_DEPTH) == (32 * 1024, 512, 48)
