"""Kernels compiled alone under sanitizers: what is packed comes back bit for bit, and hostile bytes do no harm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.compiled import compiled

HERE = Path(__file__).parent


def fuzzed(tmp_path: Path, source: str, pieces: int) -> None:
    flags = ["-std=gnu11", "-O1", "-g", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-lm"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = f"-I{HERE.parents[2] / 'src' / 'hocket'}"
    program = compiled(tmp_path / "fuzz", [HERE / source], *flags, *sanitize, include)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([program, str(pieces)], capture_output=True, text=True, timeout=3000, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{pieces} pieces, and most that were changed are refused\n"


SOURCES = pytest.mark.parametrize("source", ["lossless_fuzz.c", "heads_fuzz.c"])


@SOURCES
def test_pieces_of_every_kind(source: str, tmp_path: Path) -> None:
    fuzzed(tmp_path, source, 1500)


@pytest.mark.sanitize
@SOURCES
def test_many_pieces(source: str, tmp_path: Path) -> None:
    fuzzed(tmp_path, source, int(os.environ.get("HOCKET_FUZZ_PIECES", 100_000)))
