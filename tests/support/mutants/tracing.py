"""In each process of a run: which lines the library's code reaches, written at its end for the test file it worked for.

A .pth file of the environment imports this first, so that coverage begins with Python; it begins anew in each fork.  It
imports nothing of ours: it also measures older suites.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import importlib.util
import marshal
import os
import sys
from collections.abc import Generator
from typing import Any, NoReturn

IS_WARM = any("/support/warm" in word for word in sys.orig_argv)
if IS_WARM:  # that process wants to set OpenSSL up before anybody imports it, as coverage does
    found = importlib.util.find_spec("_hashlib")
    assert found is not None
    ctypes.CDLL(found.origin).OPENSSL_init_crypto(ctypes.c_uint64(0x80000), None)
import coverage  # noqa: E402
import pytest  # noqa: E402

if IS_WARM:
    sys.modules.pop("_hashlib", None)
FOLDER, FILE, ROOT = "TESTS_REACH", "TESTS_FILE", "TESTS_ROOT"
"""Variables: where data goes, the test file that runs, the tree that is measured."""
WHERE = {name: os.environ.get(name, "") for name in (FOLDER, ROOT)}
"""Kept here, as a test may start a program with other variables."""
WARNINGS = ["already-imported", "module-not-measured", "no-data-collected", "trace-changed", "couldnt-parse"]
Arcs = dict[str, set[tuple[int, int]]]
"""Pairs of lines of each file, of which one followed the other; negative ones are entries and exits."""
_coverage: coverage.Coverage | None = None
_file = os.environ.get(FILE, "")


def begin() -> None:
    """Trace from here on; in a fork, what its parent did is dropped."""
    global _coverage
    if _coverage is not None:
        _coverage.stop()
    _coverage = coverage.Coverage(
        data_file=None, config_file=False, branch=True, include=[f"{WHERE[ROOT]}/*"], messages=False,
        omit=[f"{WHERE[ROOT]}/{name}/*" for name in (".venv", "tests", "build", "docs")],
    )  # fmt: skip
    _coverage.set_option("run:disable_warnings", WARNINGS)
    _coverage.start()


def end() -> None:
    """Add what was reached to the data of the test file."""
    global _coverage
    if _coverage is None:
        return
    _coverage.stop()
    data = _coverage.get_data()
    _coverage = None
    arcs = {os.path.relpath(path, WHERE[ROOT]): set(data.arcs(path) or ()) for path in data.measured_files()}
    with contextlib.suppress(Exception):  # this process may be another user's by now, or out of descriptors
        add(arcs, f"{WHERE[FOLDER]}/{os.environ.get(FILE, _file).replace('/', '+')}.arcs")


def add(arcs: Arcs, path: str) -> None:
    """Processes add at the same time, and may be killed meanwhile."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        all_arcs: Arcs = {}
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            all_arcs = marshal.load(file)
        if all(pairs <= all_arcs.get(name, set()) for name, pairs in arcs.items()):
            return
        for name, pairs in arcs.items():
            all_arcs.setdefault(name, set()).update(pairs)
        with open(f"{path}.new", "wb") as file:
            marshal.dump(all_arcs, file)
        os.replace(f"{path}.new", path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """From now on all that is reached is reached by this item's file."""
    file = item.nodeid.partition("::")[0]
    if os.environ.get(FILE) != file:
        end()
        os.environ[FILE] = file
        begin()
    return (yield)


def _exit(code: int, leave: Any = os._exit) -> NoReturn:
    with contextlib.suppress(Exception):
        end()
    leave(code)
    raise AssertionError


if WHERE[FOLDER] and __name__ == "tracing":  # not the one that a test of mutants imports
    begin()
    os.register_at_fork(after_in_child=begin)
    os._exit = _exit
    atexit.register(end)
    sys.addaudithook(lambda event, _: end() if event == "os.exec" else None)
