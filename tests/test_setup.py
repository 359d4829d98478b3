"""setup.py: an extension is built again when a header changes that it includes, and for no other header."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import Cython.Build
import pytest
import setuptools
from Cython.Build.Dependencies import create_dependency_tree

ROOT = Path(__file__).parents[1]
EXTERN = re.compile(r'^cdef extern from "(.+?\.h)"', re.M)


@pytest.fixture(scope="module")
def extensions() -> Any:
    """By name, as setup.py hands them to setuptools."""
    patch = pytest.MonkeyPatch()
    patch.chdir(ROOT)
    given: dict[str, Any] = {}
    patch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    patch.setattr(Cython.Build, "cythonize", lambda modules, **how: modules)
    runpy.run_path("setup.py")
    yield {each.name: each for each in given["ext_modules"]}
    patch.undo()


def test_it_depends_on_what_the_compilers_read(extensions: Any, tmp_path: Path) -> None:
    """By Cython's own list of .pxd files, and the C compiler's of headers."""
    tree, code = create_dependency_tree(), tmp_path / "all.c"
    for each in extensions.values():
        files = [path for path in tree.all_dependencies(each.sources[0]) if path.startswith("src/")]
        named = {name for path in files for name in EXTERN.findall(Path(path).read_text())}
        ours = sorted(name for name in named if (ROOT / "src/hocket" / name).exists())
        code.write_text("".join(f'#include "{name}"\n' for name in ours))
        command = ["cc", "-std=gnu11", "-MM", "-Isrc/hocket", str(code)]
        rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        read = {os.path.normpath(word) for word in rule.replace("\\\n", " ").split() if word.endswith(".h")}
        assert set(each.depends) == read, each.name

