"""Horovod's own tests for torch, on hocket: only the file's imports are changed.

    python tests/frameworks/horovod/suite.py PATH/TO/test_torch.py -n 2 [-k NAME]

The file is Horovod's test/parallel/test_torch.py, which hocket does not bring, and this does not fetch it.  Each of n
ranks runs all tests, as under horovodrun; the tests' helpers (ranks, a temporary path) are those below.  Says how many
passed, failed and were skipped on each rank, and exits with 1 if any failed.  torch.optim.Muon is hidden from them: it
is newer than the file, which tries every optimizer of torch, and takes nothing but matrices.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

IMPORTS = {"import horovod.torch as hvd": "import hocket.horovod.torch as hvd"}
"""Changes of the file."""


def changed(text: str) -> str:
    """The file's text with hocket's imports."""
    for old, new in IMPORTS.items():
        if old not in text:
            raise SystemExit(f"there is no line {old!r}: is this Horovod's test_torch.py?")
        text = text.replace(old, new)
    return re.sub(r"^sys\.path\.append\(os\.path\.join\(os\.path\.dirname\(__file__\), os\.pardir, 'utils'\)\)\n", "",
                  text, flags=re.M)  # fmt: skip


def helpers() -> types.ModuleType:
    """The helpers that the file imports of Horovod's test utilities."""

    @contextlib.contextmanager
    def temppath():
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, "file")

    def skip_or_fail_gpu_test(test, message):
        test.skipTest(message)

    made = types.ModuleType("common")
    made.temppath, made.skip_or_fail_gpu_test = temppath, skip_or_fail_gpu_test
    made.mpi_env_rank_and_size = lambda: (int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"]))
    return made


def rank(file: str, words: list[str]) -> int:
    """One rank: runs the file's tests."""
    import pytest
    import torch

    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "newer"
    sys.modules["common"] = helpers()
    again = os.environ.pop("SUITE_AGAIN", "")
    if again:  # the tests shut down and begin again after each test, as they do with Horovod's own controller
        os.environ.update(HOROVOD_RANK=os.environ["HOCKET_RANK"], HOROVOD_SIZE=os.environ["HOCKET_SIZE"])
    return int(pytest.main([file, "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:xdist", *words]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-n", type=int, default=2, help="ranks (2)")
    parser.add_argument("-k", default="", help="only tests with these names, as pytest takes it")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a test (120)")
    parser.add_argument("--again", action="store_true", help="shut down and begin again after each test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "test_torch.py")
        pathlib.Path(file).write_text(changed(options.file.read_text()))
        words = ["-v", "-rfEs", "--tb=short", "--no-header", f"--timeout={options.limit}", "--timeout-method=thread"]
        words += ["-k", options.k] if options.k else []
        me = [sys.executable, os.path.abspath(__file__), "--rank", file, *words]
        run = [sys.executable, "-c", "import sys; from hocket.tools.run import main; sys.exit(main(sys.argv[1:]))"]
        env = {**os.environ, "SUITE_AGAIN": "1"} if options.again else None
        return subprocess.run([*run, "-n", str(options.n), "--", *me], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(rank(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--rank"] else main())
