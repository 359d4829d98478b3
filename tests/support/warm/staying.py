"""Ranks that stay: a process that runs one program after another, as the start and the end of one cost most of a job.

A program that is started with `Staying` instead of `Popen` runs in a process that has run others before, if one of its
kind is idle.  It gets what `program.run` gives: variables, streams, paths, a new `__main__`.  At its end communicators
are closed as at a process's exit.  Where anything else happened (an error, a signal, a thread or a descriptor that is
left, a handler at exit), the process ends for good, so no later program meets it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from support.warm import parent, popen, program
from support.warm.popen import spent

START = "from support.warm.staying import serve; serve({fd})  # {kind}"
KINDS = ("torch", "sklearn", *parent.NEED_DDP)
"""Words of a program that tell which warm parent it is forked from."""
LEAVES_MORE = ("hocket.collectives.gpu.context", "mpi4py.MPI")
"""Modules with an end of their own, or of which hocket has one."""


class Rank:
    """Such a process, as the tests see it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.told = 0.0
        """CPU seconds of the programs that it has ended."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-X", "faulthandler", "-c", START.format(fd=theirs.fileno(), kind=kind)]
        env = {**os.environ, "PYTHONPATH": program.TESTS, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        null = subprocess.DEVNULL
        with theirs:
            self.process = popen.Popen(
                words, env=env, stdin=null, stdout=null, stderr=null, pass_fds=[theirs.fileno()], start_new_session=True
            )


idle: dict[str, list[Rank]] = defaultdict(list)


class Staying(popen.Popen):
    """A Popen whose process may be another program's once its end was awaited."""

    _rank: Rank | None = None

    def _order(self, found: program.Program, place: dict[str, Any], fds: list[int]) -> None:
        if self._host or self._cores or place["pass_fds"] or "FAKE_CUDA" in place["env"]:
            super()._order(found, place, fds)
            return
        text = found.text(place["cwd"])
        kind = " ".join(word for word in KINDS if word in text)
        if idle[kind]:
            spent.hear()
        self._rank = idle[kind].pop() if idle[kind] else Rank(kind)
        self._told, theirs = socket.socketpair()
        order = {**place, "program": found, "cores": sorted(os.sched_getaffinity(0))}
        with theirs:
            self._rank.socket.sendmsg(
                [json.dumps(order).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno(), *fds]))],
            )
        self.pid = self._rank.process.pid
        self._child_created = True

    def _hear_end(self, timeout: float | None) -> None:
        if self._rank is None:
            super()._hear_end(timeout)
            return
        assert self._told is not None
        if self.returncode is not None or not select.select([self._told], [], [], timeout)[0]:
            return
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is not None:
                return
            if data := self._told.recv(100):
                cpu = float(data)
                spent.cpu += cpu
                self._rank.told += cpu
                self.returncode = 0
                idle[self._rank.kind].append(self._rank)
            else:
                self.returncode = self._rank.process.wait()
                spent.cpu -= self._rank.told
                self._rank.socket.close()


# --- in a rank


def serve(fd: int) -> None:
    """Run the programs that are ordered, until the test process has ended."""
    import hocket

    program.end_without_torch()
    orders = socket.socket(fileno=fd)
    hocket.init().close()  # opens what a process keeps
    _drop_recorder()
    handlers = atexit._ncallbacks()
    path = ""
    while True:
        data, fds, _, _ = socket.recv_fds(orders, parent.MOST, 4)
        if not data:
            os._exit(0)
        order = json.loads(data)
        _forget_modules(path, path := order["env"].get("PYTHONPATH", ""))
        began, before = time.process_time(), _held()
        _be(order, fds[1:])
        more = atexit._ncallbacks() > handlers or any(name in sys.modules for name in LEAVES_MORE)
        if more or _wrong_at_end() or _held() - before:
            program.end(0)
        with socket.socket(fileno=fds[0]) as told:
            told.send(str(time.process_time() - began).encode())


def _forget_modules(before: str, now: str) -> None:
    """Test files of several folders may have one name."""
    gone = set(before.split(os.pathsep)) - {"", *now.split(os.pathsep)}
    for name, module in list(sys.modules.items()):
        if os.path.dirname(getattr(module, "__file__", None) or "") in gone:
            del sys.modules[name]


def _be(order: Mapping[str, Any], streams: list[int]) -> None:
    """Run the program.  One that does not end well, or that has threads to wait for, is this process's last."""
    from hocket.collectives.start import init

    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    program.forget()
    if order["cores"] != sorted(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, order["cores"])
    os.chdir(order["cwd"])
    init._config = None  # read once in a process
    logging.getLogger("hocket").handlers.clear()
    code = program.ended(program.Program(*order["program"]), order["env"], order["words"])
    threads = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if code is not None or threads:
        program.end(code)


def _wrong_at_end() -> bool:
    """Close what is open, as at exit.  Was there an error?"""
    from hocket.collectives.start import init
    from hocket.system import exit_code

    class Watched:
        wrong = False

        def at_least(self, code: int) -> None:
            self.wrong = True
            exit_code.at_least(code)

    init.exit_code = watched = Watched()  # type: ignore[assignment]
    init._leave()
    init.exit_code = exit_code
    vars(sys.modules["__main__"]).clear()
    _drop_recorder()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with open(os.devnull, "r+b") as null:
        for target in range(3):
            os.dup2(null.fileno(), target)
    return watched.wrong


def _drop_recorder() -> None:
    """Whoever tells what the ranks of its host did last reads those of all processes that have one."""
    from hocket.collectives.recording import recorder
    from hocket.collectives.start import default, init

    default.set_default(None)
    init._worlds.clear()
    recorder.forked()
    gc.collect()


def _held() -> set[str]:
    """Its threads and descriptors."""
    held = {f"{each.name} {each.ident}" for each in threading.enumerate()}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            held.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return held
