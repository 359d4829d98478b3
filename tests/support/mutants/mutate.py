"""Mutants of a Python module: one expression or statement is another, as a slip would make it."""

from __future__ import annotations

import ast
import copy
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

COMPARE: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}  # fmt: skip
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LARGE = 20
"""One more or less makes nothing of such a number: it is doubled or halved."""
TELL = {"print", "debug", "info", "warning", "warn", "log", "write", "exception", "add_argument", "cast"}
"""Calls whose arguments are texts for people, or nothing at run time."""
UNSEEN = {"__repr__", "__str__", "__reduce__"}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Mutant(NamedTuple):
    """One change of a file."""

    line: int
    """The changed node's."""
    statement: int
    """The first line of the statement that it is in."""
    in_function: bool
    begin: int
    end: int
    """The bytes that are replaced by `new`."""
    new: str

    def text(self, source: str) -> str:
        """The whole file with it."""
        data = source.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()


class _Change(NamedTuple):
    node: Any
    """The node that is replaced: it has a place in the file."""
    statement: ast.stmt
    in_function: bool
    new: str


def mutants(source: str, rng: random.Random, wanted: Callable[[int, int, bool], bool]) -> list[Mutant]:
    """One for each line that has any and is `wanted(line, statement's line, in a function)`; `rng` chooses it."""
    lines: dict[int, list[_Change]] = {}
    for change in _module(ast.parse(source)):
        if wanted(change.node.lineno, change.statement.lineno, change.in_function):
            lines.setdefault(change.node.lineno, []).append(change)
    starts = [0, *itertools.accumulate(map(len, source.encode().splitlines(keepends=True)))]
    made = []
    for line, changes in sorted(lines.items()):
        node, statement, in_function, new = rng.choice(changes)
        begin, end = starts[line - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        made.append(Mutant(line, statement.lineno, in_function, begin, end, new))
    return made


# --- what can be changed


def _module(tree: ast.Module) -> Iterator[_Change]:
    yield from _block(tree.body, False)


def _block(statements: list[Any], in_function: bool) -> Iterator[_Change]:
    for each in statements:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if each.name not in UNSEEN:
                for default in [*each.args.defaults, *filter(None, each.args.kw_defaults)]:
                    yield from _expression(default, each, in_function)
                yield from _block(each.body, True)
        elif isinstance(each, ast.ClassDef):
            yield from _block(each.body, in_function)
        else:
            yield from _statement(each, in_function)


def _statement(each: Any, in_function: bool) -> Iterator[_Change]:
    if isinstance(each, ast.If) and ast.unparse(each.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return
    if isinstance(each, (ast.Assert, ast.Import, ast.ImportFrom)):
        return
    if isinstance(each, ast.Expr) and isinstance(each.value, (ast.Constant, ast.Await, ast.Yield, ast.YieldFrom)):
        return
    if _goes(each) and in_function:
        yield _Change(each, each, in_function, "pass")
    if isinstance(each, ast.Raise) or isinstance(each, ast.Expr) and _tells(each.value):
        return  # the words of an error
    if isinstance(each, ast.Return) and each.value is not None and not _is_none(each.value):
        yield _Change(each.value, each, in_function, "None")
    if isinstance(each, ast.If):
        yield _Change(each.test, each, in_function, _text(ast.UnaryOp(ast.Not(), each.test)))
    for name, field in ast.iter_fields(each):
        if name in BLOCKS:
            for block in field if field and name in ("handlers", "cases") else [field]:
                yield from _block(getattr(block, "body", block), in_function)
        elif name != "annotation":
            for part in field if isinstance(field, list) else [field]:
                if isinstance(part, ast.withitem):
                    part = part.context_expr
                if isinstance(part, ast.expr):
                    yield from _expression(part, each, in_function)


def _goes(each: ast.stmt) -> bool:
    """May it be left out, so that what follows still finds its names?"""
    if isinstance(each, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in each.targets)
    if isinstance(each, ast.Expr):
        return isinstance(each.value, ast.Call) and not _tells(each.value)
    return isinstance(each, (ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break))


def _tells(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in TELL


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _expression(node: ast.expr, statement: ast.stmt, in_function: bool) -> Iterator[_Change]:
    if isinstance(node, ast.JoinedStr) or _tells(node):
        return  # texts; CPython 3.11 does not know either where a text's expressions are
    for new in _others(node):
        yield _Change(node, statement, in_function, new)
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr):
            yield from _expression(part, statement, in_function)
        elif isinstance(part, ast.keyword):
            yield from _expression(part.value, statement, in_function)
        elif isinstance(part, ast.comprehension):
            for each in (part.iter, *part.ifs):
                yield from _expression(each, statement, in_function)


def _others(node: Any) -> Iterator[str]:
    """Expressions that may stand in an expression's place."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for new in COMPARE[type(op)]:
                yield _text(_with(node, "ops", [*node.ops[:i], new(), *node.ops[i + 1 :]]))
    elif isinstance(node, ast.BinOp) and type(node.op) in BINARY and not _has_text(node):
        yield _text(_with(node, "op", BINARY[type(node.op)]()))
    elif isinstance(node, ast.BoolOp):
        yield _text(_with(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        yield _text(_with(node, "values", node.values[:-1]) if len(node.values) > 2 else node.values[0])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield _text(node.operand)
    elif isinstance(node, ast.IfExp):
        yield _text(_with(_with(node, "body", node.orelse), "orelse", node.body))
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        value = node.value
        if isinstance(value, bool):
            yield str(not value)
        else:
            yield str(value + 1 if value < LARGE else value * 2)
            yield str(value - 1 if value < LARGE else value // 2)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield _text(_with(node, "func", ast.Name(CALLS[node.func.id])))
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is None:
        first = node.slice.lower
        later = ast.BinOp(first, ast.Add(), ast.Constant(1)) if first else ast.Constant(1)
        yield _text(_with(node, "slice", _with(node.slice, "lower", later)))


def _has_text(node: ast.AST) -> bool:
    constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return any(isinstance(value, str) for value in constants)  # an f-string has some as well


def _with(node: Any, name: str, value: object) -> Any:
    other = copy.copy(node)
    setattr(other, name, value)
    return other


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
