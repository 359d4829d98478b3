"""Nobody is taken for dead but whom the kernel proves to be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from hocket.control.elastic import processes
from hocket.control.reactor import Reactor

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
TELL = "from hocket.control.elastic.processes import kernel, started; import os; print(started(os.getpid()), kernel())"


def ends(pid: int, since: int, act: Callable[[], object] = lambda: None, within: float = 30.0) -> bool:
    """Is it said to have ended, now or when `act` was called?"""
    reactor, told = Reactor(), list[int]()
    try:
        processes.watch(reactor, pid, since, lambda: told.append(pid))
        act()
        until = time.monotonic() + within
        while not told and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        reactor.close()
    return bool(told)


def test_the_living_who_cannot_be_seen_are_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid, no /proc, or another's time: its death is told all the same."""
    with subprocess.Popen(["sleep", "60"]) as process:
        begun = processes.started(process.pid)
        assert begun and not ends(process.pid, begun, within=0.2) and ends(process.pid, begun + 1)
        monkeypatch.setattr(processes, "started", lambda pid: 0)
        assert not ends(process.pid, begun, within=0.2) and not ends(process.pid, 0, within=0.2)
        assert ends(process.pid, begun, process.kill)
    assert ends(process.pid, 0)  # nobody has this pid


def test_a_process_reads_the_start_that_others_read_of_it() -> None:
    """Else it is another one, and dead.  (An emulator tells a fork its parent's: `make test-aarch64`.)"""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(there, str(processes.started(os.getpid())).encode())
        os._exit(0)
    begun = processes.started(pid)  # also of one that has ended, until it is waited for
    os.waitpid(pid, 0)
    assert begun > 0 and os.read(here, 100) == str(begun).encode()
    os.close(here)
    os.close(there)


def test_without_proc_no_two_processes_are_of_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.kernel() == processes.kernel()
    monkeypatch.setattr(os, "stat", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert processes.kernel() != processes.kernel()


@ROOT
@pytest.mark.parametrize("flags", [["--time", "--boottime", "100000"], ["--pid"]])
def test_start_times_of_another_namespace_are_not_compared(flags: list[str]) -> None:
    """--pid: /proc still shows the pids of the namespace outside."""
    words = ["unshare", *flags, "--fork", sys.executable, "-c", TELL]
    since, kernel = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert since == "0" and (kernel == processes.kernel()) == ("--time" in flags)
