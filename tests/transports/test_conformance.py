"""Every transport keeps the laws of channel.h."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import conformance
import pytest
from conformance import LAWS, Pair, Side

from hocket.transports.adapter import Adapter
from hocket.transports.reference import Pipe
from hocket.transports.stream import SocketChannels
from hocket.transports.window import RingLane, Window


def rings(private: bool) -> Callable[[int], list[list[Side | None]]]:
    def sides(size: int) -> list[list[Side | None]]:
        windows = [Window(private=private) for _ in range(size)]
        lanes = [RingLane(r, windows) for r in range(size)]
        opened = [[(*lanes[a].open(b, lanes[b].offer()), (lanes, windows)) for b in range(size)] for a in range(size)]
        return [[None if a == b else Side(*opened[a][b]) for b in range(size)] for a in range(size)]

    return sides


def ring_pair(private: bool) -> Pair:
    def pair() -> tuple[Side, Side]:
        table = rings(private)(2)
        return table[0][1], table[1][0]  # type: ignore[return-value]

    return pair


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        return a, server.accept()[0]


def streams(connected: Callable[[], tuple[socket.socket, socket.socket]]) -> Pair:
    def side(link: socket.socket) -> Side:
        channels = SocketChannels(link)

        def close() -> None:  # the descriptor stays ours: the engine of this side may still look at it
            if link.fileno() >= 0:
                with contextlib.suppress(OSError):  # the other side was first
                    link.shutdown(socket.SHUT_RDWR)

        return Side(channels.send, channels.recv, channels, close)

    def pair() -> tuple[Side, Side]:
        a, b = connected()
        return side(a), side(b)

    return pair


def reference(kind: type[Pipe] = Pipe) -> tuple[Side, Side]:
    there, back = kind(), kind()
    adapters = [Adapter(pipe) for pipe in (there, back, back, there)]
    sides = [Side(adapters[i].capsule, adapters[i + 1].capsule, adapters) for i in (0, 2)]
    return sides[0], sides[1]


PAIRS: dict[str, Pair] = {
    "threads": ring_pair(private=True), "shm": ring_pair(private=False), "tcp": streams(tcp),
    "socketpair": streams(socket.socketpair), "reference": reference,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Pair], None], name: str) -> None:
    law(PAIRS[name])


@pytest.mark.parametrize("private", [True, False])
def test_multicast(private: bool) -> None:
    conformance.a_multicast_reaches_every_reader(rings(private))


# --- a transport that breaks a law is found out

class Reordering(Pipe):
    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        with self.lock:
            if len(self.pieces) > 2 and not self.held % 3:
                self.pieces.rotate(1)
        return super().peek(want)


class Boundless(Pipe):
    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        with self.lock:
            self.pieces.append((tag, length, bytes(data)))
            return len(data)


class Losing(Pipe):
    def consume(self, count: int, end: bool) -> None:
        super().consume(count, end)
        with self.lock:
            if count == 60 and self.pieces:
                self.pieces.popleft()


class Overwriting(Pipe):
    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        head = super().peek(want)
        return head and (head[0], head[1], bytes(len(head[2])))


class Unbuffered(Pipe):
    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        return None if self.held >= 1000 else super().send(tag, length, done, data[:1000])


BROKEN = [
    (Reordering, conformance.messages_arrive_in_order), (Losing, conformance.many_small_messages_arrive),
    (Overwriting, conformance.messages_arrive_in_order), (Unbuffered, conformance.a_short_message_needs_no_reader),
    (Boundless, conformance.a_sender_whom_nobody_reads_is_stopped),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "law"), BROKEN)
def test_a_broken_transport_is_found_out(
    kind: type[Pipe], law: Callable[[Pair], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "BOUND", 4 << 20)
    monkeypatch.setattr(conformance.End.run, "__kwdefaults__", {**conformance.End.run.__kwdefaults__, "timeout": 1.0})
    for method in (conformance.End.send, conformance.End.recv):
        monkeypatch.setattr(method, "__defaults__", tuple(1.0 if d == 60.0 else d for d in method.__defaults__ or ()))
    with pytest.raises(AssertionError):
        law(lambda: reference(kind))
