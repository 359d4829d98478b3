"""The process that ranks are forked from: imports what every rank needs, then forks one for each order.

An order is JSON, the variables of that rank, and descriptors beside it (`Order`).  A rank becomes a child of the
launcher, as if that had started it: the server forks a process that forks the rank and ends, and orphans go to the
launcher while that is a subreaper (prctl(2)).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import socket
import sys
import time
from importlib import import_module
from typing import Any, NamedTuple

from hocket.system.parent import die_with
from hocket.transports import registry

PLACE = "HOCKET_FORKS"
"""The variable that makes a process such a server: its end of the socket, a descriptor, and the program's folder."""
READY = b"ready"
"""Its word when a rank can be forked; otherwise it says why not."""
MODULES = ("numpy", "hocket.collectives.public", "hocket.transports.shm.transport", "hocket.transports.tcp.transport")
MOST = 1 << 16
"""Bytes of an order."""


class Order(NamedTuple):
    """The things that a rank has of its own."""

    environ: dict[str, str]
    descriptors: list[int | str]
    """Each of the descriptors beside it becomes this: that number, or one that this variable tells."""
    cores: list[int]
    """It runs on these alone; none named: on all of the server's."""


SHARED: list[str] = []
"""In a rank: the modules that were there before it was forked."""
OWN = {"__main__", "builtins", "sys"}
"""These hold what the program itself has made, so they are taken down at its end."""


def leave() -> None:
    """The last thing at exit: Python's end shall not take apart the modules that ranks share, and so copy their pages.

    The program's own modules and globals are taken down as ever.  Without this a rank's end takes 8 ms more of CPU.
    """
    if SHARED:
        gc.collect()
        Last()


def forget_this_folder(ours: str) -> None:
    """Leave no trace of how this began: neither for the program nor for what it starts."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != ours]
    rest = os.environ["PYTHONPATH"].split(os.pathsep)[1:]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        del os.environ["PYTHONPATH"]


def serve() -> None:
    """Fork for every order, until the launcher closes the socket; returns in the ranks."""
    fd, _, folder = os.environ.pop(PLACE).partition(":")
    launcher = socket.socket(fileno=int(fd))
    parent = os.getppid()
    try:
        for module in MODULES:
            import_module(module)
        registry.known()  # looks at all packages, once
        launcher.send((_why_not(folder) or "").encode() or READY)
    except BaseException as why:  # the ranks are started as they are, and say it themselves
        with contextlib.suppress(OSError):
            launcher.send(f"{type(why).__name__}: {why}".encode()[:MOST])
        os._exit(1)
    gc.collect()
    gc.freeze()  # a rank that looks for garbage there would copy every page
    while True:
        data, fds, _, _ = socket.recv_fds(launcher, MOST, 4, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        try:
            pid = _fork_twice()
            reply = str(pid)
        except OSError as why:
            pid, reply = -1, str(why.strerror)
        if pid == 0:
            launcher.close()
            _become(Order(*json.loads(data)), fds, parent)
            return
        for each in fds:
            os.close(each)
        launcher.send(reply.encode())


def _why_not(folder: str) -> str | None:
    """The reason why programs of this folder cannot be forked here."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "NumPy has started threads"
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    own = {entry.name.partition(".")[0] for entry in os.scandir(folder)}
    if both := loaded & own - {"", "__pycache__"}:
        return f"the program may have a module {min(both)!r} of its own"
    return None


def _fork_twice() -> int:
    """The pid of a rank, whose parent has ended; 0: this is that rank."""
    source, sink = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(source)
        _fork_and_end(sink)
        return 0
    os.close(sink)
    with open(source, "rb") as file:
        said = file.read()
    os.waitpid(between, 0)  # now the rank is the launcher's
    if not said:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return int(said)


def _fork_and_end(sink: int) -> None:
    """Returns in the rank, when its parent has ended."""
    between = os.getpid()
    try:
        pid = os.fork()
        if pid:
            os.write(sink, str(pid).encode())
    except OSError:
        os._exit(1)
    if pid:
        os._exit(0)
    os.close(sink)
    while os.getppid() == between:
        time.sleep(0.0002)


def _become(order: Order, fds: list[int], launcher: int) -> None:
    """Be as a process that the launcher has started."""
    die_with(launcher)()
    os.setsid()
    for target, fd in zip(order.descriptors, fds, strict=True):
        if isinstance(target, int):
            os.dup2(fd, target)
            os.close(fd)
        else:
            os.environ[target] = str(fd)
    SHARED.extend(sys.modules.keys() - OWN)
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    os.environ.update(order.environ)
    if "numpy.random" in sys.modules:  # Python's own generator does so by itself
        import_module("numpy.random").seed()
    _thaw(vars(sys.modules["__main__"]))


class Last:
    """Garbage that Python finds when no thread runs any more, just before it takes modules apart."""

    def __init__(self) -> None:
        self.own = self
        self.modules, self.keep, self.boxed = sys.modules, ctypes.pythonapi.Py_IncRef, ctypes.py_object

    def __del__(self) -> None:
        for name in SHARED:
            if (module := self.modules.get(name)) is not None:
                self.keep(self.boxed(module))
                self.modules[name] = None  # type: ignore[assignment]  # as Python itself does it then


def _thaw(one: dict[str, Any]) -> None:
    """Python's end drops what the program's globals hold only if they are looked through for garbage, too."""
    for change in (ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track):
        change(ctypes.py_object(one))
