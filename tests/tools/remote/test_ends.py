"""Whichever process of a job over ssh is killed: the failure is named, and nothing is left on any host."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from hocket.system.namespaces.hosts import refusal
from support.sshd import Machines

WHY_NOT = refusal()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PROGRAM = """
import os, subprocess, sys, time
print(os.getpid(), subprocess.Popen(["sleep", "1000"]).pid, os.environ["HOCKET_SECRET"], flush=True)
try:
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""
SILENT = 5.0


class Going:
    """A job of a rank on each host: its process, the ranks' pids, and their secret."""

    def __init__(self, net: Machines) -> None:
        program = net.folder / "sleeps.py"
        program.write_text(PROGRAM)
        self.net = net
        command = net.run(3, "--grace", "30", "--timeout-grace", "0.3", str(program), each=1, lost=SILENT)
        self.process = subprocess.Popen(
            command, env=net.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ranks, self.secrets = {}, set[str]()
        for _ in range(3):
            prefix, rank, _, secret = self.process.stdout.readline().split()
            self.ranks[int(prefix.strip("[]"))] = int(rank)
            self.secrets.add(secret)

    def find(self, *words: str) -> list[int]:
        """The processes with these words in their command lines, by pid."""
        each = self.net.processes().items()
        return sorted(pid for pid, line in each if all(word in " ".join(line) for word in words))

    def end(self) -> tuple[int, str]:
        """The exit code and the launcher's words; nothing is left."""
        _, err = self.process.communicate(timeout=60)
        end = time.monotonic() + SILENT + 30
        while left := self.net.processes():
            assert time.monotonic() < end, left
            time.sleep(0.02)
        return self.process.returncode, err


@pytest.fixture
def going(net: Machines) -> Iterator[Going]:
    job = Going(net)
    yield job
    job.process.kill()
    for pid in job.find():
        os.kill(pid, signal.SIGKILL)
    job.process.communicate()


def test_the_launcher_is_killed(going: Going) -> None:
    going.process.kill()
    going.end()


def test_an_agent_is_killed(going: Going) -> None:
    """Its ranks' children, too."""
    agents = [pid for pid in going.find("hocket.tools.remote.agent") if name_of(pid) == "c"]
    os.kill(next(pid for pid in agents if children(pid)), signal.SIGKILL)
    code, err = going.end()
    assert code == 1 and "hocket run: host c: its agent has gone, and its ranks with it" in err, err


@pytest.mark.more
def test_a_rank_is_killed(going: Going) -> None:
    os.kill(going.ranks[1], signal.SIGKILL)
    code, err = going.end()
    assert code == 137 and f"hocket run: rank 1 (pid {going.ranks[1]} on b) was killed by SIGKILL" in err, err


def test_the_network_goes(going: Going) -> None:
    """ssh notices nothing by itself, on either side."""
    going.net.switch.pull(1)
    began = time.monotonic()
    try:
        going.process.wait(60)
        took = time.monotonic() - began
        end = time.monotonic() + 30
        while left := [pid for pid in going.find() if name_of(pid) == "b" and "sshd" not in command(pid)]:
            assert time.monotonic() < end, left
            time.sleep(0.02)
    finally:
        going.net.switch.plug(1)
    for pid in going.find("sshd: root@notty"):  # it retries until TCP gives up: the host's own affair
        os.kill(pid, signal.SIGKILL)
    code, err = going.end()
    assert code == 1 and f"hocket run: host b: it has been silent for {SILENT:g} s" in err and took < 40, err


def test_interrupted_and_where_the_secret_is(going: Going) -> None:
    """One secret, on no command line and in no environment but the ranks' and their children's."""
    (secret,) = going.secrets
    holders = set()
    for pid in [going.process.pid, *going.find()]:
        assert secret not in command(pid)
        if secret.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
            holders.add(pid)
    assert {pid for pid in holders if "sleep 1000" not in command(pid)} == set(going.ranks.values())
    going.process.send_signal(signal.SIGINT)
    out, err = going.process.communicate(timeout=60)
    assert going.process.returncode == 130 and out.count("interrupted") == 3, (out, err)
    assert going.net.processes() == {} and "interrupted; the ranks have 30 s to end" in err


def command(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def name_of(pid: int) -> str:
    """The host that a process is on: its folder for temporary files tells."""
    mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return next((line.split()[3].rpartition("/")[2] for line in mounts if line.split()[4].endswith("/tmp")), "")


def children(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
