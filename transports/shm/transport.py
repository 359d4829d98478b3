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
import resource
import shutil
import socket
import stat
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from hocket.control.dial import connect
from hocket.control.handshake import Hello
from hocket.errors import PeerLostError, TransportError
from hocket.system.cores import node_of
from hocket.system.machine import boot_id, new_folder
from hocket.transports.base import Context, Traits
from hocket.transports.shm.channels import EAGER, NO_MEMORY, SLOT, RingChannels
from hocket.transports.shm.window import LEAST, LITTLE, NODES, RESERVE, Window, address_limit, read_memory, room

PURPOSE = "shm"
ADDRESSES = struct.Struct("=Q")
LOOK = 0.1  # seconds between two looks whether the one waited for still lives


PREFIX = "hocket-"
"""The beginning of the name of a rank's folder."""
RINGS = Traits(local=True, polled=True, segment=SLOT, eager=EAGER)
"""A segment is a slot of a ring, and what a ring always copies it also buffers."""


class ShmTransport:
    """Shared memory between the ranks of a host."""

    name = "shm"
    traits = RINGS

    def __init__(self, context: Context) -> None:
        self.context = context
        self.window = Window(reserve=LITTLE)
        self.window.node = node_of(os.sched_getaffinity(0))
        self.windows: list[Window | None] = [None] * context.size
        self.windows[context.rank] = self.window
        self.pids = [NO_MEMORY] * context.size
        """The processes whose memory this one may read, by rank."""
        self._arrived: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._directory = new_folder(PREFIX)
        self._doors: dict[int, str] = {}
        """The sockets of peers; one that is killed before it has shut its own cannot remove it."""
        path = os.path.join(self._directory, str(context.rank))
        try:
            self._listener = context.listen(("unix", path), self._on_peer)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    @staticmethod
    def available() -> str | None:
        if not hasattr(os, "memfd_create"):
            return "this system has no memfd_create"
        longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if longest != resource.RLIM_INFINITY and longest < LEAST:
            return f"`ulimit -f` allows files of {longest} bytes, and shared memory counts as one: {LEAST} are needed"
        return None

    def offer(self) -> dict[str, Any]:
        window = self.window
        return {
            "boot": boot_id(), "path": self._listener.address[1], "token": window.token.hex(),
            "kept": window.token_address, "limit": address_limit(), "node": window.node,
            "checks": self.context.check_memory,
        }  # fmt: skip

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Open the window of every rank that has the same boot id and whose socket is visible."""
        me = self.context.rank
        refusals = [None if r == me else self._visible(offer) for r, offer in enumerate(offers)]
        open_to = [r for r, why in enumerate(refusals) if why is None and r != me]
        if self.window.reserved == LITTLE:
            self.window.keep(_room(offers))
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
                    _give(links[r], self.window)
                elif r in links:
                    _give(links[r], self.window)
            except (OSError, TransportError) as error:
                refusals[r] = f"no connection to its socket: {error}"
        for r in open_to:
            if refusals[r] is None:
                refusals[r] = self._take(links[r], r, offers[r])
                self.pids[r] = _readable(links[r], offers[r])
        for link in links.values():
            link.close()
        self._shut_door()
        if self.window.reserved < LEAST:  # not before: peers wait for this rank's connection
            for r in open_to:
                self.windows[r], self.pids[r] = None, NO_MEMORY
                refusals[r] = refusals[r] or (
                    f"only {self.window.reserved >> 20} MiB of addresses are available for shared memory, and "
                    f"{LEAST >> 20} are needed: is `ulimit -v` set?"
                )
        return refusals

    def _visible(self, offer: Any) -> str | None:
        if not offer:
            return "that rank offers no shared memory"
        if offer["boot"] != boot_id():
            return "another host (boot ids differ)"
        if offer.get("checks", False) != self.context.check_memory:
            return "one of the two checks what comes through memory: HOCKET_CHECK must be the same on every rank"
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

    def _take(self, link: socket.socket, rank: int, offer: Any) -> str | None:
        try:
            fd, reserved = _receive(link)
            window = Window(fd, reserve=reserved)
        except (OSError, TransportError) as error:
            return f"its window could not be mapped: {error}"
        if window.token.hex() != offer["token"]:
            return "its window does not hold the promised token"
        node = offer["node"]
        window.node = node if isinstance(node, int) and 0 <= node < NODES else -1
        self.windows[rank] = window
        return None

    def detail(self, rank: int) -> str:
        """For people: how long messages come from there."""
        window = self.windows[rank]
        at = "" if window is None or window.node < 0 else f"; slots that it reads lie on its NUMA node, {window.node}"
        at += ", checked: CRC32C" if self.context.check_memory else ""
        if self.pids[rank] == NO_MEMORY:
            return f"copied twice, as the system does not let this process read that one's memory{at}"
        return f"that process's memory can be read{at}"

    def channels(self, name: str, index: int, members: Sequence[int]) -> RingChannels:
        windows, pids = [self.windows[r] for r in members], [self.pids[r] for r in members]
        return RingChannels(index, windows, pids, self.context.check_memory)

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
        status = os.lstat(path)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid():
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

    def channels(self, name: str, index: int, members: Sequence[int]) -> RingChannels:
        return RingChannels(index, [self.windows[r] for r in members])

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


def _room(offers: Sequence[Any]) -> int:
    """Addresses for each window of this host: what fits into the least limit of its ranks."""
    here = [offer for offer in offers if offer and offer["boot"] == boot_id()]
    limits = [offer["limit"] for offer in here if isinstance(offer["limit"], int)]
    return room(max(1, len(here)), min(limits, default=None))


def _give(link: socket.socket, window: Window) -> None:
    data = ADDRESSES.pack(window.reserved)
    link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [window.fd]))])


def _receive(link: socket.socket) -> tuple[int, int]:
    """The one descriptor of the next message, and the bytes of address space that its owner has reserved to map it."""
    packed, extra, _, _ = link.recvmsg(ADDRESSES.size, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(fds) != 1 or len(packed) != ADDRESSES.size:
        for fd in fds:  # there is room for a second one
            os.close(fd)
        raise TransportError("the peer closed the connection before it passed its memory on")
    return fds[0], min(ADDRESSES.unpack(packed)[0], RESERVE)
