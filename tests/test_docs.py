"""The examples in the docstrings and in docs/, run."""

from __future__ import annotations

import doctest
import importlib
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import harness
import pytest

import hocket

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(hocket.__path__, "hocket.") if not m.name.rpartition(".")[2].startswith("__")
)


def documented() -> list[str]:
    """Modules with examples.  One that cannot be imported fails; it is not left out."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [name for name in MODULES if any(t.examples for t in finder.find(importlib.import_module(name), name))]


@pytest.mark.parametrize("name", documented())
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried and not failed


def test_every_folder_is_walked() -> None:
    assert {name.split(".")[1] for name in MODULES} >= {"algorithms", "collectives", "kernels", "transports", "errors"}


@pytest.fixture
def datagrams(tmp_path: pathlib.Path) -> pathlib.Path:
    """The transport of docs/transports.md, as a package of its own."""
    page = (pathlib.Path(__file__).parent.parent / "docs" / "transports.md").read_text()
    (source,) = re.findall(r"```python\n(# datagrams\.py\n.*?)```", page, re.S)
    (entry,) = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)\n```", page)
    (tmp_path / "datagrams.py").write_text(source)
    (tmp_path / "datagrams-1.dist-info").mkdir()
    (tmp_path / "datagrams-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: datagrams\nVersion: 1\n")
    (tmp_path / "datagrams-1.dist-info" / "entry_points.txt").write_text(
        "[{}]\n{}\n".format(entry[0], entry[1].replace('"', ""))
    )
    return tmp_path


def test_the_transport_of_the_page_keeps_the_laws(datagrams: pathlib.Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "hocket.conformance", "datagrams:Datagrams"]
    done = subprocess.run(command, cwd=datagrams, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    without = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("-")]
    assert without == ["closing_is_noticed:", "a_multicast_reaches_every_reader:"]


def test_the_transport_of_the_page_runs_a_job(datagrams: pathlib.Path) -> None:
    source = """
        import hocket, numpy as np
        with hocket.init() as comm:
            x = comm.allreduce(np.full(300001, comm.rank + 1.0))
            comm.allreduce(np.zeros(50001, "V12"), lambda a, b: a)
            print((x == 6).all(), "datagrams" in comm.explain())
    """
    path = os.pathsep.join([str(datagrams), *sys.path])
    assert harness.run(3, source, HOCKET_TRANSPORT="datagrams", PYTHONPATH=path) == ["True True\n"] * 3


def test_every_promise_has_its_test() -> None:
    """docs/security.md names tests; a name without a file is of the file named before it."""
    root = pathlib.Path(__file__).parent.parent
    page, file, found = (root / "docs" / "security.md").read_text(), "", 0
    for path, name in re.findall(r"`(?:(tests/\S+\.py)::)?(test_\w+)`", page):
        file = path or file
        assert f"def {name}(" in (root / file).read_text(), f"{file} has no {name}"
        found += 1
    assert found > 12
