"""The process that ranks are forked from: a copy of this one, as it was before it began threads and jobs.

So a rank has all that was imported here, the tests among it, and its start costs milliseconds.  An order is the rank's
environment, and its end of a connection beside it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from hocket.system.parent import die_with
from hocket.tools.forking.server import MODULES

MOST = 1 << 18
"""Bytes of an order."""
Order = tuple[str, Any]
"""("fork", a rank's environment) or ("reap", its pid)."""


class Zygote:
    """This process's end.  The other ends with it, however it ends, and its ranks do so, too."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = quiet_fork()
        if self.pid == 0:
            self._ours.close()
            _in_child(lambda: _serve(theirs, parent))
        theirs.close()

    def fork(self, env: dict[str, str], theirs: int) -> int:
        """The pid of a rank, which has this end of a connection, and these variables above those of this process."""
        return int(self._ask(("fork", env), [theirs]))

    def reap(self, pid: int) -> int:
        """Wait for a rank's end: its exit code, or the signal that killed it as a negative number."""
        return int(self._ask(("reap", pid)))

    def close(self) -> None:
        """End it, and its ranks."""
        self._ours.close()
        with contextlib.suppress(ChildProcessError):  # somebody has waited for any child
            os.waitpid(self.pid, 0)

    def _ask(self, order: Order, fds: tuple[int, ...] | list[int] = ()) -> Any:
        data = pickle.dumps(order)
        assert len(data) <= MOST
        socket.send_fds(self._ours, [data], fds)
        said = self._ours.recv(MOST)
        if not said:
            raise BrokenPipeError("the process that ranks are forked from has ended")
        return pickle.loads(said)


def quiet_fork() -> int:
    """os.fork, with nothing in buffers that both would write.

    Python warns of other threads; the child needs no lock that they may hold.
    """
    _flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _in_child(main: Callable[[], None]) -> None:
    """The child never returns to what its parent was doing, and leaves its parent's exit handlers alone."""
    code = 1
    try:
        main()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none, or a closed one
            stream.flush()  # type: ignore[union-attr]


def _serve(orders: socket.socket, parent: int) -> None:
    die_with(parent)()
    os.setsid()  # a terminal's signals are for the parent, which ends its ranks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as with `hocket run`: every rank would take all cores
    for module in MODULES:
        import_module(module)
    from hocket.tools.testing import rank

    gc.collect()
    gc.freeze()  # a rank that looks for garbage there would copy every page
    own = os.getpid()
    while True:
        data, fds, _, _ = socket.recv_fds(orders, MOST, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        what, value = pickle.loads(data)
        if what == "reap":
            reply = os.waitstatus_to_exitcode(os.waitpid(value, 0)[1])
        else:
            end = Connection(fds[0])
            reply = quiet_fork()
            if reply == 0:
                orders.close()
                die_with(own)()
                rank.main(end, value)
                return
            end.close()
        orders.send(pickle.dumps(reply))
