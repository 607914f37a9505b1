"""Epilogue → ``kernel.py``: the fixed mainloop with this epilogue inside it, in Triton and in plain PyTorch."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from ..sandbox.ir import Epilogue, Store
from ..sandbox.types import COL_VECTOR, FULL, HALF, PAIR, SCALAR, Operand
from .printer import DEVICE_FUNCTIONS, Printer

_WIDTHS = {
    HALF: ("col // 2", "N // 2", "BLOCK_N // 2"),
    FULL: ("col", "N", "BLOCK_N"),
    PAIR: ("col * 2", "N * 2", "BLOCK_N * 2"),
}
_LINE = 120


@dataclass(frozen=True)
class Description:
    """What the generated file says of its operator: name, documentation, defaults of scalar operands."""

    name: str
    doc: str = ""
    defaults: Mapping[str, float | int] | None = None


def generate(epilogue: Epilogue, description: Description) -> str:
    """The text of ``kernel.py`` for a checked epilogue."""
    triton, torch = _triton_form(epilogue), _torch_form(epilogue)
    if description.name in triton["device_functions"]:
        # The file defines a function of that name, so the device function is imported under another.
        alias = f"{description.name}_map"
        triton["epilogue_body"] = [
            re.sub(rf"\b{description.name}\(", f"{alias}(", line) for line in triton["epilogue_body"]
        ]
        triton["device_functions"] = [
            f"{f} as {alias}" if f == description.name else f for f in triton["device_functions"]
        ]
    context: dict[str, Any] = {
        **triton,
        **torch,
        **_interface(epilogue, description),
        "name": description.name,
        "doc": description.doc.strip() or description.name,
        "digest": epilogue.digest,
    }
    text = _template().render(context)
    return re.sub(r"\n{4,}", "\n\n\n", text).rstrip() + "\n"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("coda_agent.compiler"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["call"] = _call
    environment.filters["wrap"] = _wrap
    environment.filters["imports"] = _imports
    environment.filters["docstring"] = _docstring
    environment.filters["indent_text"] = lambda text, by: textwrap.indent(text, " " * by).lstrip()
    return environment.get_template("kernel.py.j2")


def _docstring(text: str) -> str:
    """Text that stands between triple quotes whatever it holds."""
    text = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f"{text} " if text.endswith('"') else text


def _imports(head: str, names: Sequence[str]) -> str:
    renamed = [f"{head}{name}\n" for name in names if " as " in name]
    names = [name for name in names if " as " not in name]
    head = "".join(renamed) + head
    line = head + ", ".join(names)
    return (
        line
        if len(line.splitlines()[-1]) <= _LINE
        else "\n".join([f"{head}(", *(f"    {name}," for name in names), ")"])
    )


# --- Layout: lines of at most _LINE characters --------------------------------------------------------------------------

# Where an expression is broken, outermost first.
_BREAKS = tuple(f" {symbol} " for symbol in ("<", "<=", ">", ">=", "==", "!=", "|", "&", "+", "-", "*", "/", "//", "%"))


def _call(head: str, arguments: Sequence[str], indent: int = 0, tail: str = ")") -> str:
    """``head`` + arguments + ``tail`` on one line, or with the arguments on lines of their own, one level deeper."""
    line = f"{head}{', '.join(arguments)}{tail}"
    if indent + len(line) <= _LINE:
        return line
    pad = " " * indent
    return "\n".join([head, *(f"{pad}    {text}" for text in _fill(arguments, indent + 4)), pad + tail])


def _wrap(statement: str, indent: int = 4) -> str:
    """Break a statement that is too long inside its brackets, adding a pair where there is none."""
    lead = len(statement) - len(statement.lstrip())
    indent, text = indent + lead, statement.lstrip()
    if indent + len(text) <= _LINE:
        return statement
    head, expression = "", text
    if text.startswith("return "):
        head, expression = "return ", text.removeprefix("return ")
    elif " = " in text:
        head, _, expression = text.partition(" = ")
        head += " = "
    parts = _split(expression, ",")
    if len(parts) > 1:
        lines = ["(", *(f"    {line}" for line in _fill(parts, indent + 4)), ")"]
    elif _bracket(expression) is not None:
        lines = _layout(expression, indent)
    else:
        lines = ["(", *(f"    {line}" for line in _layout(expression, indent + 4)), ")"]
    return " " * lead + f"\n{' ' * indent}".join([head + lines[0], *lines[1:]])


def _fill(arguments: Sequence[str], indent: int) -> list[str]:
    """Arguments packed into lines, each followed by a comma; one that is too long is broken on lines of its own."""
    lines = [""]
    for argument in arguments:
        if indent + len(argument) + 1 > _LINE:
            broken = _layout(argument, indent)
            lines += [*broken[:-1], f"{broken[-1]},", ""]
        elif indent + len(lines[-1]) + len(argument) + 2 > _LINE:
            lines.append(f"{argument},")
        else:
            lines[-1] += f"{' ' * bool(lines[-1])}{argument},"
    return [line for line in lines if line]


def _layout(expression: str, indent: int) -> list[str]:
    """Lines of an expression that stands inside brackets, relative to ``indent``."""
    if indent + len(expression) + 1 <= _LINE:
        return [expression]
    for symbol in _BREAKS:
        terms = _split(expression, symbol)
        if len(terms) > 1:
            lines = _layout(terms[0], indent)
            for term in terms[1:]:
                first, *rest = _layout(term, indent + len(symbol) - 1)
                lines += [symbol.lstrip() + first, *rest]
            return lines
    opening = _bracket(expression)
    if opening is None:
        return [expression]
    inner = _split(expression[opening + 1 : -1], ",")
    # A trailing comma would turn brackets around one expression into a tuple.
    several = len(inner) > 1 or expression[-2] == ","
    body = _fill(inner, indent + 4) if several else _layout(inner[0], indent + 4)
    return [expression[: opening + 1], *(f"    {line}" for line in body), expression[-1]]


def _bracket(text: str) -> int | None:
    """Where the bracket opens that closes at the end of the text, if the text is a call or a bracketed expression."""
    opening = next((position for position, character in enumerate(text) if character in "([{"), None)
    if opening is None or " " in text[:opening]:
        return None
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return opening if position == len(text) - 1 else None
    return None


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that stand outside every bracket."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and position >= start and text.startswith(separator, position):
            parts.append(text[start:position])
            start = position + len(separator)
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


# --- The Triton form -------------------------------------------------------------------------------------------------


def _triton_form(epilogue: Epilogue) -> dict[str, Any]:
    printer = Printer(epilogue, "triton")
    body: list[str] = []
    states: list[dict[str, str]] = []
    partials: list[dict[str, str]] = []
    for item in printer.statements():
        body += [item] if isinstance(item, str) else _triton_store(printer, item, states, partials)
    prelude = []
    if "rows" in printer.indices:
        prelude.append("rows = row + tl.arange(0, BLOCK_M)")
    for columns, name in ((FULL, "cols"), (HALF, "half_cols"), (PAIR, "pair_cols")):
        if name in printer.indices:
            start, _, block = _WIDTHS[columns]
            prelude.append(f"{name} = {start} + tl.arange(0, {block})")
    loaded = set(epilogue.loads)
    operands = [(name, operand) for name, operand in epilogue.signature.operands.items() if name in loaded]
    outputs = epilogue.signature.outputs
    pointers: list[str] = []
    strides: list[str] = []
    scalars: list[str] = []
    for name, operand in operands:
        if operand.extent == SCALAR:
            scalars.append(f"{name}_value")
        else:
            pointers.append(f"{name}_ptr")
            strides += [f"{name}_stride"] if operand.extent.is_tile else []
    # Tiles first, those loaded before those stored: the ping-pong mainloop has descriptors of its own for them.
    tiles = [f"{name}_ptr" for name, operand in operands if operand.extent.is_tile]
    tiles += [f"{name}_ptr" for name, output in outputs.items() if not output.reduction]
    vectors = [f"{name}_ptr" for name, operand in operands if not operand.extent.is_tile and operand.extent != SCALAR]
    for name, output in outputs.items():
        pointer = f"{name}_partial" if output.reduction else f"{name}_ptr"
        pointers.append(pointer)
        if not output.reduction:
            strides.append(f"{name}_stride")
        if output.reduction and output.extent != COL_VECTOR:
            vectors.append(pointer)
    flags = [f"STORE_{name.upper()}" for name, output in outputs.items() if output.optional]
    if any(operand.extent.is_tile for _, operand in operands):
        flags.append("TMA_LOADS")
    if any(not output.reduction for output in outputs.values()):
        flags.append("TMA_STORES")
    in_flags = [f for f in flags if not (f.startswith("STORE_") and _only_carried(epilogue, f))]
    finish_flags = [f"STORE_{partial['output'].upper()}" for partial in partials if partial["optional"]]
    text = "\n".join(body + prelude + [s["finish"] for s in partials] + [s["initial"] for s in states])
    names = [s["name"] for s in states]
    shared = [*tiles, *vectors, *strides, *scalars]
    used = {name for name in DEVICE_FUNCTIONS if re.search(rf"\b{name}\(", text)}
    used |= {"load_operand", "split_columns", "tile_coordinates"}
    used |= {"store_partial"} if partials else set()
    return {
        "epilogue_body": prelude + body,
        "epilogue_parameters": ["acc", *names, "row", "col", "M", "N", *shared, "BLOCK_M: tl.constexpr", "BLOCK_N: tl.constexpr", *(f"{f}: tl.constexpr" for f in in_flags)],
        "epilogue_passed": ["M", "N", *shared, "BLOCK_M"],
        "epilogue_flags": in_flags,
        "states": states,
        "state_names": names,
        "states_tuple": _tuple(names),
        "initials_tuple": _tuple([state["initial"] for state in states]),
        "finish_pointers": [f"{partial['output']}_partial" for partial in partials],
        "finish_flags": finish_flags,
        "finish_flags_annotated": [f"{flag}: tl.constexpr" for flag in finish_flags],
        "partials": partials,
        "gemm_parameters": ["A", "W", *pointers, "stride_am", "stride_ak", "stride_wn", "stride_wk", *strides, *scalars, "M", "N", "K"],
        "gemm_flags": [f"{f}: tl.constexpr" for f in flags],
        "flags_annotated": [f"{f}: tl.constexpr" for f in in_flags],
        "device_functions": sorted(used),
        "infinity": "INFINITY" in text,
    }  # fmt: skip


def _tuple(texts: Sequence[str]) -> str:
    """A tuple as it is returned and assigned: in brackets where there is one item, so that its comma is seen."""
    return ", ".join(texts) if len(texts) != 1 else f"({texts[0]},)"


def _only_carried(epilogue: Epilogue, flag: str) -> bool:
    """Whether a STORE flag guards an output that the mainloop, not the epilogue, writes."""
    name = next(name for name in epilogue.signature.outputs if f"STORE_{name.upper()}" == flag)
    output = epilogue.signature.outputs[name]
    return output.reduction is not None and output.extent == COL_VECTOR


def _triton_store(
    printer: Printer, store: Store, states: list[dict[str, str]], partials: list[dict[str, str]]
) -> list[str]:
    output = printer.epilogue.signature.outputs[store.output]
    value = store.value
    columns = output.extent.columns
    if value.primitive is not None and value.primitive.carry is not None:
        carry = value.primitive.carry
        names = printer.state_names(store.output)
        arguments = [printer.expression(argument) for argument in value.args]
        slots = {f"s{i}": name for i, name in enumerate(names)}
        context = printer._context(value, carry.update)
        for name, initial in zip(names, carry.initial, strict=True):
            states.append({"name": name, "initial": f"tl.full((BLOCK_M,), {initial}, tl.float32)"})
        partials.append(
            {"output": store.output, "optional": "1" if output.optional else "", "finish": carry.finish.format(**slots)}
        )
        return [f"{', '.join(names)} = {carry.update.format(*arguments, **slots, **context)}"]
    if output.reduction:
        text = printer.expression(value)
        index = {HALF: "half_cols", FULL: "cols", PAIR: "pair_cols"}[columns]
        printer.indices.add(index)
        line = f"store_partial({store.output}_partial, {text}, row // BLOCK_M, {index}, {_WIDTHS[columns][1]})"
    else:
        start, width, block = _WIDTHS[columns]
        text = printer.expression(value)
        line = f"store_tile({store.output}_ptr, {text}, row, {start}, M, {width}, {store.output}_stride, BLOCK_M, {block}, TMA_STORES)"
    if not output.optional:
        return [line]
    return [f"if STORE_{store.output.upper()}:", f"    {line}"]


# --- The PyTorch form ------------------------------------------------------------------------------------------------


def _torch_form(epilogue: Epilogue) -> dict[str, Any]:
    printer = Printer(epilogue, "torch")
    body: list[str] = []
    results: dict[str, str] = {}
    for item in printer.statements():
        if isinstance(item, str):
            body.append(item)
        else:
            results[item.output] = printer.expression(item.value)
    returns = ", ".join(results[name] for name in epilogue.signature.outputs)
    if len(results) == 1:
        returns += ","
        returns = f"({returns})"
    text = "\n".join([*body, returns])
    return {
        "torch_body": body,
        "torch_returns": returns,
        "torch_parameters": ["acc", *map(printer.operand_name, epilogue.signature.operands)],
        "uses_f": bool(re.search(r"\bF\.", text)),
        "uses_ops": bool(re.search(r"\bops\.", text)),
        "uses_torch": bool(re.search(r"\btorch\.", text)),
    }


# --- The function users call -----------------------------------------------------------------------------------------


def _interface(epilogue: Epilogue, description: Description) -> dict[str, Any]:
    signature = epilogue.signature
    defaults = description.defaults or {}
    parameters, documented = [], []
    for name, operand in signature.operands.items():
        kind = ("int" if operand.element == "int" else "float") if operand.extent == SCALAR else "Tensor"
        default = f" = {_number(defaults[name])}" if name in defaults else ""
        parameters.append(f"{name}: {kind}{default}")
        documented.append((name, _operand_doc(operand)))
    optional = [name for name, output in signature.outputs.items() if output.optional]
    returned = []
    for name, output in signature.outputs.items():
        what = {"sum": "sum over all", "max": "maximum over all", "logsumexp": "log-sum-exp over all"}.get(
            output.reduction or ""
        )
        axis = "columns" if output.extent == COL_VECTOR else "rows"
        text = f"{output.extent.shape}, {f'fp32, {what} {axis}' if what else 'dtype of x'}"
        returned.append((name, text + (f"; only with return_{name}=True" if output.optional else "")))
    always = [name for name, output in signature.outputs.items() if not output.optional]
    include = "[name for name, wanted in asked.items() if wanted]"
    if len(optional) == 1:
        include = f'("{optional[0]}",) if return_{optional[0]} else ()'
    # One tensor where one output results, else a named tuple; what results may depend on the flags.
    annotation = " | ".join(
        (["Tensor"] if len(always) == 1 else []) + (["tuple[Tensor, ...]"] if len(always) > 1 or optional else [])
    )
    return {
        "operands": [(name, str(operand.extent), operand.element) for name, operand in signature.operands.items()],
        "outputs": [(name, str(output.extent), output.reduction, output.optional) for name, output in signature.outputs.items()],
        "function_parameters": ["x: Tensor", "weight: Tensor", *parameters, *(["*"] if optional else []), *(f"return_{name}: bool = False" for name in optional)],
        "passed": ["x", "weight", *signature.operands, *([f"include={include}"] if optional else [])],
        "documented": documented,
        "returned": returned,
        "optional": optional,
        "asked": "{" + ", ".join(f'"{name}": return_{name}' for name in optional) + "}" if len(optional) > 1 else "",
        "annotation": annotation,
        "pairs": epilogue.pairs,
    }  # fmt: skip


def _number(value: float | int) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _operand_doc(operand: Operand) -> str:
    if operand.extent == SCALAR:
        return "a number"
    kind = "int64" if operand.element == "int" else "floating point"
    return f"{operand.extent.shape}, {kind}"
