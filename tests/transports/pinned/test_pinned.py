"""Channels of GPU memory through pinned host memory: over_pinned.py, over the stand-in for the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.gpu import stand_in as stand_in_cuda

HERE = Path(__file__).parent


def run(stand_in: Path, marked: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "30"]
    with stand_in_cuda.machine(stand_in / "libcuda.so.1") as env:
        command += ["--durations", "5", "-m", marked, "-p", "pinned_ranks", str(HERE / "over_pinned.py")]
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [env.get("PYTHONPATH")])])
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=stand_in_cuda.ROOT, timeout=110)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.gpu
def test_channels_through_pinned_memory(stand_in: Path) -> None:
    run(stand_in, "not gpu")


@pytest.mark.gpu
def test_every_law_on_every_host_channel(stand_in: Path) -> None:
    run(stand_in, "gpu")
