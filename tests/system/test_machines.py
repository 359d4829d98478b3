"""Other machines, by stand-ins: pages of 64 KiB, the other order of bytes."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from support.compiled import compiled

ROOT = Path(__file__).parents[2]
CALLS = """
import os, sys
import numpy as np
import hocket
from hocket.collectives.recording.recorder import of_process

assert os.sysconf("SC_PAGESIZE") == 65536

def calls(comm):
    a, b = hocket.zeros(300_001, comm=comm), np.ones(3)
    for x in (a, b, np.ones(1 << 16)):
        comm.allreduce(x, "max")
    sub = comm.split(0)
    return comm.allreduce(np.ones(70_000))[-1] + sub.allreduce(b)[0]

assert hocket.local_world(2).run(calls) == [4.0, 4.0]
trace = of_process().trace(sys.argv[1])
ring = trace.ring({"rank": 0})
for _ in range(3):
    for _ in range(9001):
        ring.put(8, "mark")
    trace.touch_ahead()
print("ok")
"""


def test_pages_of_64_kib(tmp_path: Path) -> None:
    pages = compiled(tmp_path / "pages.so", [Path(__file__).parent / "pages.c"], "-shared", "-fPIC", "-Wall", "-Werror")
    environment = {**os.environ, "LD_PRELOAD": str(pages)}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path)], capture_output=True, text=True, env=environment, cold=True,  # type: ignore[call-overload]
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_the_other_order_of_bytes_is_refused_when_it_is_compiled() -> None:
    swapped = ["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"]
    command = ["gcc", *swapped, "-w", f"-I{ROOT}", "-fsyntax-only", "-x", "c", str(ROOT / "transports/tcp/frame.h")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and "hocket needs a little-endian processor" in done.stderr


def test_the_other_order_of_bytes_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(SystemExit, match="^hocket needs a little-endian processor: ranks exchange numbers as"):
        runpy.run_path("setup.py")
