"""The floors: whoever stands on one imports what lies below it, and nothing beside or above.

    examples, tests
    bench  conformance  frameworks  compression     stand on hocket's public names
    tools                                   the command line
    collectives                             what the calls mean, and the engine that runs them
    algorithms   transports   kernels       leaves: never import each other
    control                                 how ranks find, trust and hear each other
    system                                  the operating system, drivers, OpenSSL; knows no rank
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".cuh")
LIBRARY = {"system", "control", "algorithms", "transports", "kernels", "collectives"}
MAY: dict[str, set[str]] = {
    "system": {"system"},
    "control": {"control", "system"},
    "algorithms": {"algorithms"},
    "kernels": {"kernels"},
    "transports": {"transports", "control", "system"},
    "collectives": LIBRARY,
    "tools": {*LIBRARY, "tools", "bench"},
    "compression": {*LIBRARY, "compression"},
    "conformance": {*LIBRARY, "conformance"},
    "bench": {*LIBRARY, "tools", "bench", "compression"},
    "frameworks/torch": {*LIBRARY, "torch", "compression"},
    "frameworks/horovod": {*LIBRARY, "horovod", "compression"},
    "frameworks/ray": {*LIBRARY, "ray"},
    "frameworks/dask": {*LIBRARY, "dask"},
    "frameworks/jax": {*LIBRARY, "jax"},
    "frameworks/spark": {*LIBRARY, "spark"},
    "frameworks/lightgbm": {*LIBRARY, "lightgbm"},
    "frameworks/xgboost": {*LIBRARY, "xgboost"},
    "frameworks/flower": {*LIBRARY, "flower", "compression"},
}
"""What each folder may import of hocket's folders.  `hocket` itself, its errors and argument checks are for all."""
EXCEPTIONS = {
    "bench/frameworks/torch_backend.py": "torch",  # the benchmarks of it
    "bench/compression/ddp.py": "torch",
    "bench/rivals/horovod.py": "horovod",
    "bench/frameworks/jax_calls.py": "jax",  # the benchmarks of them
    "bench/frameworks/lightgbm_training.py": "lightgbm",
    "bench/frameworks/ray_groups.py": "ray",
}
FORBIDDEN = {
    "algorithms": ("numpy", "torch"),  # they never see a byte
    "kernels": ("torch",),
    "transports": ("torch",),
    "control": ("numpy", "torch"),
    "system": ("torch",),
}
MOST = 17
"""Modules and headers of a folder, with its __init__."""
BIG = {"kernels/gpu", "frameworks/torch"}
"""Folders with more: a CUDA file for each kernel; torch's, which its __init__ groups."""
FILES = [(folder, path) for folder in MAY for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


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


def wrong(folder: str, path: Path) -> list[str]:
    """The imports of a file that its floor does not allow."""
    allowed = MAY[folder] | {EXCEPTIONS.get(str(path.relative_to(ROOT)), "")}
    everywhere = {part.rpartition("/")[2] for part in MAY}
    found = []
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "hocket" and len(parts) > 1 and parts[1] in everywhere and parts[1] not in allowed:
            found.append(name)
        if parts[0] in FORBIDDEN.get(folder, ()):
            found.append(name)
    return found


@pytest.mark.parametrize(("folder", "path"), FILES, ids=[str(path.relative_to(ROOT)) for _, path in FILES])
def test_a_file_knows_only_what_lies_below(folder: str, path: Path) -> None:
    found = wrong(folder, path)
    assert not found, f"{path.relative_to(ROOT)} imports {', '.join(found)}"


def test_every_room_is_seen() -> None:
    """Folders of folders too, C headers and Cython: else the test above would see nothing."""
    seen = {str(path.parent.relative_to(ROOT)) for _, path in FILES}
    assert {"collectives/engine", "transports/shm", "control", "system/cuda", "kernels/gpu"} <= seen
    assert {path.suffix for _, path in FILES} == set(SUFFIXES)
    names = {name for folder, path in FILES if folder == "collectives" for name in imported(path)}
    for leaf in ("algorithms", "transports", "kernels", "control", "system"):
        assert any(re.match(rf"hocket\.{leaf}\b", name) for name in names)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("control/faults.py", "from hocket.transports.base import Lane\n"),
        ("algorithms/language/registry.py", "import numpy\n"),
        ("transports/shm/ring.h", '#include "kernels/dtypes.h"\n'),
        ("kernels/cpu/reduce.pyx", "from hocket.system.cuda cimport driver\n"),
        ("collectives/job/world.py", "from hocket.tools import doctor\n"),
        ("collectives/engine/run.pxd", 'cdef extern from "bench/any.h":\n    pass\n'),
    ],
)
def test_a_wrong_import_is_noticed(file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / file).read_text() + line)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert len(wrong(file.partition("/")[0], copy)) == 1


def test_no_folder_is_a_heap() -> None:
    """Modules and headers that are read together: one idea each, and a folder that a reader sees at a glance."""
    stems: dict[Path, set[str]] = {}
    for _, path in FILES:
        stems.setdefault(path.parent, set()).add(path.stem)
    heaps = {str(folder.relative_to(ROOT)): len(names) for folder, names in stems.items() if len(names) > MOST}
    assert set(heaps) <= BIG, heaps
