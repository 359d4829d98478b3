"""The shm transport: ranks of one host share memory.

That two ranks share a host is proven, never guessed: both read the same boot id, one connects to the other's Unix
socket (same uid, job key), they exchange the descriptors of their windows, and each finds in the other's memory
the random token that came by the rendezvous.  Containers that cannot see each other's sockets fail the test and
use another transport.

A peer may be hostile, or merely wrong: what it writes can spoil results, but what it says to lie in its window is
looked for within the window's real size.

Cost at start: one Unix connection for each pair of local ranks; then one descriptor for each other local rank, whatever
the number of communicators.
"""

from __future__ import annotations

import array
import contextlib
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from hocket.control.addresses import PATH_LIMIT
from hocket.control.dial import connect
from hocket.control.handshake import Hello
from hocket.errors import PeerLostError, TransportError
from hocket.transports.base import Context, Traits
from hocket.transports.shm.lane import EAGER, NO_MEMORY, SLOT, RingLane
from hocket.transports.shm.window import Window, read_memory

PURPOSE = "shm"
ROOM = 32
"""Bytes of a socket's path below TMPDIR."""
LOOK = 0.1  # seconds between two looks whether the one waited for still lives


def boot_id() -> str:
    """The same on two processes only if one kernel runs both."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def short_directory(prefix: str) -> str:
    """A new folder that only this user can enter, for sockets, whose paths are short: in /tmp if TMPDIR is too long."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > PATH_LIMIT - ROOM:
        base = "/tmp"
    try:
        return tempfile.mkdtemp(prefix=prefix, dir=base)  # 0700
    except OSError as why:
        raise TransportError(f"no folder can be made in {base}: {why.strerror}; set TMPDIR to a short path") from None


PREFIX = "hocket-"
"""Of the name of a rank's folder."""
RINGS = Traits(local=True, polled=True, segment=SLOT, eager=EAGER)
"""A segment is a slot of a ring, and what a ring always copies it also buffers."""


class ShmTransport:
    """Shared memory between the ranks of a host."""

    name = "shm"
    traits = RINGS

    def __init__(self, context: Context) -> None:
        self.context = context
        self.window = Window()
        self.windows: list[Window | None] = [None] * context.size
        self.windows[context.rank] = self.window
        self.pids = [NO_MEMORY] * context.size
        """Of the processes whose memory this one may read, by rank."""
        self._arrived: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._directory = short_directory(PREFIX)
        self._doors: dict[int, str] = {}
        """The sockets of peers; one that is killed before it has shut its own cannot remove it."""
        path = os.path.join(self._directory, str(context.rank))
        self._listener = context.listen(("unix", path), self._on_peer)

    @staticmethod
    def available() -> str | None:
        return None if hasattr(os, "memfd_create") else "this system has no memfd_create"

    def offer(self) -> dict[str, Any]:
        window = self.window
        return {
            "boot": boot_id(), "path": self._listener.address[1], "token": window.token.hex(),
            "kept": window.token_address,
        }  # fmt: skip

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Open the window of every rank that has the same boot id and whose socket is visible."""
        me = self.context.rank
        refusals = [None if r == me else self._visible(offer) for r, offer in enumerate(offers)]
        open_to = [r for r, why in enumerate(refusals) if why is None and r != me]
        self._doors = {r: offers[r]["path"] for r in open_to}
        links: dict[int, socket.socket] = {}
        for r in open_to:
            try:
                if r < me:
                    links[r] = self._dial(r, offers[r]["path"])
            except (PeerLostError, TransportError) as error:
                refusals[r] = str(error)
        deadline = time.monotonic() + self.context.timeout
        for r in open_to:
            try:
                if r > me:
                    links[r] = self._accepted(r, deadline)
                    _give(links[r], self.window.fd)
                elif r in links:
                    _give(links[r], self.window.fd)
            except (OSError, TransportError) as error:
                refusals[r] = f"no connection to its socket: {error}"
        for r in open_to:
            if refusals[r] is None:
                refusals[r] = self._take(links[r], r, offers[r]["token"])
                self.pids[r] = _readable(links[r], offers[r])
        for link in links.values():
            link.close()
        self._shut_door()
        return refusals

    def _visible(self, offer: Any) -> str | None:
        if not offer:
            return "that rank offers no shared memory"
        if offer["boot"] != boot_id():
            return "another host (boot ids differ)"
        if not os.path.exists(offer["path"]):
            return f"same kernel, but its socket {offer['path']} is not visible here (another mount namespace)"
        return None

    def _dial(self, rank: int, path: str) -> socket.socket:
        me = self.context
        link = connect(("unix", path), me.key, me.hello(PURPOSE, rank), me.timeout, me.look)
        link.settimeout(me.timeout)
        return link

    def _on_peer(self, link: socket.socket, hello: Hello) -> None:
        with self._changed:
            if hello.purpose != PURPOSE or hello.rank in self._arrived:
                link.close()
                return
            link.setblocking(True)
            link.settimeout(self.context.timeout)
            self._arrived[hello.rank] = link
            self._changed.notify_all()

    def _accepted(self, rank: int, deadline: float) -> socket.socket:
        with self._changed:
            while not self._changed.wait_for(lambda: rank in self._arrived, LOOK):
                self.context.look()
                if time.monotonic() > deadline:
                    raise TransportError(f"rank {rank} did not connect to {self._listener.address[1]} in time")
            return self._arrived[rank]

    def _take(self, link: socket.socket, rank: int, token: str) -> str | None:
        try:
            window = Window(_receive(link))
        except (OSError, TransportError) as error:
            return f"its window could not be mapped: {error}"
        if window.token.hex() != token:
            return "its window does not hold the promised token"
        self.windows[rank] = window
        return None

    def detail(self, rank: int) -> str:
        """For people: how long messages come from there."""
        if self.pids[rank] == NO_MEMORY:
            return "copied twice, as the system does not let this process read that one's memory"
        return "that process's memory can be read"

    def lane(self, name: str, index: int, members: Sequence[int]) -> RingLane:
        return RingLane(index, [self.windows[r] for r in members], [self.pids[r] for r in members])

    def _shut_door(self) -> None:
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        self._shut_door()
        for rank, path in self._doors.items():
            _remove_door(path, rank)
        for window in self.windows:
            if window is not None:
                window.leave()


def _remove_door(path: str, rank: int) -> None:
    """Remove the socket of a peer, and its folder, if they are still there.  A path that is no such socket stays."""
    folder, name = os.path.split(path)
    if name != str(rank) or not os.path.basename(folder).startswith(PREFIX):
        return
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid():
            os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # only if it is empty


class ThreadTransport:
    """The same rings between threads of one process, in plain memory: `hocket.local_world`."""

    name = "threads"
    traits = RINGS._replace(needs_gil=True)

    def __init__(self, rank: int, windows: list[Window]) -> None:
        self.rank, self.windows, self.window = rank, windows, windows[rank]

    @staticmethod
    def available() -> str | None:
        return None

    def offer(self) -> None:
        return None

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        return [None] * len(self.windows)

    def lane(self, name: str, index: int, members: Sequence[int]) -> RingLane:
        return RingLane(index, [self.windows[r] for r in members])

    def close(self) -> None:
        pass


def _readable(link: socket.socket, offer: Any) -> int:
    """The process at the other end, if its memory can be read: proven by the token that it keeps there."""
    pid: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        known = pid > 0 and read_memory(pid, offer["kept"], len(offer["token"]) // 2).hex() == offer["token"]
    except OSError:
        return NO_MEMORY
    return pid if known else NO_MEMORY


def _give(link: socket.socket, fd: int) -> None:
    link.sendmsg([b"w"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def _receive(link: socket.socket) -> int:
    """The one descriptor of the next message."""
    _, extra, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(fds) != 1:
        for fd in fds:  # there is room for a second one
            os.close(fd)
        raise TransportError("the peer closed the connection before it passed its memory on")
    return fds[0]
