"""Transports of other packages: found by their entry points; and the command that tries the laws on one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.transports import registry


def test_one_that_is_declared_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After those that are built in.  (tests/test_docs.py runs a job over one.)"""
    (tmp_path / "theirs.py").write_text("class Theirs:\n    available = staticmethod(lambda: None)\n")
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    declared = "[hocket.transports]\ntheirs = theirs:Theirs\n"
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text(declared)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.load(["theirs"]) == ({"theirs": importlib.import_module("theirs").Theirs}, {})
    assert list(registry.known()) == [*registry.BUILT_IN, "theirs"]


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
