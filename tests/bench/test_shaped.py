"""The simulator's test bench: two hosts come and go, and a run of it prints what it found.

How near measured and simulated are is for `python -m hocket.bench.shaped` on a machine with nothing else to do.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from hocket.bench import shaped
from hocket.errors import ArgumentError
from hocket.system.namespaces.hosts import PREFIX, hosts, ip, refusal, remove_stale


def working_in(place: pathlib.Path) -> list[str]:
    """The processes whose TMPDIR is there or below: the program and its ranks."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if f"TMPDIR={place}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


WHY_NOT = refusal("1gbit")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def ours(pid: int) -> list[str]:
    return [name for name in ip("netns", "list").split() if name.startswith(f"{PREFIX}{pid}")]


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert shaped.main(["--bytes", "256K"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("# measured: cable ")
    rows = {cells[1].strip(): [cell.strip() for cell in cells] for cells in (line.split("|") for line in out[3:])}
    assert set(rows) == {"hierarchical", "ring"}
    for name, share in (("hierarchical", 1.0), ("ring", 1.5)):
        assert rows[name][2] == "262144" and share <= float(rows[name][7]) < share * 1.05
        for sent in rows[name][6].split(", "):
            assert share * 0.95 < float(sent) < share * 1.3, "the bytes that the schedule says, and headers"
    assert ours(os.getpid()) == []


def test_a_missing_install_is_no_reason_to_skip(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("unshare", "true"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal.__wrapped__() is None
    with pytest.raises(ArgumentError, match="no `ip` here: install iproute2"), hosts():
        pass


def test_hosts_go_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), hosts("1gbit") as names:
        assert sorted(ours(os.getpid())) == names
        raise ZeroDivisionError
    assert ours(os.getpid()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_hosts_go_when_it_is_ended(number: int, tmp_path: pathlib.Path) -> None:
    """At once; after SIGKILL by whoever comes next."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "hocket.bench.shaped", "--rate", "10mbit"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while len(ours(process.pid)) < 2 or len(os.listdir(tmp_path)) < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        while len(working_in(tmp_path)) < 5:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.7)
        process.send_signal(number)
        process.wait(30)
    gone_by = time.monotonic() + 5.0  # by themselves, over this cable, they would go on for minutes
    while working_in(tmp_path):
        assert time.monotonic() < gone_by
        time.sleep(0.05)
    if number == signal.SIGKILL:
        remove_stale()  # another test run may have come before us
    else:
        assert os.listdir(tmp_path) == []
    assert ours(process.pid) == []
