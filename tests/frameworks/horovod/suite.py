"""Horovod's own tests for torch or TensorFlow, on hocket: only imports are changed.

    python tests/frameworks/horovod/suite.py PATH/TO/test_torch.py -n 2 [-k NAME]
    python tests/frameworks/horovod/suite.py PATH/TO/test_tensorflow.py -n 2 -k "not gpu"

The file is one of Horovod's test/parallel, which hocket does not bring, and this does not fetch it.  Each of n
ranks runs all tests, as under horovodrun; the tests' helpers (ranks, a temporary path) are those below.  Says how many
passed, failed and were skipped on each rank, and exits with 1 if any failed.  torch.optim.Muon is hidden from them: it
is newer than the file, which tries every optimizer of torch, and takes nothing but matrices.  Those for TensorFlow run
eagerly, each in a job of its own (hvd.shutdown), as hocket refuses graphs of TensorFlow 1.
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


def module(name: str, **names: object) -> types.ModuleType:
    """A module of Horovod's, with what the tests take from it."""
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(names)
    return made


class Eager:
    """Horovod's modules for TensorFlow are hocket's, and what else the tests take of it is here."""

    def __init__(self) -> None:
        import tensorflow as tf
        from packaging import version
        from tensorflow.python.framework import test_util

        import hocket.horovod.keras
        import hocket.horovod.tensorflow.keras

        self.hvd = hvd = hocket.horovod.tensorflow
        sys.modules |= {
            "horovod": hocket.horovod, "horovod.tensorflow": hvd, "horovod.keras": hocket.horovod.keras,
            "horovod.tensorflow.keras": hocket.horovod.tensorflow.keras,
        }  # fmt: skip
        hvd._executing_eagerly = tf.executing_eagerly
        hvd.util = module("horovod.tensorflow.util", _executing_eagerly=tf.executing_eagerly)
        for name in ("common", "runner", "runner.common", "runner.common.util"):
            module(f"horovod.{name}")
        newer = lambda a, b: version.parse(a) >= version.parse(b)  # noqa: E731
        module("horovod.common.util", is_version_greater_equal_than=newer)
        module("horovod.runner.common.util.env", get_env_rank_and_size=sys.modules["common"].mpi_env_rank_and_size)
        test_util.run_all_in_graph_and_eager_modes = lambda tests: tests

    def pytest_runtest_teardown(self, item: object) -> None:
        if "process_set" not in item.nodeid:  # those begin once for all
            self.hvd.shutdown()


def rank(file: str, folder: str, words: list[str]) -> int:
    """One rank: runs the file's tests."""
    import pytest

    sys.modules["common"] = helpers()
    if "torch" not in os.path.basename(file):
        sys.path.append(folder)
        return int(pytest.main([file, "-c", os.devnull, "-p", "no:cacheprovider", *words], [Eager()]))
    import torch

    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "newer"
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
        file, text = os.path.join(folder, options.file.name), options.file.read_text()
        pathlib.Path(file).write_text(changed(text) if "torch" in options.file.name else text)
        words = ["-v", "-rfEs", "--tb=short", "--no-header", f"--timeout={options.limit}", "--timeout-method=thread"]
        words += ["-k", options.k] if options.k else []
        me = [sys.executable, os.path.abspath(__file__), "--rank", file, str(options.file.parent), *words]
        run = [sys.executable, "-c", "import sys; from hocket.tools.run import main; sys.exit(main(sys.argv[1:]))"]
        env = {**os.environ, "SUITE_AGAIN": "1"} if options.again else None
        return subprocess.run([*run, "-n", str(options.n), "--", *me], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(rank(sys.argv[2], sys.argv[3], sys.argv[4:]) if sys.argv[1:2] == ["--rank"] else main())
