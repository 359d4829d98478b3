"""Ranks that start warm: forked from a process that has imported NumPy, hocket and what else they want of torch.

`python warm_ranks.py FD [MODULE ...]` listens on the socket FD, imports the modules, and then forks a process for each
order that comes: a program, its environment, its host if it has one of its own, and where its output goes.  `Warm` is
the other end, in the test; all processes of a test run share one such parent for each list of modules, which ends after
them, and its ranks with it: a test run that is killed leaves nothing behind.  A third of a second for each rank, two
with torch, six with DDP is what this saves; the ranks are processes like others.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import glob
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Sequence
from typing import Any

from hocket.system.parent import die_with

MODULES = [
    "numpy", "importlib.metadata", "hocket.collectives.job.init", "hocket.collectives.communicator.communicator",
    "pytest", "support.worlds",
]  # fmt: skip
"""The last two are imported by the test files from which ranks take their programs."""
TORCH = ["torch", "torch.distributed", "hocket.torch"]
DDP = ["torch._dynamo", "torch._inductor.compile_fx"]
"""The first is imported by the first DDP or FSDP module, or optimizer, of a process."""
SKLEARN = ["sklearn.datasets"]
"""Three seconds, for the digits of examples/."""
NEED_DDP = ("Parallel(", "fully_shard", "torch._dynamo", "optim")
MOST = 1 << 16  # bytes of an order
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000  # CLONE_NEWNS, MS_...
libraries: list[ctypes.CDLL] = []


class Warm:
    """One such rank: what is used of `subprocess.Popen`.  Its output is text."""

    def __init__(self, script: str, env: dict[str, str], source: str, host: Sequence[str] = ()) -> None:
        out, err = os.pipe(), os.pipe()
        self._end, theirs = socket.socketpair()
        order = json.dumps({"script": script, "env": env, "host": host}).encode()
        fds = array.array("i", [out[1], err[1], theirs.fileno()])
        _parent(*_wanted(source)).sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        theirs.close()
        self.stdout, self.stderr = (os.fdopen(each[0], encoding="utf-8", errors="replace") for each in (out, err))
        os.close(out[1])
        os.close(err[1])
        self._lines = self._end.makefile("r")
        self.pid, self.returncode = int(self._lines.readline()), None
        self._said: list[list[str]] = [[], []]
        self._readers: list[threading.Thread] = []

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._end.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        deadline = time.monotonic() + (1e6 if timeout is None else timeout)
        if not self._readers:
            for file, said in zip((self.stdout, self.stderr), self._said, strict=True):
                self._readers.append(threading.Thread(target=_read, args=(file, said), daemon=True))
                self._readers[-1].start()
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
        self.wait(max(0.0, deadline - time.monotonic()))
        return "".join(self._said[0]), "".join(self._said[1])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _read(file: Any, said: list[str]) -> None:
    said.append(file.read())
    file.close()


def _wanted(source: str) -> list[str]:
    """What a program imports."""
    if "torch" not in source:
        return [*MODULES, *(SKLEARN if "sklearn" in source else [])]
    return [*MODULES, *TORCH, *(DDP if any(word in source for word in NEED_DDP) else [])]


@functools.cache
def _parent(*modules: str) -> socket.socket:
    """A connection to the process that ranks are forked from; who comes first starts it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = f"\0hocket-warm-{run}-{len(modules)}"  # a list begins with the shorter one, so its length names it
    while True:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(ConnectionRefusedError):
            ours.connect(address)
            return ours
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError:  # somebody is about to listen
                ours.close()
                time.sleep(0.01)
                continue
            listener.listen(64)
            ours.connect(address)
            command = [sys.executable, "-X", "faulthandler", __file__, str(listener.fileno()), *modules]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
            subprocess.Popen(command, env=env, pass_fds=[listener.fileno()], start_new_session=True)
            return ours


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each order; in a child, returns what it is to run.  None: the test run is over."""
    tests: list[socket.socket] = [listener.accept()[0]]
    with_parent = die_with(os.getpid())
    ends: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while tests:
        ready, _, _ = select.select([listener, woken, *tests], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(ends)
        if listener in ready:
            tests.append(listener.accept()[0])
        for test in set(tests) & set(ready):
            data, fds, _, _ = socket.recv_fds(test, MOST, 3)
            if not data:
                tests.remove(test)
                test.close()
                continue
            out, err, end = fds
            pid = os.fork()
            if pid == 0:
                with_parent()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                os.dup2(out, 1)
                os.dup2(err, 2)
                for each in [*fds, woken, wakes, *(other.detach() for other in [listener, *tests, *ends.values()])]:
                    os.close(each)
                order: dict[str, Any] = json.loads(data)
                return order
            os.close(out)
            os.close(err)
            ends[pid] = socket.socket(fileno=end)
            ends[pid].send(f"{pid}\n".encode())
    return None


def _reap(ends: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with contextlib.suppress(OSError), ends.pop(ended[0]) as end:  # the test may be over
                end.send(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _move(namespace: str, own: str, seen_at: str) -> None:
    """To that network namespace, where the folder `own` is at `seen_at`: as system/namespaces/hosts.py's `on`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        steps = [libc.setns(file.fileno(), 0), libc.unshare(NEW_MOUNTS)]
    steps.append(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
    steps.append(libc.mount(own.encode(), seen_at.encode(), None, BIND, None))
    assert not any(steps), os.strerror(ctypes.get_errno())


def _end_without_torch() -> None:
    """At this process's end, after Python's and our own handlers, leave torch's as they are: they take 0.2 s."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)


def _keep_openssl() -> None:
    """At this process's end, OpenSSL frees what it holds for each thread, and so does each thread that ends just then.

    Python's own end leaves threads the time to be gone before.  Ours does not, so OpenSSL shall free nothing.
    """
    assert "_hashlib" not in sys.modules  # too late
    found = importlib.util.find_spec("_hashlib")
    assert found is not None
    no_atexit = ctypes.c_uint64(0x80000)  # OPENSSL_INIT_NO_ATEXIT
    ctypes.CDLL(found.origin).OPENSSL_init_crypto(no_atexit, None)


def _become(order: dict[str, Any]) -> dict[str, Any]:
    """Be as a process that was started so; the globals of its program."""
    if "torch" in sys.modules:
        _end_without_torch()
    os.environ.clear()
    os.environ.update(order["env"])
    if order["host"]:
        _move(*order["host"], os.environ["TMPDIR"])
    if "FAKE_CUDA" in os.environ:  # the loader reads its path at a process's start, but knows by name what is loaded
        folder = os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)[0]
        libraries.extend(map(ctypes.CDLL, sorted(glob.glob(f"{folder}/lib*.so.*"))))
    tempfile.tempdir = None  # as TMPDIR says now
    script = order["script"]
    sys.argv[:] = [script]
    sys.path[0] = os.path.dirname(script)
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    return vars(main)


def _end(program: dict[str, Any]) -> None:
    """End well, as Python does, but leave the modules that the parent imported whole: 30 ms, with torch 80.

    A program that raises ends as ever.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    program.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(0)  # with the GIL: no other thread's Python runs any more


if __name__ == "__main__":
    sys.path[0] = os.path.dirname(sys.path[0])  # where `support` is
    _keep_openssl()
    for module in sys.argv[2:]:
        __import__(module)
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]
        each.atexit = False  # torch takes each of its operators back: 40 ms
    gc.collect()
    gc.freeze()  # each rank would look through all of it for garbage, at its end at least: half of a test run's time
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        with open(found["script"], encoding="utf-8") as program:
            text = program.read()
        main = _become(found)
        exec(compile(text, found["script"], "exec"), main)
        _end(main)
