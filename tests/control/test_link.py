"""Control messages with somebody in between: each arrives as it was said and in its place, or the connection ends."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket.control import link
from hocket.control.dial import dial
from hocket.control.handshake import AuthError, ClientSide, Connection, Hello, ServerSide
from hocket.control.link import ALTERED, ENDED, LENGTH, NONSENSE, PROOF, ControlLink
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.protocol import messages as say
from hocket.control.protocol.membership import PURPOSE
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession
from support.faulty import wait_for

KEY = b"k" * 32
CORPUS = Path(__file__).parents[1] / "fuzz" / "control"
SAID = [{"exchange": n, "value": {"host": "10.0.0.1", "port": 4000 + n}} for n in range(5)]
Frames = list[bytes]


@pytest.fixture(scope="module")
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


def sides(key: bytes = KEY) -> tuple[ClientSide, ServerSide]:
    """Both sides of a handshake that is done."""
    client, server = ClientSide(key, Hello(1, PURPOSE, "job")), ServerSide(key)
    server.feed(client.feed(server.feed(client.start)))
    return client, server


def test_the_shortest_round_trip(reactor: Reactor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as made:
        assert 0 < ControlLink(reactor, made).round_trip < 0.1
    pair = socket.socketpair()
    assert ControlLink(reactor, pair[0]).round_trip == 0.0
    for each in pair:
        each.close()


class Ears:
    """A link's other end: what it understood, and how it ended."""

    def __init__(self, reactor: Reactor, sock: socket.socket) -> None:
        self.heard: list[link.Message] = []
        self.ended: list[str] = []
        self.link = ControlLink(reactor, sock)
        self.link.on_message, self.link.on_end = self.heard.append, self.ended.append
        reactor.soon(self.link.start)


def spoken(reactor: Reactor, side: ClientSide | ServerSide, said: list[link.Message]) -> Frames:
    """The frames that a link of this side writes."""
    ours, theirs = socket.socketpair()
    with theirs:
        link = ControlLink(reactor, Connection.of(ours, side))
        for message in said:
            link.send(message)
        link.close()
        data = b""
        while piece := theirs.recv(1 << 16):
            data += piece
    return cut(data)


def cut(data: bytes) -> Frames:
    frames = []
    while data:
        size = LENGTH.size + PROOF + LENGTH.unpack_from(data)[0]
        frames.append(data[:size])
        data = data[size:]
    return frames


def listens(reactor: Reactor, side: ClientSide | ServerSide, data: bytes) -> Ears:
    """The messages that a link of this side makes of these bytes and an end."""
    ours, theirs = socket.socketpair()
    ears = Ears(reactor, Connection.of(ours, side))
    with contextlib.suppress(OSError):  # it may have hung up already
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
    wait_for(lambda: ears.ended)
    theirs.close()
    return ears


def flip(frame: bytes, place: int) -> bytes:
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


def rewritten(frames: Frames) -> Frames:
    """Another address in the third message; as long as the true one."""
    return [frame.replace(b"10.0.0.1", b"10.6.6.6") if n == 2 else frame for n, frame in enumerate(frames)]


MEDDLED: dict[str, tuple[Callable[[Frames], Frames], int]] = {
    "nothing": (lambda f: f, 5),
    "rewritten": (rewritten, 2),
    "a flipped bit": (lambda f: [flip(f[0], -1), *f[1:]], 0),
    "a flipped proof": (lambda f: [*f[:3], flip(f[3], 5), f[4]], 3),
    "left out": (lambda f: f[1:], 0),
    "repeated": (lambda f: [f[0], f[0], *f[1:]], 1),
    "swapped": (lambda f: [f[0], f[2], f[1], *f[3:]], 1),
    "without proofs": (lambda f: [frame[:4] + frame[4 + PROOF :] + bytes(16) for frame in f], 0),
}


@pytest.mark.parametrize("what", MEDDLED)
@pytest.mark.parametrize("upwards", [True, False], ids=["to the coordinator", "from the coordinator"])
def test_what_is_not_as_it_was_said_ends_the_connection(what: str, upwards: bool, reactor: Reactor) -> None:
    client, server = sides()
    meddle, understood = MEDDLED[what]
    frames = meddle(spoken(reactor, *((client, SAID) if upwards else (server, SAID))))
    ears = listens(reactor, server if upwards else client, b"".join(frames))
    assert ears.heard == SAID[:understood]
    assert ears.ended == [ENDED if understood == 5 else ALTERED]


def test_neither_turned_round_nor_from_another_connection(reactor: Reactor) -> None:
    client, server = sides()
    frames = b"".join(spoken(reactor, client, SAID))
    for side in (client, sides()[1]):
        ears = listens(reactor, side, frames)
        assert (ears.heard, ears.ended) == ([], [ALTERED])
    assert listens(reactor, server, frames).heard == SAID


# --- the coordinator and its members

@contextlib.contextmanager
def coordinator_of(reactor: Reactor, size: int, keyed: bool = True) -> Iterator[tuple[Links, Listener]]:
    links = Links(reactor, size, "job", keyed)
    listener = Listener(reactor, ("tcp", "127.0.0.1", 0), KEY, links.take)
    yield links, listener
    listener.close()
    reactor.soon(links.shut)


def member(reactor: Reactor, listener: Listener, rank: int, size: int) -> LinkSession:
    return LinkSession(reactor, dial(listener.address, KEY, Hello(rank, PURPOSE, "job"), 30), rank, size, KEY)


def test_a_member_that_is_spoken_for_is_lost_and_all_hear_why(reactor: Reactor) -> None:
    """Somebody adds words to a member's connection behind its handshake."""
    with coordinator_of(reactor, 3) as (_, listener):
        ranks = [member(reactor, listener, rank, 3) for rank in range(3)]
        for rank in ranks:
            rank._admit(rank._wait((say.Welcome, 0), seconds=30))
        assert len({(rank.key, rank.epoch) for rank in ranks}) == 1 and ranks[0].epoch
        ranks[2]._link._sock.send(LENGTH.pack(2) + bytes(PROOF) + b"{}")
        wait_for(lambda: 2 in ranks[0].gone and 2 in ranks[1].gone)
        assert ranks[0].gone.lost[2] == ALTERED
        for rank in ranks:
            rank._link.close()


def test_a_rank_with_a_key_takes_none_from_a_welcome(reactor: Reactor) -> None:
    """The coordinator, or who speaks for it, offers a key of its own instead of a salt."""
    with coordinator_of(reactor, 1, keyed=False) as (_, listener):
        rank = member(reactor, listener, 0, 1)
        welcome = rank._wait((say.Welcome, 0), seconds=30)
        assert welcome.key
        for bad in (welcome, say.Welcome(), say.Welcome(salt="x")):
            with pytest.raises(AuthError, match="no salt.*no secret, and this rank has one"):
                rank._admit(bad)
        rank.key = b""
        with pytest.raises(AuthError, match="no key.*this rank has none"):
            rank._admit(say.Welcome(salt="00" * 32))
        rank._link.close()


def test_who_comes_after_another_was_lost_learns_it(reactor: Reactor) -> None:
    with coordinator_of(reactor, 3) as (links, listener):
        first = member(reactor, listener, 1, 3)
        wait_for(lambda: 1 in links._links)
        first._link.close()
        wait_for(lambda: links.coordinator.members.gone)
        late = member(reactor, listener, 2, 3)
        assert late._wait((say.Welcome, 0), seconds=30) is None and list(late.gone.lost) == [1]


# --- any bytes

def seeds(reactor: Reactor) -> tuple[ClientSide, ServerSide, list[bytes]]:
    """Connections as they are, and what others have found (`tests/fuzz/control`)."""
    client, server = sides()
    said = [b"".join(spoken(reactor, side, SAID)) for side in (client, server)]
    return client, server, [*said, *(path.read_bytes() for path in sorted(CORPUS.iterdir()))]


def mutant(dice: random.Random, pool: list[bytes]) -> bytes:
    """Some of these bytes, with the kinds of changes that a parser of frames may fail at."""
    data = bytearray(dice.choice(pool))
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(6)
        if kind == 0 and data:
            data[at - 1] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at : at + dice.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = dice.randbytes(dice.randrange(1, 40))
        elif kind == 3:
            other = dice.choice(pool)
            start = dice.randrange(len(other) + 1)
            data[at:at] = other[start : start + dice.randrange(200)]
        elif kind == 4:
            size = dice.choice([0, 1, 2, link.LIMIT, link.LIMIT + 1, 0xFFFFFFFF])
            data[at : at + 4] = LENGTH.pack(size)
        else:
            data[at:at] = data[at : at + dice.randrange(200)]
    return bytes(data)


def test_any_bytes_are_what_was_said_or_an_end(reactor: Reactor) -> None:
    """A keyed link understands nothing but a beginning of what its peer said, whatever else comes."""
    client, server, pool = seeds(reactor)
    dice = random.Random(20261122)
    for _ in range(400):
        data = mutant(dice, pool)
        ears = listens(reactor, dice.choice([client, server]), data)
        assert ears.heard == SAID[: len(ears.heard)], data
        assert ears.ended[0] in (ENDED, ALTERED, NONSENSE), data


HOSTILE = [
    b"[" * 100_000, b'{"a":' * 100_000, b"null", b"[]", b"{}", b"1e999", b'"x"', b"\xff\xfe", b"9" * 5000,
    b'{"join":null}', b'{"join":[{},[]]}', b'{"join":[1]}', b'{"exchange":[[1],1]}', b'{"exchange":[{},1]}',
    b'{"exchange":[1]}', b'{"exchange":["join",1]}', b'{"who":[[1]]}', b'{"who":1}', b'{"who":["join"],"bye":[]}',
    b'{"fault":null}', b'{"fault":["error","c",1,["x"]]}', b'{"fault":["?","c",1,[1]]}', b'{"goodbye":[1]}',
    b'{"fault":["error","c",1,[9999999999]]}', b'{"goodbye":[{"c":"x"}]}', b'{"answer":["c",1]}',
    b'{"answer":["c",{"seq":"x"}]}', b'{"answer":["c",{"state":"?"}]}', b'{"stuck":[1,"z",null,1,{}]}',
    b'{"welcome":["",""]}', b'{"verdict":[["error","c",1,[2]],{"x":{}}]}', b'{"bye":[]}', b'{"told":["c",9999,{}]}',
    b'{"ended":["x"]}',
]  # fmt: skip


@pytest.mark.parametrize("joined", [False, True])
def test_a_member_that_talks_nonsense_disturbs_nobody(joined: bool, reactor: Reactor) -> None:
    """It holds the key, so its words have proofs; the coordinator goes on answering another member."""
    with coordinator_of(reactor, 3) as (links, listener):
        honest = member(reactor, listener, 2, 3)
        for words in HOSTILE:
            hostile = ControlLink(reactor, dial(listener.address, KEY, Hello(1, PURPOSE, "job"), 30))
            if joined:
                hostile.send(say.pack(say.Join(1, 3)))
            hostile.post(link.PackedMessage(words, hashlib.sha256(words).digest()))
            assert 0 in honest._ask("join"), words[:40]
            hostile.close()
            wait_for(lambda: 1 not in links._links)
        honest._link.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ECONNRESET, "the connection to it broke"), (errno.ECONNABORTED, "the connection to it broke"),
        (errno.EPIPE, "the connection to it broke"), (errno.ETIMEDOUT, "its host does not answer"),
        (errno.EHOSTUNREACH, "its host cannot be reached"), (errno.ENETUNREACH, "its host cannot be reached"),
        (errno.ENETDOWN, "its host cannot be reached"), (0, ENDED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sending", [False, True])
def test_only_a_connection_that_is_closed_tells_that_the_process_ended(
    number: int, says: str, sending: bool, reactor: Reactor
) -> None:
    """The system tells an error once: to whoever sends or receives next."""

    class Broken(socket.socket):
        sent = not sending

        def recv(self, *args: int) -> bytes:
            if not self.sent:
                raise BlockingIOError
            if number and not sending:
                raise OSError(number, os.strerror(number))
            return b""

        def send(self, *args: object) -> int:
            self.sent = True
            raise OSError(number, os.strerror(number))

    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as peer:
        ours, _ = listener.accept()
        ears = Ears(reactor, Broken(fileno=ours.detach()))
        if sending:
            ears.link.send({})
        reactor.soon(lambda: peer.send(b"x"))
        wait_for(lambda: bool(ears.ended))
    if sending and number in (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE):
        says = ENDED  # it has closed its end, and what was sent afterwards came back
    assert says in ears.ended[0] and (says == ENDED) == ("its process ended" in ears.ended[0]), ears.ended
