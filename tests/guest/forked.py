"""Ranks that are forked from the test's own process: in the guest, to start Python and import NumPy takes seconds.

They are real processes all the same, each with its own environment, output and temporary directory, killed and waited
for by number; on "hosts" of their own if wished.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pathlib
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.jobs import Ended

LIMIT = 150.0
"""Seconds that a job may take: an emulated machine beside others is slow, a hang is longer."""
PATIENCE = 15.0
"""Seconds that the others have when a rank has failed."""
NEWNS, NEWNET = 0x20000, 0x40000000
BIND, PRIVATE = 0x1000, 1 << 18 | 0x4000  # MS_PRIVATE, and below it too
_libc = ctypes.CDLL(None, use_errno=True)


class Job:
    """`size` ranks that call `function()`; under a launcher's environment, and `env[rank]` on top of it.

    with Job(2, function, tmp_path) as job:
        job.signal(1, signal.SIGKILL); ends = job.wait()

    `hosts`: rank -> the number of its host.  Ranks of different hosts see nothing of each other's temporary
    directories, so no shared memory is possible between them.  `nets`: host -> its network namespace; without,
    all hosts share one network.  `master` is where rank 0 listens, if there are hosts.
    """

    def __init__(
        self, size: int, function: Callable[[], Any], where: pathlib.Path, env: Sequence[Mapping[str, str]] = (),
        hosts: Sequence[int] = (), nets: Sequence[str] = (), master: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        self.size, self.function, self.where = size, function, where
        self.env, self.hosts, self.nets = env or [{}] * size, hosts, nets
        self.codes: dict[int, int] = {}
        secret = {"HOCKET_SECRET": secrets.token_hex(32)}
        if hosts:
            self.common = {**secret, "MASTER_ADDR": master, "MASTER_PORT": "29500", "WORLD_SIZE": str(size)}
        else:
            meeting = f"unix:{where}/meet"
            sizes = {"HOCKET_SIZE": str(size), "HOCKET_LOCAL_SIZE": str(size)}
            self.common = {**secret, **sizes, "HOCKET_RENDEZVOUS": meeting}

    def __enter__(self) -> Job:
        self.where.mkdir(mode=0o700, exist_ok=True)
        for name in ("signs", "tmp", *(f"host{h}" for h in set(self.hosts))):
            (self.where / name).mkdir(exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pids = [os.fork() or self._rank(r) for r in range(self.size)]
        return self

    def _rank(self, rank: int) -> int:
        """In the child, which never comes back from here."""
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, stream in ((1, "out"), (2, "err")):
                file = os.open(self.where / f"{stream}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(file, number)
                os.close(file)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            faulthandler.enable(2)
            faulthandler.dump_traceback_later(LIMIT - 5, file=2)
            self._settle(rank)
            self.function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _settle(self, rank: int) -> None:
        own = {"HOCKET_RANK": str(rank), "HOCKET_LOCAL_RANK": str(rank)} if not self.hosts else {"RANK": str(rank)}
        tmp = str(self.where / "tmp")
        os.environ.update({**self.common, **own, "FAULTY": str(self.where / "signs"), "TMPDIR": tmp, **self.env[rank]})
        tempfile.tempdir = None
        if not self.hosts:
            return
        host = self.hosts[rank]
        if self.nets:
            with open(f"/run/netns/{self.nets[host]}") as file:
                _sure(_libc.setns(file.fileno(), NEWNET))
        _sure(_libc.unshare(NEWNS))
        _sure(_libc.mount(b"none", b"/", None, PRIVATE, None))
        _sure(_libc.mount(os.fsencode(self.where / f"host{host}"), tmp.encode(), None, BIND, None))

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def wait(self, seconds: float = LIMIT) -> list[Ended]:
        """Every rank's end; ranks still there after `seconds` are killed and the test fails."""
        deadline = time.monotonic() + seconds
        while len(self.codes) < self.size and time.monotonic() < deadline:
            self._reap(os.WNOHANG)
            if any(code not in (0, -signal.SIGKILL) for code in self.codes.values()):
                deadline = min(deadline, time.monotonic() + PATIENCE)
            time.sleep(0.01)
        late = [r for r in range(self.size) if r not in self.codes]
        self._end()
        ends = [Ended(self.codes[r], self._read(f"out{r}"), self._read(f"err{r}")) for r in range(self.size)]
        if late:
            said = "\n".join(f"--- rank {r}\n{end.out}{end.err}" for r, end in enumerate(ends))
            raise AssertionError(f"ranks {late} did not end within {seconds} s\n{said}")
        return ends

    def _reap(self, flags: int) -> None:
        for rank, pid in enumerate(self.pids):
            if rank not in self.codes:
                found, status = os.waitpid(pid, flags)
                if found:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)

    def _end(self) -> None:
        for rank, pid in enumerate(self.pids):
            if rank not in self.codes:
                os.kill(pid, signal.SIGKILL)
        self._reap(0)

    def _read(self, name: str) -> str:
        return (self.where / name).read_text()

    def __exit__(self, kind: object, *exc: object) -> None:
        self._end()
        places = [self.where / name for name in ("tmp", *(f"host{h}" for h in set(self.hosts)))]
        left = [str(path) for place in places for path in place.iterdir()]
        shutil.rmtree(self.where, ignore_errors=True)
        # What a killed rank of shm has in TMPDIR is gone once all have met.
        assert kind is not None or not left, f"left behind: {left}"


def _sure(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def outputs(ends: Sequence[Ended]) -> list[str]:
    """The output of each rank; all must have ended with 0."""
    failed = [f"--- rank {r} ended with {end.code}:\n{end.err}{end.out}" for r, end in enumerate(ends) if end.code]
    assert not failed, "\n".join(failed)
    return [end.out for end in ends]
