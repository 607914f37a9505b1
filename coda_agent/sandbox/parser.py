"""Source text → checked program. An allow-list over Python's grammar: text is parsed, never executed.

Whatever the list does not name is refused. All errors are collected before :class:`SandboxError` is raised, so that
a person or a model can mend them in one go.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
import warnings
from collections.abc import Sequence

from .diagnostics import Diagnostic, SandboxError, nearest
from .ir import Assign, Epilogue, Location, Store, Value
from .primitives import CALLABLE, PRIMITIVES, RuleError, loader_for
from .types import SCALAR, TILE, Signature, Type, broadcast

MAX_SOURCE = 32 * 1024
MAX_OPERATIONS = 512
MAX_DEPTH = 48
FUNCTION_NAME = "epilogue"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_LARGEST = 3.4028234663852886e38
_LARGEST_INT = 2**31 - 1

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
}
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_FOLD = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}

#: What people reach for that the language spells differently.
_INSTEAD = {
    ast.IfExp: "use where(condition, a, b)",
    ast.BoolOp: "use & and | on comparisons in parentheses",
    ast.Attribute: "call primitives by name, as in exp(x); there are no modules, methods or attributes",
    ast.Subscript: "tiles are not indexed: even_odd(x) splits column pairs, pick(x, index) takes a column a row",
    ast.Lambda: "write the expression out",
    ast.Return: "write results with store(name, value)",
    ast.For: "there are no loops: the mainloop runs the epilogue once a tile",
    ast.While: "there are no loops: the mainloop runs the epilogue once a tile",
    ast.If: "use where(condition, a, b)",
    ast.Import: "there is nothing to import: primitives are in scope by name",
    ast.ImportFrom: "there is nothing to import: primitives are in scope by name",
    ast.AnnAssign: "assign without an annotation",
}


def parse(source: str | bytes, signature: Signature) -> Epilogue:
    """Check ``source`` against ``signature``; raise :class:`SandboxError` with every diagnostic found."""
    text = _decode(source)
    return _Checker(text, signature).run(_syntax_tree(text))


def _fail(rule: str, message: str, hint: str = "", line: int = 1, column: int = 1) -> SandboxError:
    return SandboxError([Diagnostic(line, column, rule, message, hint)])


def _decode(source: str | bytes) -> str:
    if len(source) > MAX_SOURCE:
        raise _fail(
            "too-long", f"the source has {len(source)} bytes; the limit is {MAX_SOURCE}", "an epilogue is a few lines"
        )
    if isinstance(source, bytes):
        try:
            source = source.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise _fail("not-utf8", f"byte {error.start} is not valid UTF-8", "save the file as UTF-8", line) from None
    source = source.removeprefix("\ufeff")
    if not source.strip():
        raise _fail("empty", "the source is empty", f"write one function: def {FUNCTION_NAME}(acc, ...):")
    return source


def _syntax_tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise _fail(
            "syntax", f"{error.msg}", "write plain Python syntax", error.lineno or 1, error.offset or 1
        ) from None
    except (ValueError, OverflowError) as error:
        raise _fail("syntax", f"the source cannot be read: {error}") from None
    except (RecursionError, MemoryError):
        raise _fail(
            "too-deep", "the source is nested too deeply to be read", f"the limit is {MAX_DEPTH} levels"
        ) from None


class _Checker:
    def __init__(self, text: str, signature: Signature) -> None:
        self.text = text
        self.signature = signature
        self.diagnostics: list[Diagnostic] = []
        self.operations = 0
        self.parameters: tuple[str, ...] = ()
        # A name bound to None had an error in its definition: uses of it stay silent.
        self.scope: dict[str, Value | None] = {}
        self.stored: dict[str, Location] = {}

    def error(self, node: ast.AST, rule: str, message: str, hint: str = "") -> None:
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0) + 1
        self.diagnostics.append(Diagnostic(line, column, rule, message, hint))

    def run(self, tree: ast.Module) -> Epilogue:
        function = self.function(tree)
        statements: list[Assign | Store] = []
        if function is not None:
            self.bind_parameters(function)
            for position, node in enumerate(function.body):
                statement = self.statement(node, position)
                if statement is not None:
                    statements.append(statement)
                if self.operations > MAX_OPERATIONS:
                    self.error(
                        node,
                        "too-many-operations",
                        f"the limit is {MAX_OPERATIONS} operations",
                        "share values by naming them",
                    )
                    break
            else:
                for name in self.signature.outputs:
                    if name not in self.stored:
                        self.error(
                            function, "missing-store", f"output '{name}' is never stored", f"add store({name}, value)"
                        )
        self.look_alikes()
        if self.diagnostics:
            raise SandboxError(self.diagnostics)
        return Epilogue(self.parameters, tuple(statements), self.signature, self.text)

    def function(self, tree: ast.Module) -> ast.FunctionDef | None:
        functions = []
        for position, node in enumerate(tree.body):
            if isinstance(node, ast.FunctionDef):
                functions.append(node)
            elif not (position == 0 and _is_docstring(node)):
                self.forbidden(node, "only one function may stand here")
        if not functions:
            if not self.diagnostics:
                self.error(tree, "no-function", "there is no function", f"write def {FUNCTION_NAME}(acc, ...):")
            return None
        for extra in functions[1:]:
            self.error(
                extra,
                "two-functions",
                f"'{extra.name}' is a second function; only one may stand here",
                "write its expressions out",
            )
        function = functions[0]
        if function.name != FUNCTION_NAME:
            self.error(
                function, "function-name", f"the function is called '{function.name}'", f"call it {FUNCTION_NAME}"
            )
        for decorator in function.decorator_list:
            self.error(decorator, "forbidden", "decorators are not allowed", "remove it")
        return function

    def look_alikes(self) -> None:
        """Refuse names written with letters that Python folds to ASCII, as a full-width exp: a reader sees another name."""
        if self.text.isascii():
            return
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.NAME and not token.string.isascii():
                line, column = token.start
                self.diagnostics.append(
                    Diagnostic(
                        line,
                        column + 1,
                        "name",
                        f"'{token.string[:40]}' has letters outside ASCII",
                        "write names in plain ASCII letters",
                    )
                )

    def bind_parameters(self, function: ast.FunctionDef) -> None:
        arguments = function.args
        if function.returns is not None:
            self.error(
                function.returns,
                "annotation",
                "the function returns nothing, so it has no return annotation",
                "remove it",
            )
        for parameter in getattr(function, "type_params", ()):
            self.error(parameter, "forbidden", "type parameters are not allowed", "remove them")
        for odd in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs):
            if odd is not None:
                self.error(
                    odd, "parameters", f"'{odd.arg}' must be a plain parameter", "list acc, then the operands by name"
                )
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self.error(
                    default, "parameters", "parameters have no defaults", "remove it: operands come from the caller"
                )
        operands = self.signature.operands
        names = []
        for position, argument in enumerate(arguments.args):
            if position == 0:
                if argument.arg != "acc":
                    self.error(
                        argument,
                        "parameters",
                        f"the first parameter is '{argument.arg}'",
                        "the first parameter is acc, the accumulator tile",
                    )
                self.annotation(argument, Type(TILE))
                continue
            if argument.arg not in operands:
                hint = (
                    nearest(argument.arg, operands)
                    if operands
                    else "this operator has no operands: the only parameter is acc"
                )
                self.error(argument, "unknown-operand", f"'{argument.arg}' is not an operand of this operator", hint)
            elif argument.arg in names:
                self.error(argument, "parameters", f"'{argument.arg}' is listed twice", "list each operand once")
            else:
                self.annotation(argument, operands[argument.arg].type)
                names.append(argument.arg)
        if not arguments.args:
            self.error(
                function, "parameters", "there is no parameter", "the first parameter is acc, the accumulator tile"
            )
        self.parameters = ("acc", *names)
        self.scope["acc"] = Value("acc", (), Type(TILE), Location(function.lineno, function.col_offset + 1))

    def annotation(self, argument: ast.arg, type_: Type) -> None:
        if argument.annotation is None:
            return
        text = (ast.get_source_segment(self.text, argument.annotation) or "").replace(" ", "")
        if text != str(type_):
            self.error(
                argument.annotation,
                "annotation",
                f"'{argument.arg}' is a {type_}, not a {text[:40]}",
                "correct or remove the annotation",
            )

    def statement(self, node: ast.stmt, position: int) -> Assign | Store | None:
        if isinstance(node, ast.Expr):
            if position == 0 and _is_docstring(node):
                return None
            if (
                isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
                and node.value.func.id == "store"
            ):
                return self.store(node.value)
            self.error(node, "statement", "a value is computed and thrown away", "assign it to a name or store it")
            return None
        if isinstance(node, ast.Assign):
            if len(node.targets) != 1:
                self.error(node, "statement", "chained assignment is not allowed", "use one assignment a line")
                return None
            return self.assign(node, node.targets[0], self.expression(node.value, 1))
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            left = self.name(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
            right = self.expression(node.value, 1)
            return self.assign(node, node.target, self.binary(node, node.op, left, right))
        self.forbidden(node, f"{_describe(node)} is not allowed in an epilogue")
        return None

    def assign(self, node: ast.stmt, target: ast.expr, value: Value | tuple[Value, ...] | None) -> Assign | None:
        elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names = []
        for element in elements:
            if not isinstance(element, ast.Name):
                self.error(element, "statement", f"cannot assign to {_describe(element)}", "assign to a plain name")
                return None
            if not _NAME.match(element.id):
                self.error(
                    element,
                    "name",
                    f"'{element.id[:40]}' cannot be used as a name",
                    "use lower-case ASCII letters, digits and _, starting with a letter, at most 40",
                )
            elif element.id in PRIMITIVES or element.id in ("acc", "store", "inf"):
                self.error(element, "name", f"'{element.id}' is taken by the language", "choose another name")
            names.append(element.id)
        values: tuple[Value | None, ...]
        if isinstance(value, tuple):
            if len(names) != len(value):
                self.error(
                    node,
                    "pair",
                    f"even_odd gives two values, but {len(names)} name{'s' * (len(names) > 1)} take{'s' * (len(names) == 1)} them",
                    "write even, odd = even_odd(x)",
                )
                values = (None,) * len(names)
            else:
                values = value
        elif len(names) > 1:
            if value is not None:
                self.error(
                    node,
                    "pair",
                    f"one value cannot be unpacked into {len(names)} names",
                    "only even_odd gives two values",
                )
            values = (None,) * len(names)
        else:
            values = (value,)
        self.scope.update(zip(names, values, strict=True))
        if any(v is None for v in values):
            return None
        return Assign(tuple(names), tuple(v for v in values if v is not None))

    def store(self, node: ast.Call) -> Store | None:
        if len(node.args) != 2 or node.keywords:
            self.error(node, "arguments", "store takes an output's name and a value", "write store(y, value)")
            return None
        target, expression = node.args
        value = self.single(expression, self.expression(expression, 1))
        if not isinstance(target, ast.Name):
            self.error(
                target,
                "unknown-output",
                "store takes the bare name of an output first",
                f"outputs: {', '.join(self.signature.outputs)}",
            )
            return None
        output = self.signature.outputs.get(target.id)
        if output is None:
            self.error(
                target,
                "unknown-output",
                f"'{target.id}' is not an output of this operator",
                nearest(target.id, self.signature.outputs),
            )
            return None
        if target.id in self.stored:
            self.error(
                node,
                "stored-twice",
                f"output '{target.id}' was stored on line {self.stored[target.id].line} already",
                "store each output once",
            )
            return None
        self.stored[target.id] = _location(node)
        if value is None:
            return None
        if value.type.element == "bool":
            self.error(
                expression,
                "type",
                f"output '{target.id}' takes numbers; got {value.type}",
                "use where(condition, 1.0, 0.0)",
            )
        elif value.type.partial != output.reduction or (output.reduction and value.type.extent != output.extent):
            self.error(
                expression,
                "type",
                f"output '{target.id}' is {output.type}; got {value.type}",
                _reduction_hint(output.type),
            )
        elif broadcast(value.type.extent, output.extent) != output.extent:
            self.error(
                expression,
                "type",
                f"output '{target.id}' is {output.type} {output.extent.shape}; got {value.type} {value.type.extent.shape}",
                "even_odd halves a width and interleave doubles it",
            )
        else:
            return Store(target.id, value)
        return None

    def expression(self, node: ast.expr, depth: int) -> Value | tuple[Value, ...] | None:
        if depth > MAX_DEPTH:
            self.error(node, "too-deep", f"expressions may be nested {MAX_DEPTH} levels", "name intermediate values")
            return None
        if isinstance(node, ast.Constant):
            return self.constant(node)
        if isinstance(node, ast.Name):
            return self.name(node)
        if isinstance(node, ast.BinOp):
            left = self.single(node.left, self.expression(node.left, depth + 1))
            if isinstance(node.op, ast.Pow):
                return self.power(node, left)
            right = self.single(node.right, self.expression(node.right, depth + 1))
            return self.binary(node, node.op, left, right)
        if isinstance(node, ast.UnaryOp):
            return self.unary(node, depth)
        if isinstance(node, ast.Compare):
            if len(node.ops) != 1:
                self.error(node, "comparison", "chained comparisons are not allowed", "write (a < b) & (b < c)")
                return None
            left = self.single(node.left, self.expression(node.left, depth + 1))
            right = self.single(node.comparators[0], self.expression(node.comparators[0], depth + 1))
            name = _COMPARE.get(type(node.ops[0]))
            if name is None:
                self.error(node, "forbidden", "only <, <=, >, >=, == and != compare", "use one of them")
                return None
            return self.apply(node, name, [left, right])
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        self.forbidden(node, f"{_describe(node)} is not allowed in an epilogue")
        return None

    def single(self, node: ast.expr, value: Value | tuple[Value, ...] | None) -> Value | None:
        if isinstance(value, tuple):
            self.error(node, "pair", "even_odd gives two values", "unpack it first: even, odd = even_odd(x)")
            return None
        return value

    def constant(self, node: ast.Constant) -> Value | None:
        number = node.value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            self.error(
                node,
                "constant",
                f"{_describe(node)} is not a number",
                "constants are integers and floating-point numbers",
            )
            return None
        if isinstance(number, int) and abs(number) > _LARGEST_INT:
            self.error(node, "constant", "the integer is beyond 32 bits", "write it as a floating-point number")
            return None
        if isinstance(number, float) and abs(number) > _LARGEST:
            self.error(node, "constant", "the number is beyond the range of fp32", "write inf for infinity")
            return None
        return self.literal(node, number)

    def literal(self, node: ast.AST, number: float | int) -> Value:
        return Value(
            "literal", (), Type(SCALAR, "int" if isinstance(number, int) else "float"), _location(node), number
        )

    def name(self, node: ast.Name) -> Value | None:
        if node.id in self.scope:
            return self.scope[node.id]
        if node.id == "inf":
            return self.literal(node, math.inf)
        operand = self.signature.operands.get(node.id)
        if operand is not None:
            self.error(
                node,
                "unloaded",
                f"'{node.id}' is an operand, not a value",
                f"load it first: {loader_for(operand.extent)}({node.id})",
            )
        elif node.id in PRIMITIVES or node.id == "store":
            self.error(
                node,
                "unknown-name",
                f"'{node.id}' is a primitive",
                f"call it: {PRIMITIVES[node.id].signature if node.id in PRIMITIVES else 'store(y, value)'}",
            )
        else:
            self.error(
                node,
                "unknown-name",
                f"'{node.id[:40]}' is not defined",
                nearest(node.id[:40], [*self.scope, *self.signature.operands]),
            )
        return None

    def unary(self, node: ast.UnaryOp, depth: int) -> Value | None:
        value = self.single(node.operand, self.expression(node.operand, depth + 1))
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(node.op, ast.Not):
            self.error(node, "forbidden", "'not' is not allowed in an epilogue", "use ~ on a comparison in parentheses")
            return None
        if value is not None and value.op == "literal" and isinstance(node.op, ast.USub):
            assert isinstance(value.payload, (int, float))
            return self.literal(node, -value.payload)
        return self.apply(node, "neg" if isinstance(node.op, ast.USub) else "not", [value])

    def power(self, node: ast.BinOp, base: Value | None) -> Value | None:
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        if exponent not in (2, 3, 4) or isinstance(exponent, bool):
            self.error(node, "power", "** takes the exponents 2, 3 and 4", "use sqrt, rsqrt, exp and log for others")
            return None
        if base is None:
            return None
        squared = self.apply(node, "square", [base])
        if exponent == 2 or squared is None:
            return squared
        return self.apply(node, "square", [squared]) if exponent == 4 else self.apply(node, "mul", [squared, base])

    def binary(
        self,
        node: ast.AST,
        operator: ast.operator,
        left: Value | tuple[Value, ...] | None,
        right: Value | tuple[Value, ...] | None,
    ) -> Value | None:
        name = _BINARY.get(type(operator))
        if name is None:
            self.error(
                node,
                "forbidden",
                f"the operator {type(operator).__name__} is not allowed in an epilogue",
                "arithmetic is + - * / // % and **",
            )
            return None
        if isinstance(left, tuple) or isinstance(right, tuple):
            self.error(node, "pair", "even_odd gives two values", "unpack it first: even, odd = even_odd(x)")
            return None
        if left is not None and right is not None and left.op == right.op == "literal" and name in _FOLD:
            try:
                folded = _FOLD[name](left.payload, right.payload)
            except (ZeroDivisionError, OverflowError):
                folded = math.inf
            if not abs(folded) <= (_LARGEST if isinstance(folded, float) else _LARGEST_INT):
                self.error(
                    node,
                    "constant",
                    f"the constant expression is {'not finite' if isinstance(folded, float) else 'beyond 32 bits'}",
                    "write its value as a floating-point number",
                )
                return None
            return self.literal(node, folded)
        if name in ("floordiv", "mod") and right is not None and right.op == "literal" and right.payload == 0:
            self.error(node, "constant", "division by zero", "divide by another number")
            return None
        return self.apply(node, name, [left, right])

    def call(self, node: ast.Call, depth: int) -> Value | tuple[Value, ...] | None:
        if not isinstance(node.func, ast.Name):
            self.forbidden(node.func, "only primitives are called, by their bare name")
            return None
        name = node.func.id
        if name == "store":
            self.error(node, "statement", "store is a statement and has no value", "put it on a line of its own")
            return None
        if name not in CALLABLE:
            self.error(node, "unknown-primitive", f"'{name[:40]}' is not a primitive", nearest(name[:40], CALLABLE))
            return None
        primitive = PRIMITIVES[name]
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.error(node, "arguments", f"{name} takes positional arguments only", f"write {primitive.signature}")
            return None
        if len(node.args) != primitive.arity:
            self.error(
                node,
                "arguments",
                f"{name} takes {primitive.arity} argument{'s' * (primitive.arity != 1)}; got {len(node.args)}",
                f"write {primitive.signature}",
            )
            return None
        if name.startswith("load_"):
            return self.apply(node, name, [self.operand(node.args[0], name)])
        return self.apply_any(
            node, name, [self.single(argument, self.expression(argument, depth + 1)) for argument in node.args]
        )

    def operand(self, node: ast.expr, loader: str) -> Value | None:
        operands = self.signature.operands
        if not isinstance(node, ast.Name):
            self.error(
                node,
                "arguments",
                f"{loader} takes the bare name of an operand",
                f"operands: {', '.join(operands) or 'none'}",
            )
            return None
        if node.id not in operands:
            self.error(
                node,
                "unknown-operand",
                f"'{node.id[:40]}' is not an operand of this operator",
                nearest(node.id[:40], operands) if operands else "this operator has no operands",
            )
            return None
        if node.id not in self.parameters:
            self.error(
                node,
                "unknown-operand",
                f"operand '{node.id}' is not a parameter of the function",
                f"add it: def {FUNCTION_NAME}({', '.join((*self.parameters, node.id))}):",
            )
            return None
        return Value("operand", (), operands[node.id].type, _location(node), node.id)

    def apply(self, node: ast.AST, name: str, arguments: Sequence[Value | None]) -> Value | None:
        """Apply a primitive that has one result."""
        result = self.apply_any(node, name, arguments)
        assert not isinstance(result, tuple)
        return result

    def apply_any(
        self, node: ast.AST, name: str, arguments: Sequence[Value | None]
    ) -> Value | tuple[Value, ...] | None:
        self.operations += 1
        known = [argument for argument in arguments if argument is not None]
        if len(known) != len(arguments):
            return None
        for argument in known:
            if argument.type.partial:
                self.error(
                    node,
                    "partial",
                    f"{argument.type} covers one output tile only, so it cannot be used in {name}",
                    "store it: the library finishes the reduction after the GEMM",
                )
                return None
        if known and all(argument.op == "literal" for argument in known):
            self.error(node, "constant", f"{name} is applied to constants only", "write the value itself")
            return None
        try:
            result = PRIMITIVES[name].rule([argument.type for argument in known])
        except RuleError as error:
            self.error(node, "type", str(error), error.hint)
            return None
        location = _location(node)
        if isinstance(result, tuple):
            pair = Value(name, tuple(known), result[0], location)
            return tuple(Value("item", (pair,), type_, location, index) for index, type_ in enumerate(result))
        return Value(name, tuple(known), result, location)

    def forbidden(self, node: ast.AST, message: str) -> None:
        self.error(
            node, "forbidden", message, _INSTEAD.get(type(node), "see the list of primitives: coda-agent prompt")
        )


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _location(node: ast.AST) -> Location:
    return Location(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)


def _reduction_hint(wanted: Type) -> str:
    makers = {
        ("ColVector", "sum"): "row_sum(x) or pick(x, index)",
        ("ColVector", "max"): "running_max(x)",
        ("ColVector", "logsumexp"): "online_logsumexp(x)",
        ("RowVector", "sum"): "col_sum(x)",
        ("RowVector", "max"): "col_max(x)",
    }
    if wanted.partial:
        return f"make it with {makers.get((str(wanted.extent), wanted.partial), 'a tile reduction')}"
    return "store the values themselves, not a reduction of them"


def _describe(node: ast.AST) -> str:
    names = {
        ast.Attribute: "attribute access", ast.Subscript: "indexing", ast.Lambda: "a lambda", ast.IfExp: "a conditional expression",
        ast.BoolOp: "'and' / 'or'", ast.For: "a for loop", ast.While: "a while loop", ast.If: "an if statement", ast.Return: "return",
        ast.Import: "an import", ast.ImportFrom: "an import", ast.FunctionDef: "a nested function", ast.ClassDef: "a class",
        ast.JoinedStr: "an f-string", ast.Constant: "this constant", ast.NamedExpr: "':='", ast.With: "a with statement",
        ast.Try: "a try statement", ast.Global: "a global statement", ast.Delete: "del", ast.Assert: "an assert", ast.Raise: "a raise",
        ast.AnnAssign: "an annotated assignment", ast.Tuple: "a tuple", ast.List: "a list", ast.Dict: "a dict", ast.Await: "await",
    }  # fmt: skip
    return names.get(type(node), type(node).__name__)
