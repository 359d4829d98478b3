"""Several streams carry one channel's messages: the laws hold, whatever the sizes are and whichever stream breaks."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hocket.collectives.plans.instr import Instr
from hocket.conformance import LAWS, NotOfferedError, Side, ends, laws
from hocket.conformance.ends import End
from hocket.system.tls import KEY, Tls
from hocket.transports.tcp.healing import HealingStreams
from hocket.transports.tcp.long.many import ManyStreams
from support import jobs
from support.cases import more

TAG = 5


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        return a, server.accept()[0]


class Both:
    """Two ends with `number` streams between them; `kind`: "plain", "tls" or "checked"."""

    def __init__(self, number: int, kind: str = "plain") -> None:
        self.ear, self.bell = os.pipe()
        self.kind = kind
        self.streams: list[list[HealingStreams]] = [[], []]
        for k in range(number):
            outs = [self.connection(), self.connection()[::-1]]
            for me in range(2):
                self.streams[me].append(HealingStreams(outs[me][me], kind == "tls", self.bell, kind == "checked"))
            for me in range(2):
                self.streams[1 - me][k].receive_from(outs[me][1 - me])
        self.many = [ManyStreams(each[0]) for each in self.streams]
        for me in range(2):
            self.add(me, range(1, number))

    def add(self, me: int, numbers: range) -> None:
        for k in numbers:
            self.many[me].keep(k, self.streams[me][k])
            self.many[me].sends(k)
            self.many[me].receives(k)
        self.many[me].use = 0xFFFF

    def connection(self) -> tuple[object, object]:
        a, b = tcp()
        if self.kind != "tls":
            return a, b
        key = os.urandom(KEY)
        ours, theirs = Tls(a, key, False), Tls(b, key, True)
        while any([ours.shake(), theirs.shake()]):
            continue
        return ours, theirs

    def side(self, me: int) -> Side:
        many = self.many[me]
        return Side(many.send, many.recv, (many, self), lambda: self.shut(me))

    def shut(self, me: int) -> None:
        """This end is gone: in a job its peer would hear it from who mends."""
        for each in self.streams[1 - me]:
            with contextlib.suppress(OSError):
                socket.socket(fileno=os.dup(each.out_fd())).shutdown(socket.SHUT_RDWR)

    def cut(self, me: int, k: int) -> None:
        """Break the connection that this end sends on, and make it again, as mending.py does."""
        ours, theirs = self.streams[me][k], self.streams[1 - me][k]
        with socket.socket(fileno=os.dup(ours.out_fd())) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        time.sleep(0.001)
        ours.breaks()
        a, b = self.connection()
        got = theirs.got()
        theirs.receive_from(b)
        ours.again(a, got)
        while ours.give() is False:
            time.sleep(0.001)

    def close(self) -> None:
        for many in self.many:
            many.close()
        os.close(self.ear)
        os.close(self.bell)


NOTICED = "closing_is_noticed"
"""The mender of streams hears it (mending.py); a pair alone does not."""


@contextlib.contextmanager
def pairs(number: int, kind: str) -> Iterator[Callable[[], Both]]:
    made: list[Both] = []

    def make() -> Both:
        made.append(Both(number, kind))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.close()


@pytest.mark.parametrize("kind", ["plain", *more("tls", "checked")])
@pytest.mark.parametrize("law", LAWS, ids=lambda each: each.__name__)
def test_four_streams_keep_the_laws(
    law: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "STILL", 0.1)
    monkeypatch.setattr(laws, "NOTICED", 0.1)
    with pairs(4, kind) as make:

        def pair() -> tuple[Side, Side]:
            both = make()
            return both.side(0), both.side(1)

        if law.__name__ == NOTICED:
            with pytest.raises(NotOfferedError):
                law(pair)
        else:
            law(pair)


def lengths(dice: random.Random, most: int) -> list[int]:
    kinds = (0, 1, 17, 4096, 65_535, 65_536, 65_537, 131_072, 245_760)
    return [dice.choice(kinds) if dice.random() < 0.5 else int(2 ** dice.uniform(0, 22)) for _ in range(most)]


def carries(both: Both, seed: int, cuts: int, grows: bool = False) -> int:
    """Random messages in both directions at once, while streams break (and are added); the number of cuts."""
    dice, over, done = random.Random(seed), threading.Event(), 0
    plans = [lengths(dice, 60) for _ in range(2)]
    patterns = [np.frombuffer(dice.randbytes(1 << 22), np.uint8) for _ in range(2)]
    wrong: list[str] = []

    def rank(me: int) -> None:
        end = End(me, [None if peer == me else both.side(me) for peer in range(2)])
        moved = [0, 0]
        try:
            for ours, theirs in zip(plans[me], plans[1 - me], strict=True):
                got = np.empty(theirs, np.uint8)
                mine = np.roll(patterns[me], moved[0])[:ours].copy()
                instrs = (Instr("send", [1 - me], src=ends.pieces(0, ours, 3)),
                          Instr("recv", [1 - me], dst=ends.pieces(1, theirs, 2)))  # fmt: skip
                if (how := end.run(*instrs, source=mine, target=got)) != "done":
                    wrong.append(f"rank {me}: {how}")
                    return
                if not np.array_equal(got, np.roll(patterns[1 - me], moved[1])[:theirs]):
                    wrong.append(f"rank {me}: {theirs} bytes arrived changed")
                moved = [moved[0] + 1, moved[1] + 1]
        finally:
            over.set()

    threads = [threading.Thread(target=rank, args=(me,), daemon=True) for me in range(2)]
    for each in threads:
        each.start()
    later = [(me, k) for me in range(2) for k in range(1, 4)] if grows else []
    while not over.wait(dice.uniform(0, 0.03)) and done < cuts:
        if later:
            me, k = later.pop(dice.randrange(len(later)))
            both.add(me, range(k, k + 1))
        else:
            both.cut(dice.randrange(2), dice.randrange(len(both.streams[0])))
            done += 1
    for each in threads:
        each.join(60)
    assert not wrong and not any(each.is_alive() for each in threads), wrong
    return done


@pytest.mark.parametrize(("kind", "seed"), [("plain", 1), ("tls", 2), ("checked", 3)])
def test_random_sizes_and_cuts_change_nothing(kind: str, seed: int) -> None:
    with pairs(4, kind) as make:
        both = make()
        carries(both, seed, 1 << 30)
        assert min(min(each.pieces) for each in both.many) > 60
        assert all(each.kept[0] > 65_536 for side in both.streams for each in side)  # all of them carried some


@pytest.mark.more
@pytest.mark.parametrize("kind", ["plain", "tls", "checked"])
def test_many_random_sizes_and_cuts_change_nothing(kind: str) -> None:
    for seed in range(60):
        with pairs(1 + seed % 5, kind) as make:
            carries(make(), seed, 1 << 30)


def test_what_is_closed_holds_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pairs(3, "plain") as make:
        both = make()
        carries(both, 5, 0)
        held = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        assert sum(os.path.exists(each) and os.readlink(each) == "anon_inode:[eventpoll]" for each in held) >= 4
    assert len(os.listdir("/proc/self/fd")) <= before and both.many[0].pieces[0] > 60


def frame(tag: int, payload: bytes) -> bytes:
    """A short one, as frame.h has it."""
    mixed = (tag ^ 0x9E3779B97F4A7C15) * 0xFF51AFD7ED558CCD % 2**64
    check = (mixed ^ mixed >> 32 ^ len(payload)) * 0xC4CEB9FE1A85EC53 % 2**64 >> 32
    return struct.pack("<4sIQQ", b"hkt1", check, tag, len(payload)) + payload


@pytest.mark.parametrize(("more", "how"), [(90, "done"), (91, "fault"), (200, "fault")])
def test_a_piece_that_is_longer_than_the_rest_of_its_message_is_refused(more: int, how: str) -> None:
    """A peer that lies: what is too much would be taken for the next message's."""
    with pairs(1, "plain") as make:
        both = make()
        with socket.socket(fileno=os.dup(both.streams[0][0].out_fd())) as wire:
            head = struct.pack("<QQ", TAG, 100)
            wire.sendall(frame(2**64 - 1, b"+") + frame(0, head + b"y" * 10) + frame(1, b"z" * more))
        room = np.zeros(300, np.uint8)
        recv = Instr("recv", [0], dst=ends.pieces(1, 100, 1))
        assert End(1, [both.side(1), None]).run(recv, tag=TAG, target=room[:100], timeout=60) == how
        assert not room[100:].any()


EARLY = """
import threading, time
import numpy as np, hocket
from hocket.transports.tcp import transport
transport.HEALS_INSIDE = True
get, lead_of, comes = transport.Groups.get, transport.lead_of, threading.Event()
def number_of(key):
    lead, number = lead_of(key)
    if number:
        comes.set()
    return lead, number
def slow(self, key):
    found = get(self, key)
    time.sleep(0.2 if comes.is_set() and not found else 0.0)
    return found
transport.lead_of, transport.Groups.get = number_of, slow
with hocket.init(transport="tcp") as comm:
    assert comm.rank == 0 or comes.wait(60)
    x = np.full(1_000_000, comm.rank, np.float32)
    assert (comm.allreduce(x, timeout=60) == 1).all()
"""


def test_a_stream_that_comes_while_its_channels_are_opened_is_used() -> None:
    """One that was forgotten held up all later messages, whose pieces it carried."""
    jobs.run(2, EARLY, 90, HOCKET_STREAMS="4")
