"""Every transport keeps the laws of channel.h."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.instr import About, Instr
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import Queued
from hocket.conformance import GROUP_LAWS, LAWS, InProcess, NotOfferedError, Pair, Side, Sides, ends, laws
from hocket.system.tls import KEY, Tls
from hocket.transports.adapter import Adapter
from hocket.transports.base import Context
from hocket.transports.reference import Pipe
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.transport import ShmTransport
from hocket.transports.shm.window import Window
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.tls_channels import TlsStreams
from hocket.transports.tcp.transport import TcpTransport
from support.cases import more


def rings(private: bool, checked: bool = False) -> Callable[[int], list[list[Side | None]]]:
    def sides(size: int) -> list[list[Side | None]]:
        windows = [Window(private=private) for _ in range(size)]
        rings = [RingChannels(r, windows, None, checked) for r in range(size)]
        opened = [[(*rings[a].open(b, rings[b].offer()), (rings, windows)) for b in range(size)] for a in range(size)]
        return [[None if a == b else Side(*opened[a][b]) for b in range(size)] for a in range(size)]

    return sides


def ring_pair(private: bool, checked: bool = False) -> Pair:
    def pair() -> tuple[Side, Side]:
        table = rings(private, checked)(2)
        return table[0][1], table[1][0]  # type: ignore[return-value]

    return pair


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        return a, server.accept()[0]


def streams(connected: Callable[[], tuple[socket.socket, socket.socket]]) -> Pair:
    def side(link: socket.socket) -> Side:
        channels = SocketStreams(link)

        def close() -> None:  # the descriptor stays ours: the engine of this side may still look at it
            if link.fileno() >= 0:
                with contextlib.suppress(OSError):  # the other side was first
                    link.shutdown(socket.SHUT_RDWR)

        return Side(channels.send, channels.recv, channels, close)

    def pair() -> tuple[Side, Side]:
        a, b = connected()
        return side(a), side(b)

    return pair


def encrypted(renew: int | None = None) -> Pair:
    """`renew`: after so many bytes come new keys."""

    def stream(key: bytes) -> tuple[Tls, Tls]:
        a, b = (Tls(link, key, server) for link, server in zip(tcp(), (False, True), strict=True))
        while any([a.shake(), b.shake()]):
            continue
        if renew is not None:
            a.renew_after(renew)
        return a, b

    def pair() -> tuple[Side, Side]:
        (a_out, b_in), (b_out, a_in) = stream(b"a" * KEY), stream(b"b" * KEY)
        sides = []
        for out, into in ((a_out, a_in), (b_out, b_in)):
            channels = TlsStreams(out)
            channels.receive_from(into)
            sides.append(Side(channels.send, channels.recv, channels, lambda ends=(out, into): hang_up(ends)))  # type: ignore[misc]
        return sides[0], sides[1]

    return pair


def hang_up(ends: tuple[Tls, Tls]) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown()


def reference(kind: type[Pipe] = Pipe) -> tuple[Side, Side]:
    there, back = kind(), kind()
    adapters = [Adapter(pipe) for pipe in (there, back, back, there)]
    close = getattr(there, "shut", None)
    sides = [Side(adapters[i].capsule, adapters[i + 1].capsule, adapters, close) for i in (0, 2)]
    return sides[0], sides[1]


PAIRS: dict[str, Pair] = {
    "threads": ring_pair(private=True), "shm": ring_pair(private=False),
    "shm checked": ring_pair(private=False, checked=True), "tcp": streams(tcp),
    "socketpair": streams(socket.socketpair), "reference": reference, "tls": encrypted(),
    "tls renewed": encrypted(renew=5000),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Pair], None], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holds(law, PAIRS[name], name in ("threads", "shm", "shm checked", "reference"), monkeypatch)


def holds(law: Callable[[Pair], None], pair: Pair, is_memory: bool, patch: pytest.MonkeyPatch) -> None:
    """Memory cannot tell that its peer has closed it."""
    unnoticed = is_memory and law is laws.closing_is_noticed
    patch.setattr(laws, "STILL", 0.1)
    if unnoticed:
        patch.setattr(laws, "NOTICED", 0.1)
    with pytest.raises(NotOfferedError) if unnoticed else contextlib.nullcontext():
        law(pair)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("law", GROUP_LAWS, ids=lambda law: law.__name__)
def test_law_of_several_ranks(law: Callable[[Sides], None], private: bool) -> None:
    law(rings(private))


def encrypting_tcp(context: Context) -> TcpTransport:
    context.encrypt = True
    return TcpTransport(context)


OPENED = [laws.messages_arrive_in_order, laws.both_directions_at_once, laws.closing_is_noticed]
"""Enough for what is between a transport and its channels, which keep all laws by themselves."""


@pytest.mark.parametrize("kind", [ShmTransport, TcpTransport, encrypting_tcp])
@pytest.mark.parametrize("law", [*OPENED, *more(*(law for law in LAWS if law not in OPENED))])
def test_law_between_ranks_of_a_process(
    law: Callable[[Pair], None], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InProcess(kind) as ranks:
        holds(law, ranks.pair, kind is ShmTransport, monkeypatch)


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


class Torn(Pipe):
    """Cuts where it likes, and does not put together again."""

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        return super().send(tag, length, done, data[: 1001 if len(data) > 1001 else None])


class Forgetful(Pipe):
    """Knows the length of a message only at its start."""

    begun = False

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        head = super().peek(want)
        return head and (head[0], len(head[2]) if self.begun else head[1], head[2])

    def consume(self, count: int, end: bool) -> None:
        self.begun = not end
        super().consume(count, end)


class Endless(Pipe):
    """Does not take the end of an empty message for one."""

    def consume(self, count: int, end: bool) -> None:
        if count:
            super().consume(count, end)


class Emptying(Pipe):
    """Bytes that have come are gone when the sender is."""

    def shut(self) -> None:
        self.pieces.clear()


class Telling(Pipe):
    """Whose reader is told of the end, in Python: no law is broken."""

    over = False

    def shut(self) -> None:
        self.over = True

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        head = super().peek(want)
        if head is None and self.over:
            raise ConnectionResetError("the peer closed its pipe")
        return head


def test_a_transport_of_python_may_notice_that_its_peer_has_closed() -> None:
    laws.closing_is_noticed(lambda: reference(Telling))


BROKEN = [
    (Reordering, laws.messages_arrive_in_order), (Losing, laws.many_small_messages_arrive),
    (Overwriting, laws.messages_arrive_in_order), (Unbuffered, laws.a_short_message_needs_no_reader),
    (Boundless, laws.a_sender_whom_nobody_reads_is_stopped),
    (Torn, laws.an_element_is_read_whole), (Forgetful, laws.a_message_is_read_at_its_place_or_received),
    (Endless, laws.empty_messages_are_messages), (Emptying, laws.closing_is_noticed),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "law"), BROKEN)
def test_a_broken_transport_is_found_out(
    kind: type[Pipe], law: Callable[[Pair], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "BOUND", 4 << 20)
    monkeypatch.setattr(ends, "PATIENCE", 0.4)
    with pytest.raises(AssertionError):
        law(lambda: reference(kind))


@pytest.mark.parametrize(("law", "method"), [(GROUP_LAWS[0], "reduce"), (GROUP_LAWS[1], "recv")])
def test_a_wrong_byte_among_several_ranks_is_found_out(
    law: Callable[[Sides], None], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(ends.End, method)

    def wrong(end: ends.End, *args: Any, **more: Any) -> Any:
        result, got = right(end, *args, **more)
        got[-1:] ^= 1
        return result, got

    monkeypatch.setattr(ends.End, method, wrong)
    monkeypatch.setattr(ends, "PATIENCE", 0.4)
    with pytest.raises(AssertionError, match="wrong"):
        law(rings(private=True))


# --- a mistake in a transport of Python

class Nothing(Pipe):
    """Takes nothing, and calls it success."""

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        return 0


class Clumsy(Pipe):
    def consume(self, count: int, end: bool) -> None:
        raise KeyError("no such thing")


@pytest.mark.parametrize(("kind", "words"), [(Nothing, "send returned 0 for 9 bytes"), (Clumsy, "no such thing")])
def test_a_mistake_is_a_fault_and_is_shown(kind: type[Pipe], words: str, caplog: pytest.LogCaptureFixture) -> None:
    def send(end: ends.End) -> str:
        return end.send(laws.data(9))

    def recv(end: ends.End) -> list[str]:
        return [end.recv(9, timeout=0.5 if kind is Nothing else 30)[0] for _ in range(2)]

    sent, came = ends.both(lambda: reference(kind), send, recv)
    assert "fault" in (sent, *came)
    assert words in caplog.text and "Traceback" in caplog.text


def test_who_drives_stops_when_another_run_of_the_engine_fails() -> None:
    """Its channels have let go of its memory, and the other's message was left in the middle."""
    side, other = reference()
    engine = Engine(0, 2, 200, concurrent=True)
    engine.connect(1, side.send, side.recv, other)
    x, into = laws.data(laws.LARGE), laws.data(8)

    def plan(instr: tuple[object, ...]) -> Plan:
        return Plan([[instr]], About())  # type: ignore[list-item]

    def wait() -> None:
        recv = plan(Instr("recv", [1], dst=ends.pieces(1, 8)))
        began = time.monotonic()
        code = engine.execute(recv, 0, into.ctypes.data, timeout=20, tag=1)
        ended.append((ends.WORDS[code], time.monotonic() - began))

    ended: list[tuple[str, float]] = []
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    send = plan(Instr("send", [1], src=ends.pieces(0, len(x))))
    queued = Queued(engine, send, x.ctypes.data, 0, timeout=0.3, tag=2)
    thread.join(30)
    assert (ends.WORDS[queued.status], ended[0][0]) == ("timeout", "timeout")
    assert ended[0][1] < 10
