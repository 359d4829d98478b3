"""Channels of GPU memory through pinned host memory: over_staged.py, over the stand-in for the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import stand_in_cuda

HERE = Path(__file__).parent


def run(folder: Path, marked: str) -> None:
    library = stand_in_cuda.build(folder)
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "30"]
    with stand_in_cuda.machine(library) as env:
        command += ["--durations", "5", "-m", marked, str(HERE / "over_staged.py")]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=stand_in_cuda.ROOT, timeout=110)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_channels_through_pinned_memory(tmp_path: Path) -> None:
    run(tmp_path, "not gpu")


@pytest.mark.gpu
def test_every_law_on_every_host_channel(tmp_path: Path) -> None:
    run(tmp_path, "gpu")
