"""A transport of another package, installed as one: found by its entry point, lawful, and used by a real job."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hocket.conformance import GROUP_LAWS, LAWS
from hocket.transports import registry
from support import jobs

SOURCE = Path(__file__).parents[1] / "plugins" / "hocket_pipes"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(SOURCE, folder / "source")
    where = folder / "installed"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(where), str(folder / "source")]
    subprocess.run(command, check=True, timeout=100)
    return where


@pytest.fixture
def pipes(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(installed))
    yield importlib.import_module("hocket_pipes")


def test_it_is_found(pipes: ModuleType) -> None:
    assert registry.load(["pipes"]) == ({"pipes": pipes.PipesTransport}, {})
    assert list(registry.known())[: len(registry.BUILT_IN)] == list(registry.BUILT_IN)


def test_packages_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For each path that modules are found by: `init` asks four times.  Where no package can declare a transport,
    the module that knows how to ask is not loaded."""
    asked: list[str] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or [])
    for name in ("pipes-1.dist-info", "pipes.egg-info", "pipes.egg"):
        (tmp_path / name / name).mkdir(parents=True)
        if name != "pipes.egg":
            (tmp_path / name / name / "entry_points.txt").write_text("[hocket.transports]\npipes = pipes:Pipes\n")
        monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path / name)])
        assert list(registry.known()) == list(registry.known()) == list(registry.BUILT_IN)
    assert asked == ["hocket.transports"] * 3
    (tmp_path / "others.dist-info").mkdir()
    (tmp_path / "others.dist-info" / "entry_points.txt").write_text("[console_scripts]\nothers = others:main\n")
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path)])
    (tmp_path / "pipes.egg" / "pipes.egg").rmdir()
    (tmp_path / "pipes.egg").rmdir()
    assert list(registry.known()) == list(registry.BUILT_IN)
    assert asked == ["hocket.transports"] * 3


def conformance(*arguments: str, path: list[Path]) -> tuple[int, list[tuple[str, str]], str]:
    """The command's exit code, (what, law) of each line, and all it said."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path])}
    command = [sys.executable, "-m", "hocket.conformance", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    words = [line.split() for line in done.stdout.splitlines()]
    return done.returncode, [(line[0], line[1].rstrip(":")) for line in words], done.stdout + done.stderr


def test_it_keeps_the_laws(installed: Path) -> None:
    code, said, text = conformance("hocket_pipes:PipesTransport", path=[installed])
    assert code == 0, text
    assert [law for _, law in said] == [law.__name__ for law in (*LAWS, *GROUP_LAWS)]
    assert [law for what, law in said if what != "kept"] == ["a_multicast_reaches_every_reader"]


BROKEN = """
from hocket.conformance import Side
from hocket.transports.adapter import Adapter
from hocket.transports.reference import Pipe

def pair():
    there, back = {kind}(), Pipe()
    adapters = [Adapter(pipe) for pipe in (there, back, back, there)]
    return [Side(adapters[i].capsule, adapters[i + 1].capsule, adapters) for i in (0, 2)]

class Swapping(Pipe):
    def send(self, tag, length, done, data):
        return super().send(tag, length, done, data[::-1])

class Wrong(Pipe):
    def send(self, tag, length, done, data):
        raise KeyError("what its author overlooked")
"""


@pytest.mark.parametrize(
    ("kind", "end", "words"),
    [("Pipe", 0, ""), ("Swapping", 1, "arrived changed"), ("Wrong", 1, "KeyError: 'what its author overlooked'")],
)
def test_the_command_tells_a_broken_one(kind: str, end: int, words: str, tmp_path: Path) -> None:
    """With a function `pair`."""
    (tmp_path / "theirs.py").write_text(BROKEN.format(kind=kind))
    law = "a_message_in_pieces_is_one_message"
    code, said, text = conformance("theirs:pair", "--patience", "1", "--law", law, path=[tmp_path])
    assert (code, said) == (end, [("BROKEN" if end else "kept", law)]), text
    assert words in text


def test_a_job_of_two_processes(installed: Path) -> None:
    source = """
        import hocket, numpy as np
        comm = hocket.init()
        for n in (1, 5000, 300000):
            x = np.arange(n, dtype=np.float64) * (comm.rank + 1)
            assert np.array_equal(comm.allreduce(x), np.arange(n) * 3.0)
            assert np.array_equal(comm.allgather(np.full(n, comm.rank)), np.repeat([0, 1], n))
            y = np.full(n, comm.rank)
            comm.broadcast(y, root=1)
            assert (y == 1).all()
        print("pipes" in comm.explain())
        comm.close()
    """
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert jobs.run(2, source, HOCKET_TRANSPORT="pipes", PYTHONPATH=path) == ["True\n", "True\n"]
