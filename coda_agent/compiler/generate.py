"""Epilogue → ``kernel.py``: the fixed mainloop with this epilogue inside it, in Triton and in plain PyTorch."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from ..sandbox.ir import Epilogue, Store
from ..sandbox.types import COL_VECTOR, FULL, HALF, PAIR, SCALAR, Operand
from .printer import Printer

#: Device functions of ``kernel_library.runtime.tile`` that an epilogue's text may call.
_DEVICE_FUNCTIONS = (
    "even_odd", "finish_logsumexp", "gelu", "gelu_tanh", "interleave", "load_col", "load_row", "load_tile", "maximum", "minimum",
    "relu", "sigmoid", "silu", "softplus", "square", "store_partial", "store_tile", "tanh", "update_logsumexp",
)  # fmt: skip

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
    environment.filters["indent_text"] = lambda text, by: textwrap.indent(text, " " * by).lstrip()
    return environment.get_template("kernel.py.j2")


def _call(head: str, arguments: Sequence[str], indent: int = 0, tail: str = ")") -> str:
    """``head`` + arguments + ``tail`` on one line, or with the arguments on lines of their own, one level deeper."""
    line = f"{head}{', '.join(arguments)}{tail}"
    if indent + len(line) <= _LINE:
        return line
    lines, pad = [""], " " * (indent + 4)
    for argument in arguments:
        if len(pad) + len(lines[-1]) + len(argument) + 2 > _LINE and lines[-1]:
            lines.append("")
        lines[-1] += f"{' ' * bool(lines[-1])}{argument},"
    return "\n".join([head, *(pad + text for text in lines), " " * indent + tail])


def _imports(head: str, names: Sequence[str]) -> str:
    line = head + ", ".join(names)
    return line if len(line) <= _LINE else _call(f"{head}(", names)


def _wrap(statement: str, indent: int = 4) -> str:
    """Break a statement that is too long at the arguments of its outermost call, or of the tuple it returns."""
    lead = len(statement) - len(statement.lstrip())
    if indent + len(statement) <= _LINE:
        return statement
    if statement.startswith("return ") and len(parts := _split_arguments(statement.removeprefix("return "))) > 1:
        return _call("return (", parts, indent + lead)
    opening = statement.find("(")
    if opening < 0 or not statement.endswith(")") or len(_split_arguments(statement[opening + 1 : -1])) < 2:
        return statement
    return _call(statement[: opening + 1], _split_arguments(statement[opening + 1 : -1]), indent + lead)


def _split_arguments(text: str) -> list[str]:
    """Split at the commas that stand outside every bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
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
    in_epilogue = list(pointers)
    for name, output in outputs.items():
        pointer = f"{name}_partial" if output.reduction else f"{name}_ptr"
        pointers.append(pointer)
        if not output.reduction:
            strides.append(f"{name}_stride")
        if not (output.reduction and output.extent == COL_VECTOR):
            in_epilogue.append(pointer)
    flags = [f"STORE_{name.upper()}" for name, output in outputs.items() if output.optional]
    if any(operand.extent.is_tile for _, operand in operands):
        flags.append("TMA_LOADS")
    if any(not output.reduction for output in outputs.values()):
        flags.append("TMA_STORES")
    in_flags = [f for f in flags if not (f.startswith("STORE_") and _only_carried(epilogue, f))]
    text = "\n".join(body + prelude + [s["finish"] for s in partials] + [s["initial"] for s in states])
    names = [s["name"] for s in states]
    shared = [*in_epilogue, *strides, *scalars]
    used = {name for name in _DEVICE_FUNCTIONS if re.search(rf"\b{name}\(", text)}
    used |= {"load_operand", "split_columns", "tile_coordinates"}
    used |= {"store_partial"} if partials else set()
    return {
        "epilogue_body": prelude + body,
        "epilogue_parameters": ["acc", *names, "row", "col", "M", "N", *shared, "BLOCK_M: tl.constexpr", "BLOCK_N: tl.constexpr", *(f"{f}: tl.constexpr" for f in in_flags)],
        "epilogue_passed": ["M", "N", *shared, "BLOCK_M"],
        "epilogue_flags": in_flags,
        "states": states,
        "state_names": names,
        "partials": partials,
        "gemm_parameters": ["A", "W", *pointers, "stride_am", "stride_ak", "stride_wn", "stride_wk", *strides, *scalars, "M", "N", "K"],
        "gemm_flags": [f"{f}: tl.constexpr" for f in flags],
        "flags_annotated": [f"{f}: tl.constexpr" for f in in_flags],
        "device_functions": sorted(used),
        "infinity": "INFINITY" in text,
    }  # fmt: skip


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
    if printer.sizes:
        body.insert(
            0,
            "M, N = acc.shape"
            if len(printer.sizes) == 2
            else f"{'M' if 'M' in printer.sizes else 'N'} = acc.shape[{0 if 'M' in printer.sizes else 1}]",
        )
    returns = ", ".join(results[name] for name in epilogue.signature.outputs)
    if len(results) == 1:
        returns += ","
        returns = f"({returns})"
    text = "\n".join([*body, returns])
    return {
        "torch_body": body,
        "torch_returns": returns,
        "torch_parameters": ["acc", *epilogue.signature.operands],
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
        default = f" = {defaults[name]!r}" if name in defaults else ""
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
    # One tensor where one output results, else a named tuple; what results may depend on the flags.
    annotation = " | ".join(
        (["Tensor"] if len(always) == 1 else []) + (["tuple[Tensor, ...]"] if len(always) > 1 or optional else [])
    )
    return {
        "operands": [(name, str(operand.extent), operand.element) for name, operand in signature.operands.items()],
        "outputs": [(name, str(output.extent), output.reduction, output.optional) for name, output in signature.outputs.items()],
        "function_parameters": ["x: Tensor", "weight: Tensor", *parameters, *(["*"] if optional else []), *(f"return_{name}: bool = False" for name in optional)],
        "passed": ["x", "weight", *signature.operands],
        "documented": documented,
        "returned": returned,
        "optional": optional,
        "include": f"('{optional[0]}',) if return_{optional[0]} else ()".replace("'", '"') if len(optional) == 1 else "(" + ", ".join(f'*(("{name}",) if return_{name} else ())' for name in optional) + ")",
        "annotation": annotation,
        "pairs": epilogue.pairs,
    }  # fmt: skip


def _operand_doc(operand: Operand) -> str:
    if operand.extent == SCALAR:
        return "a number"
    kind = "int64" if operand.element == "int" else "floating point"
    return f"{operand.extent.shape}, {kind}"
