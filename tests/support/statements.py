"""The statements of a Python file: a tenth of its nodes, for a test that reads all files."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, at any depth, with the handlers and cases that hold some."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                ahead += inner
