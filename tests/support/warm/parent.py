"""The process that others are forked from: it imports what they want, then forks one for each order.

`python parent.py FD MODULE ...` listens on the socket FD.  An order is JSON: a command, its variables, its folder, its
host if it has one of its own; with it come descriptors.  All processes of a test run share one such parent for each
list of modules, which ends after them, and its children with it: a test run that is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

MODULES = [
    "numpy", "importlib.metadata", "hocket.collectives.start.init", "hocket.collectives.communicator.communicator",
    "pytest", "support.worlds", "support.warm.popen",
]  # fmt: skip
"""The last three are imported by the test files from which ranks take their programs."""
COMMANDS = [
    "hocket.tools.cli", "hocket.tools.run", "hocket.tools.forking.ranks", "hocket.collectives.public",
    "hocket.transports.shm.transport", "hocket.transports.tcp.transport", "hocket.training",
]  # fmt: skip
TORCH = ["torch", "torch.distributed", "hocket.torch"]
DDP = ["torch._dynamo", "torch._inductor.compile_fx"]
"""The first is imported by the first DDP or FSDP module, or optimizer, of a process."""
SKLEARN = ["sklearn.datasets"]
"""Three seconds, for the digits of examples/."""
NEED_DDP = ("Parallel(", "fully_shard", "torch._dynamo", "optim", "import functions", "DistributedTest")
RUN = "TESTS_RUN"
"""A variable: the number of the test run, whose processes share warm parents."""
MOST = 1 << 17  # bytes of an order
NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000  # CLONE_NEWNS, MS_...


def wanted(text: str) -> list[str]:
    """Modules that a program imports."""
    modules = [*MODULES, *COMMANDS]
    if "torch" not in text:
        return [*modules, *(SKLEARN if "sklearn" in text else [])]
    return [*modules, *TORCH, *(DDP if any(word in text for word in NEED_DDP) else [])]


def connected(text: str) -> socket.socket:
    """A connection to the parent that has what a program of this text imports; who comes first starts it."""
    return _connected(*wanted(text))


@functools.cache
def _connected(*modules: str) -> socket.socket:
    run = os.environ.get(RUN, str(os.getpid()))
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
            env.pop("PYTHONPATH", None)
            cold = {"cold": True} if subprocess.Popen.__module__ != "subprocess" else {}
            subprocess.Popen(command, env=env, pass_fds=[listener.fileno()], start_new_session=True, **cold)
            return ours


def _serve(listener: socket.socket) -> tuple[Any, dict[str, Any]] | None:
    """Fork for each order; in a child, returns the program and the order.  None: the test run is over."""
    from hocket.system.parent import die_with
    from support.warm import program

    tests: list[socket.socket] = [listener.accept()[0]]
    with_parent = die_with(os.getpid())
    ends: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run under nohup ignores it
    while tests:
        ready, _, _ = select.select([listener, woken, *tests], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(ends)
        if listener in ready:
            tests.append(listener.accept()[0])
        for test in set(tests) & set(ready):
            data, fds, _, _ = socket.recv_fds(test, MOST, 16)
            if not data:
                tests.remove(test)
                test.close()
                continue
            pid = os.fork()
            if pid == 0:
                with_parent()
                for each in [listener, *tests, *ends.values()]:
                    each.detach()
                order: dict[str, Any] = json.loads(data)
                ordered = program.parsed(order["words"], order["cwd"])
                _place(order, fds)
                return ordered, order
            ends[pid] = socket.socket(fileno=fds[0])
            for each in fds[1:]:
                os.close(each)
            ends[pid].send(str(pid).encode())
    return None


def _place(order: dict[str, Any], fds: list[int]) -> None:
    """Its descriptors, folder, session, signals and cores."""
    from support.warm import program

    os.setsid()
    program.place(dict(zip([0, 1, 2, *order["pass_fds"]], fds[1:], strict=True)))
    program.forget()
    if order["cores"] != sorted(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, order["cores"])
    os.chdir(order["cwd"])
    if order["host"]:
        _move(*order["host"], order["env"]["TMPDIR"])


def _reap(ends: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, used = ended
            with contextlib.suppress(OSError), ends.pop(pid) as end:  # the test may be over
                end.send(f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime}".encode())


def _move(namespace: str, own: str, seen_at: str) -> None:
    """To that network namespace, where the folder `own` is at `seen_at`: as system/namespaces/hosts.py's `on`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        steps = [libc.setns(file.fileno(), 0), libc.unshare(NEW_MOUNTS)]
    steps.append(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
    steps.append(libc.mount(own.encode(), seen_at.encode(), None, BIND, None))
    assert not any(steps), os.strerror(ctypes.get_errno())


def _keep_openssl() -> None:
    """At this process's end, OpenSSL frees what it holds for each thread, and so does each thread that ends just then.

    Python's own end leaves threads the time to be gone before.  Ours does not, so OpenSSL shall free nothing.
    """
    assert "_hashlib" not in sys.modules  # too late
    found = importlib.util.find_spec("_hashlib")
    assert found is not None
    no_atexit = ctypes.c_uint64(0x80000)  # OPENSSL_INIT_NO_ATEXIT
    ctypes.CDLL(found.origin).OPENSSL_init_crypto(no_atexit, None)


if __name__ == "__main__":
    _keep_openssl()
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    sys.path.insert(0, os.path.dirname(os.path.dirname(here)))  # where `support` is
    for module in sys.argv[2:]:
        with contextlib.suppress(ModuleNotFoundError):  # a program that does need it says so itself
            __import__(module)
    from hocket.transports import registry
    from support.warm import popen, program

    registry.load()  # looks at all packages, once
    del sys.path[0]
    program.base_path[:] = sys.path
    popen.install()
    gc.collect()
    gc.freeze()  # each rank would look through all of it for garbage, at its end at least: half of a test run's time
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        popen.become(*found)
