"""The streams between this rank and another one on one lane: the first, and those that are opened while calls run."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hocket.control.dial import OURS
from hocket.errors import Error
from hocket.system.machine import same_socket, tcp_info, wish
from hocket.transports.tcp.healing import HealingStreams
from hocket.transports.tcp.long.congestion import BY_LOSS, control_of
from hocket.transports.tcp.long.many import MOST, ManyStreams
from hocket.transports.tcp.long.width import Usage, Width, together

if TYPE_CHECKING:
    from hocket.transports.tcp.transport import TcpTransport

log = logging.getLogger("hocket.transports")
Key = tuple[int, str]
LETTERS = "0123456789abcdef"
"""Numbers of streams behind the first, at the end of their purposes."""
LOOK = 1.0
"""Seconds between two looks at what the connections did."""
LEAD = 14
"""Letters of the first stream's purpose."""
UNSENT = 131_072
"""Bytes that a socket takes beyond those on the way: what lies there waits for its own losses, and on a new stream for
its slow start, only."""
RESERVE = 32
"""Descriptors that are left for others than streams."""
TCP_NOTSENT_LOWAT = 25
FULL = 7 << 20
"""Bytes of a stream's ring (kept.h), near its most: a window, too."""


def lead_of(key: Key) -> tuple[Key, int]:
    """The key of a stream's group, and its number there; 0: it is the first."""
    rank, purpose = key
    return (rank, purpose[:LEAD]), LETTERS.index(purpose[LEAD:]) if purpose[LEAD:] else 0


def key_of(lead: Key, number: int) -> Key:
    return lead[0], lead[1] + (LETTERS[number] if number else "")


class StreamGroup:
    """All streams of a pair of channels."""

    def __init__(self, transport: TcpTransport, key: Key, first: HealingStreams) -> None:
        self.key, self.many = key, ManyStreams(first)
        self.send, self.recv, self.receive_from = self.many.send, self.many.recv, self.many.receive_from
        self.close = self.many.close
        self.width = Width()
        self.busy = False
        """Is somebody opening more?"""
        self._transport, self._lock = transport, threading.Lock()
        self._last: dict[int, tuple[int, int, int, int]] = {}

    @property
    def streams(self) -> int:
        """The streams that carry what this rank sends."""
        return self.many.use.bit_count()

    def stream(self, number: int) -> HealingStreams:
        with self._lock:
            found = self.many.streams[number]
            if found is None:
                found = self._transport.mender.streams(key_of(self.key, number), None)
                self.many.keep(number, found)
            return found

    def arrives(self, number: int, end: Any) -> None:
        """The peer's connection of one of its streams."""
        self.stream(number).receive_from(end)
        with self._lock:
            self.many.receives(number)

    def starts(self, number: int, end: Any) -> None:
        """Our connection of one of its streams."""
        streams = self.stream(number)
        if streams.start(end):
            self._transport.mender.watch(key_of(self.key, number), streams)
            with self._lock:
                self.many.sends(number)

    def widen(self, count: int) -> None:
        """Have so many streams, and use them; fewer where no more can be opened.  Waits for the peer's process."""
        wanted, count = count, min(count, 1 + _room() // 2)  # each may cost another one, for the peer's
        numbers = [each for each in range(1, count) if self.stream(each).out_fd() < 0]
        failed: list[tuple[int, Exception]] = []

        def dial(number: int) -> None:
            try:
                self._transport.dial(self, number)
            except (Error, OSError) as why:
                failed.append((number, why))

        try:
            threads = [threading.Thread(target=dial, args=(each,), name="hocket-stream") for each in numbers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            opened = min([number for number, _ in failed], default=count)
            if opened < wanted:
                ours = not failed or getattr(failed[0][1], "errno", 0) in OURS
                why = failed[0][1] if failed else "too few descriptors are left: raise `ulimit -n`"
                log.log(logging.WARNING if ours else logging.INFO,
                        "hocket: rank %d has %d instead of %d streams to rank %d: %s",
                        self._transport.context.rank, opened, wanted, self.key[0], why)  # fmt: skip
                self.width.limited(opened, time.monotonic(), ours)
            self.use(opened)
        finally:
            self.busy = False

    def use(self, count: int) -> None:
        if count > 1:
            for each in self.many.streams[:count]:
                if each is not None and each.out_fd() >= 0:
                    with contextlib.suppress(OSError), same_socket(each.out_fd()) as sock:
                        wish(sock, socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)
        was, self.many.use = self.streams, (1 << count) - 1
        if was != self.streams:
            self._transport.context.note(f"streams to rank {self.key[0]}", self.streams, 0.0)
            log.info("hocket: rank %d sends to rank %d over %d streams; %s", self._transport.context.rank, self.key[0],
                     self.streams, self.width.why or "HOCKET_STREAMS or HOCKET_PATHS asks for them")  # fmt: skip

    def seen(self) -> Usage:
        """The doings of the connections since the last call."""
        found = []
        for number in range(MOST):
            streams = self.many.streams[number]
            if streams is None or streams.closed or streams.out_fd() < 0:
                continue
            with contextlib.suppress(OSError, KeyError), same_socket(streams.out_fd()) as sock:
                info = tcp_info(sock.fileno())
                acked, losses, windows = info["bytes_acked"], info["total_retrans"], ("rwnd_limited", "sndbuf_limited")
                now = acked, info["busy_time"], sum(info[which] for which in windows), losses
                last = self._last.get(number, now)
                self._last[number] = now
                if acked < last[0]:
                    continue  # another connection
                spent, full = (now[1] - last[1]) / 1e6, (now[2] - last[2]) / 1e6
                sent, has, _ = streams.kept
                if sent - has > FULL:
                    full = spent
                round_trip, by_loss = info["rtt"] / 1e6, control_of(sock) in BY_LOSS
                found.append(Usage(acked - last[0], spent, full, losses - last[3], round_trip, by_loss))
        return together(found)


def _room() -> int:
    """Descriptors that may be opened for streams: others need some, too."""
    try:
        return max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd")) - RESERVE)
    except OSError:
        return MOST


class Groups:
    """The groups of one transport."""

    def __init__(self, transport: TcpTransport) -> None:
        self._transport = transport
        self._live: weakref.WeakValueDictionary[Key, StreamGroup] = weakref.WeakValueDictionary()
        self._looking = False

    def made(self, key: Key, first: HealingStreams) -> StreamGroup:
        group = StreamGroup(self._transport, key, first)
        self._live[key] = group
        return group

    def get(self, key: Key) -> StreamGroup | None:
        return self._live.get(key)

    def forget(self, key: Key) -> None:
        self._live.pop(key, None)

    def all(self) -> Iterator[StreamGroup]:
        yield from list(self._live.values())

    def begins(self, group: StreamGroup) -> None:
        """The group's first stream is open at both ends, or will be."""
        context = self._transport.context
        count = context.streams or self._transport.paths.count(group.key[0])
        if count > 1:
            group.widen(count)
        if not context.streams and not self._looking:
            self._looking = True
            context.reactor.later(LOOK, self._look)

    def _widen(self, group: StreamGroup, count: int) -> None:
        if count > 1 and not group.busy:
            group.busy = True
            self._transport.context.reactor.aside("streams", lambda: group.widen(count))

    def _look(self) -> None:
        if self._transport.closed:
            return
        now = time.monotonic()
        for group in self.all():
            if group.busy:
                continue
            least = self._transport.paths.count(group.key[0])
            wanted = max(least, group.width.saw(group.seen(), now))
            if wanted > group.streams:
                self._widen(group, wanted)
            elif wanted < group.streams:
                group.use(wanted)
        self._looking = bool(self._live)
        if self._looking:
            self._transport.context.reactor.later(LOOK, self._look)

    def words(self, rank: int) -> list[str]:
        """For people: the streams to a rank, of the lane that has the most."""
        groups = [group for group in self.all() if group.key[0] == rank]
        most = max(groups, key=lambda group: group.streams, default=None)
        if most is None or most.streams == 1:
            return []
        return [f"{most.streams} streams{most.width.why and ': ' + most.width.why}"]
