"""A copy of the working tree by hard links, with an environment of its own, in which one file at a time is another."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.mutants import compiled
from support.mutants.reach import HERE

LEFT_OUT = {"build", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
PLUGIN = b'\npytest_plugins.append("support.mutants.trial_plugin")\n'


class Tree:
    """Such a copy.  Whatever would be written in place is a file of its own there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        linked = [each for each in HERE.iterdir() if each.name not in LEFT_OUT]
        subprocess.run(["cp", "-al", *linked, root], check=True)
        (root / "build").mkdir()
        if (HERE / "build/impi").exists():  # what tests use of it
            subprocess.run(["cp", "-al", HERE / "build/impi", root / "build"], check=True)
        for path in root.glob(".venv/lib/python*/site-packages/__editable__*.pth"):
            self._own(path, f"{root}/src\n".encode())
        for path in (root / ".venv/bin").iterdir():
            if not path.is_symlink() and (data := path.read_bytes())[:2] == b"#!":
                self._own(path, data.replace(bytes(HERE / ".venv"), bytes(root / ".venv")))
        conftest = root / "tests/conftest.py"
        self._own(conftest, conftest.read_bytes() + PLUGIN)
        for path in filter(Path.is_file, (root / "tests").rglob("*.json")):
            self._own(path, path.read_bytes())

    def built(self, name: str, text: str) -> dict[str, bytes] | None:
        """Files that a mutant changes: its own, and the libraries it is compiled into.  None: it does not compile."""
        files = {name: text.encode()}
        if name.endswith(".py"):
            return files
        if not (sources := compiled.sources(name)):
            return None
        linked = {path: path.stat().st_ino for top in compiled.FOLDERS for path in (self.root / top).rglob("*.so")}
        with self.changed(files):
            command = [self.root / ".venv/bin/python", "-c", compiled.BUILD, *sources]
            done = subprocess.run(command, cwd=self.root, capture_output=True, check=False)
            new = [path for path, number in linked.items() if path.stat().st_ino != number]
            files |= {str(path.relative_to(self.root)): path.read_bytes() for path in new}
            for path in new:
                self._link(str(path.relative_to(self.root)))
        return files if done.returncode == 0 and new else None

    @contextlib.contextmanager
    def changed(self, files: Mapping[str, bytes]) -> Iterator[None]:
        """Within, these files are there instead of the original ones."""
        try:
            for name, data in files.items():
                self._own(self.root / name, data)
            yield
        finally:
            for name in files:
                self._link(name)

    def _link(self, name: str) -> None:
        (self.root / name).unlink()
        os.link(HERE / name, self.root / name)

    def _own(self, path: Path, data: bytes) -> None:
        mode = path.stat().st_mode
        path.unlink()
        path.write_bytes(data)
        path.chmod(mode)
