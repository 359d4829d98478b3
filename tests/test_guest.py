"""The guest with RDMA devices (guest/run.sh): it boots, gives back what the command gave, and ends in every way."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time

import pytest

RUN = pathlib.Path(__file__).parent / "guest" / "run.sh"
WHY_NOT = "RDMA verbs are tested in a virtual machine: make test-verbs"


def guest(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(RUN), *words], env={**os.environ, **env}, capture_output=True, text=True)


@pytest.mark.skipif("GUEST_TESTS" not in os.environ, reason=WHY_NOT)
@pytest.mark.timeout(400)
def test_the_guest(tmp_path: pathlib.Path) -> None:
    out, path = tmp_path / "out", {"TMPDIR": str(tmp_path / "tmp")}
    out.mkdir()
    (tmp_path / "tmp").mkdir()
    assert guest("--fill").returncode == 0
    header = pathlib.Path(guest("--include").stdout.strip()) / "infiniband" / "verbs.h"
    assert "ibv_post_send" in header.read_text()

    said = f"ibv_devices; echo $0 $1 >&2; echo here >{out}/file; echo no >{tmp_path}/elsewhere; exit 7"
    done = guest("bash", "-c", said, "a b", "it's", GUEST_OUT=str(out), **path)
    assert done.returncode == 7 and done.stderr == "a b it's\n", done
    assert "rxe0" in done.stdout and "rxe1" in done.stdout, done
    assert (out / "file").read_text() == "here\n" and not (tmp_path / "elsewhere").exists()

    late = guest("sleep", "100", GUEST_TIMEOUT="8", **path)
    assert late.returncode == 124 and "GUEST_TIMEOUT=8" in late.stderr, late
    broken = guest("bash", "-c", "echo c >/proc/sysrq-trigger", **path)
    assert broken.returncode == 125 and "did not finish" in broken.stderr, broken

    nobody_reads = subprocess.run(f"{RUN} yes | head -n 1; echo ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash",
                                  env={**os.environ, **path}, capture_output=True, text=True)  # fmt: skip
    assert nobody_reads.stdout == "y\n141\n", nobody_reads

    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen([str(RUN), "sleep", "100"], env={**os.environ, **path}) as process:
            deadline = time.monotonic() + 30
            while not machines(tmp_path) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert machines(tmp_path)
            process.send_signal(number)
            process.wait(10)
        gone_by = time.monotonic() + 10
        while machines(tmp_path):
            assert time.monotonic() < gone_by
            time.sleep(0.1)
    assert guest("true", **path).returncode == 0
    assert os.listdir(tmp_path / "tmp") == []


def machines(place: pathlib.Path) -> list[str]:
    """The virtual machines whose control folder is there."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"qemu-system" in words and f"path={place}".encode() in words:
            found.append(pid)
    return found
