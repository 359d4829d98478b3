"""Three leaves and a hub: algorithms, transports and kernels import neither each other nor collectives."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEAVES = ("algorithms", "transports", "kernels")
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".cuh")
FILES = [path for leaf in LEAVES for path in sorted((ROOT / leaf).iterdir()) if path.suffix in SUFFIXES]
FOREIGN = {
    "algorithms": r"(hocket\.(collectives|transports|kernels|bench)|numpy|torch)\b",
    "transports": r"(hocket\.(collectives|algorithms|kernels|bench)|torch)\b",
    "kernels": r"(hocket\.(collectives|algorithms|transports|bench)|torch)\b",
}


def imported(path: Path) -> list[str]:
    """Every module that this file imports, cimports or includes, as a dotted name."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        nodes = list(ast.walk(ast.parse(text)))
        direct = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        named = [(n.module or "", n.names) for n in nodes if isinstance(n, ast.ImportFrom)]
        assert not any(n.level for n in nodes if isinstance(n, ast.ImportFrom)), f"{path}: say import hocket.folder..."
        return direct + [f"{module}.{alias.name}" for module, names in named for alias in names]
    if path.suffix in (".h", ".cuh"):
        return ["hocket." + name.replace("/", ".") for name in re.findall(r'#include "([a-z_]+/[^"]+)"', text)]
    froms = re.findall(r"^\s*from\s+([\w.]+)\s+c?import\s+\(?([\w, ]+)", text, re.M)
    plain = re.findall(r"^\s*c?import\s+([\w., ]+)", text, re.M)
    headers = re.findall(r'^cdef extern from "([a-z_]+/[^"]+)"', text, re.M)
    names = [f"{module}.{name.strip()}" for module, several in froms for name in several.split(",")]
    names += [name.strip() for line in plain for name in line.split(",")]
    return names + ["hocket." + header.replace("/", ".") for header in headers]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_leaf_knows_only_itself(path: Path) -> None:
    foreign = [name for name in imported(path) if re.match(FOREIGN[path.parent.name], name)]
    # kernels/dtypes.py names NumPy's types for type checkers only; transports and kernels may use NumPy
    assert not foreign, f"{path.parent.name}/{path.name} imports {', '.join(foreign)}"


def test_nothing_imports_a_framework() -> None:
    """They stand on top: whoever does not use torch never loads what is for it."""
    folders = ("algorithms", "transports", "kernels", "collectives", "bench")
    files = [path for folder in folders for path in sorted((ROOT / folder).iterdir()) if path.suffix in SUFFIXES]
    found = [path for path in files if any(re.match(r"hocket\.torch\b", name) for name in imported(path))]
    assert [path.name for path in found] == ["torch_backend.py"], "the benchmark of it is the only one that may"


def test_nothing_imports_the_laws() -> None:
    folders = ("algorithms", "transports", "kernels", "collectives", "bench")
    files = [path for folder in folders for path in sorted((ROOT / folder).iterdir()) if path.suffix in SUFFIXES]
    assert not [path for path in files if any(re.match(r"hocket\.conformance\b", name) for name in imported(path))]


def test_the_hub_does_import_the_leaves() -> None:
    """Else the patterns above match nothing."""
    hub = [path for path in (ROOT / "collectives").iterdir() if path.suffix in SUFFIXES]
    seen = {name for path in hub for name in imported(path)}
    for leaf in LEAVES:
        assert any(re.match(rf"hocket\.{leaf}\b", name) for name in seen)
    assert any(re.match(FOREIGN["algorithms"], name) for name in seen)
