"""A transport, for Python: the cold half of channel.h.

A transport finds out which peers it reaches and opens *channels* to them: one ordered channel to and
one from each member of a communicator.  Everything here happens once per process or per communicator; the bytes
themselves go through the C table of channel.h (or, slowly, through a `PyChannel`).

A third party adds one by the entry-point group `hocket.transports`: name -> class with this interface;
docs/transports.md shows how, and `python -m hocket.conformance` tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hocket.control.addresses import BindAddress
from hocket.control.handshake import Connection, Hello
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession


class Traits(NamedTuple):
    """Traits of a transport's channels that the engine may rely on.  The values here are those of a byte stream (TCP).
    """

    local: bool = False
    """Are channels memory?  Then one is opened without an answer from the peer, and a reached peer is on this host."""
    polled: bool = False
    """Is a channel looked at without a system call?  Then it pays to look often before a thread yields."""
    needs_gil: bool = False
    """Does a peer need this process's GIL to go forward?"""
    segment: int = 61440
    """Bytes of a pipelined chunk that are in flight together.  What fits with its header into one super-packet of
    Linux' TCP (64 KiB): beyond that it is cut, and ranks that share cores wait longer for each other.  `hocket bench
    allreduce -n 4 --transport tcp -b 64M -e 64M` with 4 ranks on 2 cores: 53 ms, with 256 KiB 88 ms; 2 ranks, 1 MiB:
    0.21 and 0.35 ms."""
    eager: int = 4096
    """Bytes of one message that a channel surely buffers; here well below any socket's buffers."""
    far: int = 245760
    """The `segment` between hosts, if that is more.  A step of a pipeline waits for the way's latency: with 61440 bytes
    a double binary tree of 4 ranks takes 33 ms on 10 Gbit/s with 50 us, and 910 ms on 1 Gbit/s with 5 ms; with 4 times
    as many 30 and 420 (16 MB, simulate.py)."""

    @property
    def between_hosts(self) -> int:
        """Bytes of a pipelined chunk that are in flight together there."""
        return max(self.segment, self.far)


@dataclass
class Context:
    """A process's knowledge of itself when its transports are made."""

    rank: int
    size: int
    key: bytes = field(repr=False)
    """The job's session key: every connection proves that it holds it."""
    job: str
    reactor: Reactor
    host: str = "127.0.0.1"
    """The address of this host's interface that routes to the other ranks; loopback only if all are on this host."""
    ports: range | None = None
    """Ports that may be listened on; None: the system chooses."""
    timeout: float = 30.0
    mpi: Any = None
    """The MPI job (transports/mpi/job.py) whose ranks these are, if they are one's."""
    rdma: str = ""
    """device[:port[:GID index]]; "": the first that is active."""
    epoch: int = 0
    """Tells this session from former ones of the job: in every hello."""

    look: Callable[..., object] = lambda *ranks: None
    """Called now and then by who waits for a peer: raises PeerLostError once one of these ranks was lost, by default
    any."""
    lost_after: float = 5.0
    """Seconds of silence after which another rank is lost."""
    check: bool = False
    """Are all bytes to be checked that travel over TCP?"""
    check_memory: bool = False
    """And those that go through shared memory?"""
    congestion: str = "auto"
    """The congestion control of TCP between hosts: a control's name, auto or system."""
    streams: int = 0
    """Connections of TCP that carry long messages to a rank of another host; 0: as many as pay."""
    paths: Sequence[str] = ()
    """Addresses of further interfaces that TCP uses; "" for one that this host has not got."""
    encrypt: bool = False
    """Must what leaves the host be encrypted?  Transports that do not do it are not made then."""
    session: LinkSession | None = field(default=None, repr=False)
    """A transport that makes broken connections again makes this one's control connections again, too (its `heal`)."""
    note: Callable[..., object] = lambda what, times, seconds, healed=None: None
    """Called, from any thread, with what happened to a link, how often by now, and for how many seconds; `healed`: the
    rank to which a connection was made again, and does it flap?"""

    def hello(self, purpose: str, rank: int) -> Hello:
        """The hello of this process to `rank`'s listener; `purpose`: at most 16 bytes."""
        return Hello(self.rank, purpose, self.job, self.epoch, rank)

    def listen(self, address: BindAddress, on_peer: Callable[[Connection, Hello], object]) -> Listener:
        """Take connections of the job's other ranks."""
        return Listener(self.reactor, address, self.key, on_peer, self.rank, self.epoch)


class PyChannel(Protocol):
    """A channel in Python, one direction; the laws are those of channel.h.  None means: not now, try again.

    ConnectionError means that the peer is lost, any other exception a fault; both end the run.
    """

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        """Take some of bytes [done, done + len(data)) of a message; return how many, 0 only of an empty one.

        `data` is a copy, and part of what is left (at most 256 KiB).
        """

    def peek(self, want: int) -> tuple[int, int, bytes | memoryview] | None:
        """(tag, length of the whole, next bytes at hand) of the message at the head; `want` bytes if they have come."""

    def consume(self, count: int, end: bool) -> None:
        """Drop `count` bytes; `end` closes the message: also after an empty one, as (0, True).

        What it raises ends the run, as what the other two raise does.
        """


@runtime_checkable
class Channels(Protocol):
    """All channels of one communicator, or of one of its queues, over one transport.

    It may have a method `look()`: an `open` that waits calls `self.look()` several times a second.  The collectives
    replace it by one that raises, to end the wait (a timeout, another rank's failure).  And
    `pin(address, nbytes, owner)`, told of arrays of at least `pin_from` bytes before they travel, so that they need not
    be copied.  And `unopened() -> list[int]`: members that have opened their channels to this rank, and may have sent,
    while this rank has opened none to them; without it what they sent is not noticed when the job ends.  And
    `agree(offers)`, where members may read each other's memory: True if all can; then `usual` is the rules and
    `read_from` takes another one (shm/channels.pyx has them).  And `thread: int`, the only thread that may drive its
    channels: its identifier, or CALLERS (mpi/job.py); 0, or without it: any.  And `pinned: bool`, asked after `close`:
    does a library still hold memory of callers?  Then their arrays are kept until the process ends.  And
    `priority`, set before any `open`: that of the communicator's lane, as what lies below may serve higher ones first.
    """

    def offer(self) -> Any:
        """The offer that the peers need to open their side (JSON); None, on all ranks, if nothing.  Called once, first.
        """

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        """Channels (to, from) member `peer`, as PyCapsules HK_CAPSULE: once for a peer, when a call first needs it.

        May wait for the peer's process, never for it to call `open` too: it may be waiting for a third one.  Until it
        does, its channel gives HK_AGAIN.  Other threads may open other peers and use open channels meanwhile.  What it
        raises fails the call.  This object is kept alive as long as its channels may be used.
        """

    def close(self) -> None:
        """All members have finished, or are gone; what was taken still arrives.  May come twice.

        Not called for those of a communicator that has failed: `Transport.close` ends them too.
        """


@runtime_checkable
class Transport(Protocol):
    """One way between this process and others.  Made from a `Context`, after `available` gave None.

    What its constructor raises is the reason why this rank has not got it, and the next transport is used; only
    ArgumentError, PeerLostError and TimeoutError end `init`, as what `reach` raises does.  An unreachable peer is a
    returned reason, no exception.

    It may have `traits: Traits`, the same on every rank that has it; without, its channels are taken for streams.
    It may have a `detail(rank) -> str`: what a user may want to know of the way to that rank, for `comm.explain()`;
    a `host_of(rank) -> str`: the IP address at which that rank is reached, for `hocket doctor --job`;
    a `queueing() -> str`: for `comm.explain()`, whether what lies below serves lanes of a higher priority first;
    and a static `missing(context) -> str | None`: why it cannot work in this job, though this machine can do it.
    """

    name: str

    @staticmethod
    def available() -> str | None:
        """None, or why this machine cannot do it at all.  Cheap: nothing is opened."""

    def offer(self) -> Any:
        """The offer that a peer needs to reach this rank (JSON); all ranks' offers are exchanged before `reach`.

        Both are called by all ranks at the same time, and may be called again, when more ranks take part.
        """

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Test whether each rank is reached: None where it is, else the reason, for people.

        By world rank; an offer is None of a rank that takes no part; what is said of this rank itself does not count.
        A transport is used only if it is open at both ends; waiting for a peer is bounded by `Context.timeout`.
        """

    def channels(self, name: str, index: int, members: Sequence[int]) -> Channels:
        """Channels for a communicator of these world ranks, in which this rank is member `index`: none is open yet.

        `name` (10 letters and digits) is the same on all members, and of no others.  Members
        reached by other transports are never opened.
        """

    def close(self) -> None:
        """Close everything, channels too; never raises."""
