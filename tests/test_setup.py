"""setup.py: what was compiled is not compiled again, whatever folder it is built in; and what was cut off is.

Two small extensions by setup.py's own commands.  What it compiles it says, and nothing else.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import Cython.Build
import pytest
import setuptools

ROOT = Path(__file__).parents[1]
CODE = """
#include <Python.h>
#include "value.h"
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME"};
PyMODINIT_FUNC PyInit_NAME(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "value", VALUE);
    return made;
}
"""
Build = Callable[..., list[str]]


@pytest.fixture
def globals_of_setup(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: None)
    monkeypatch.setattr(Cython.Build, "cythonize", lambda modules, **how: modules)
    return runpy.run_path("setup.py")


@pytest.fixture
def build(
    globals_of_setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Build:
    """Build `one` and `two` in a folder of their own; the names that it says to have compiled."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    for name in ("one", "two"):
        (tmp_path / f"{name}.c").write_text(CODE.replace("NAME", name))

    def run(folder: str, *flags: str) -> list[str]:
        extensions = [setuptools.Extension(name, [f"{name}.c"], extra_compile_args=[*flags]) for name in ("one", "two")]
        distribution = setuptools.Distribution({"name": "small", "ext_modules": extensions})
        command = globals_of_setup["Build"](distribution)
        command.build_lib, command.build_temp = folder, f"{folder}.temp"
        command.ensure_finalized()
        capfd.readouterr()
        command.run()
        return re.findall(r"^\[\d/2\] (\w+) \d+\.\d s$", capfd.readouterr().err, re.M)

    return run


def value(folder: str, name: str = "one") -> int:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); import {name}; print({name}.value)"]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def test_nothing_is_compiled_twice(build: Build) -> None:
    assert build("first") == ["one", "two"]
    assert build("second") == []
    assert value("second") == 1


def test_what_changes_is_compiled(build: Build) -> None:
    build("first")
    Path("value.h").write_text("/* a comment is no code */\n#define VALUE 1\n")
    assert build("second") == []
    # Cython names the files that it read of an environment.
    place = 'static const char place[] = "{}/site-packages/numpy/__init__.pxd";\n'
    Path("value.h").write_text("#define VALUE 1\n" + place.format("build/newest/jax"))
    assert build("second") == ["one", "two"]
    Path("value.h").write_text("#define VALUE 1\n" + place.format("/other"))
    assert build("second") == []
    Path("value.h").write_text("#define VALUE 2\n")
    assert build("third") == ["one", "two"]
    assert value("third") == 2
    assert build("fourth", "-O0") == ["one", "two"]
    Path("value.h").write_text("#define VALUE 1\n")
    assert build("third") == []
    assert value("third", "two") == 1


def test_a_build_goes_on_where_it_was(build: Build) -> None:
    good = Path("two.c").read_text()
    Path("two.c").write_text(good.replace("VALUE", "NONE"))
    with pytest.raises(Exception, match="two"):
        build("first")
    Path("two.c").write_text(good)
    assert build("second") == ["two"]
    assert sorted(path.suffix for path in Path("build/cache").iterdir()) == [".so", ".so"]


def test_half_of_what_cython_makes_is_made_again(
    globals_of_setup: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Path("build/cython/src")
    made.mkdir(parents=True)
    (made / "whole.c").write_text("int x;\n#endif /* Py_PYTHON_H */\n")
    (made / "half.c").write_text("int x;\n#if")
    globals_of_setup["remove_halves"]()
    assert [path.name for path in made.iterdir()] == ["whole.c"]


def test_what_cython_makes_is_kept_apart_by_numpy(
    globals_of_setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments of one checkout may have several, and the C calls what its NumPy declares."""
    folders: list[str] = []

    def keep(modules: Any, build_dir: str, **how: Any) -> Any:
        folders.append(build_dir)
        return modules

    monkeypatch.setattr(Cython.Build, "cythonize", keep)
    for version in ("2.4.6", "2.5.5"):
        monkeypatch.setattr("numpy.__version__", version)
        runpy.run_path("setup.py")
    assert len({*folders}) == 2 and all(folder.startswith("build/cython/") for folder in folders), folders
