"""A process that holds the key can do nothing to others by frames: it ends its own link.

It is a member of the view and speaks by hand, or it is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import Client, Range, Rows, serve
from hocket.training.server import holder
from hocket.training.server.shards.store import Change, What
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.frames import CODE, Frame, framed
from hocket.training.server.wire.link import ServerLink
from support.worlds import spread

TABLES: dict[str, Range | Rows] = {"rows": Rows(4), "w": Range(4)}
ROWS, W = 0, 1
FOUR = np.full(4, 666, np.float32)
SOON = 10**6


def changed(values: Any) -> Change:
    return Change(W, 0, None, values)


def header(kind: type, generation: int, worker: int, **words: int) -> Frame:
    made = [CODE[kind] | W << 32, generation, worker, 1, 0, 0, 0, 0]
    for place, value in words.items():
        made[int(place[1:])] = value
    return Frame(made)


Case = Callable[[int, int, int], Any]
CASES: dict[str, Case] = {
    # of (generation, the honest worker's number, its own)
    "another's push": lambda g, honest, own: say.Push(g, honest, 2**62, changed(FOUR)),
    "another's clock": lambda g, honest, own: say.Push(g, honest, 2**61, say.Clock(None)),
    "nobody's clock": lambda g, honest, own: say.Push(g, 12345, 1, say.Clock(0)),
    "a late clock": lambda g, honest, own: say.Push(g, own, 1, say.Clock(2**63 - 1)),
    "another's greeting": lambda g, honest, own: say.Hello(g, honest),
    "another's pull": lambda g, honest, own: say.Pull(g, honest, 1, 0, What(W, 0, None)),
    "the head's beginning": lambda g, honest, own: say.Begin(g),
    "the head's item": lambda g, honest, own: say.Item(g, (W, 0), {"values": FOUR}),
    "the head's change": lambda g, honest, own: say.Forward(g, 1, say.Push(g, own, 1, changed(FOUR))),
    "the head's end": lambda g, honest, own: say.Filled(g, 10**9, {}, {}),
    "the copy's place": lambda g, honest, own: say.At(g, 10**9),
    "the copy's word": lambda g, honest, own: say.Applied(g, 10**9),
    "another number": lambda g, honest, own: say.Named(honest, 7),
    "a long push": lambda g, honest, own: header(say.Push, g, own, w6=256 << 20),
    "a long item of rows": lambda g, honest, own: Frame([CODE[say.Item] | ROWS << 32, g, 0, 0, 0, 0, 256 << 20, 0]),
    "long books": lambda g, honest, own: Frame([CODE[say.Filled], g, 0, 0, 0, 0, 32 << 20, 0]),
    "a long pull": lambda g, honest, own: header(say.Pull, g, own, w6=256 << 20),
    "many rows": lambda g, honest, own: Frame([CODE[say.Push], g, own, 1, 0, 0, 16 << 40, 1 << 40]),
    "no table": lambda g, honest, own: Frame([CODE[say.Push] | 9 << 32, g, own, 1, 0, 0, 16, 0]),
    "no part": lambda g, honest, own: header(say.Push, g, own, w5=7, w6=16),
    "less than nothing": lambda g, honest, own: header(say.Push, g, own, w6=-5),
    "an answer": lambda g, honest, own: say.Answer(g, 1, FOUR),
    "no kind": lambda g, honest, own: Frame([200, g, own, 1, 0, 0, 0, 0]),
}


def ends(link: ServerLink) -> bool:
    """Does the server end it, soon?"""
    try:
        while link.comm.recv(np.zeros(8, np.int64), link.peer, 1, timeout=60) is not None:
            pass
    except hocket.PeerLostError:
        return True
    except hocket.TimeoutError:
        return False
    return False


def memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def lies(comm: Communicator) -> None:
    if comm.rank == 0:
        server = serve(comm, TABLES, on=[0])
        before = memory()
        shard = server.holder.replicas[0].shard
        for _ in range(3):
            comm.barrier()
        assert (grew := memory() - before) < 64 << 20, f"{grew >> 20} MiB"
        assert not shard._early and not shard.waiting, (shard._early, shard.waiting)
        assert server.wait(60)
        return
    with Client(comm, TABLES) as client:
        view, me = client._heads.view, client._heads._worker
        assert view is not None
        comm.barrier()
        if comm.rank == 2:
            client.push("w", np.ones(4))
            client.tick()
            client.tick()
            client.push("w", np.ones(4))
            address = view.addresses[view.heads[0]]
            honest = next(uid for uid in view.workers if uid != client.uid)

            def link(named: say.Named | None) -> ServerLink:
                made = ServerLink(hocket.connect(address, like=comm), to_server=True)
                if named is not None:
                    made.send(framed(0, named))
                return made

            stranger = say.drawn()
            for name, case in CASES.items():
                said = case(view.generation, honest, me.uid)
                made = link(me)
                with contextlib.suppress(hocket.Error):
                    made.send(said if isinstance(said, Frame) else framed(0, said))
                assert ends(made), name
                made.close()
            for named in (stranger, None):
                for said in (say.Hello(view.generation, stranger.uid),
                             say.Push(view.generation, stranger.uid, 1, changed(FOUR)),
                             say.Pull(view.generation, stranger.uid, 1, 0, What(W, 0, None))):  # fmt: skip
                    made = link(named)
                    made.send(framed(0, said))
                    assert ends(made), (said, named)
                    made.close()
            waits = link(me)
            for number in range(2 * say.HEARD):
                try:
                    waits.send(framed(0, say.Pull(view.generation, me.uid, number, 2**61, What(W, 0, None))))
                except hocket.Error:
                    break
            assert ends(waits), "more pulls than a client makes"
            waits.close()
            early = link(me)
            for _ in range(100):
                early.post(framed(0, say.Hello(view.generation + SOON, me.uid)))
            unread = link(me)
            for _ in range(2000):
                unread.post(framed(0, say.Hello(view.generation, me.uid)))
        comm.barrier()
        if comm.rank == 1:
            client.push("w", np.ones(4))
            client.tick()
            client.tick()
            began = time.monotonic()
            assert (client.pull("w") == 3).all(), "once each"
            assert time.monotonic() - began < 30, "nobody is waited for"
        comm.barrier()
        if comm.rank == 2:
            for made in (early, unread):
                made.close(ValueError("the test is over"))
            client._leave(said=False)  # what is acknowledged to it comes by the link that greeted last


def test_who_lies_ends_its_own_link() -> None:
    spread(lies, 3, "shm")


def comes_often(comm: Communicator) -> None:
    """Links that say nothing, those of a process that is in no view, and many of one that is: the oldest give way."""
    if comm.rank == 0:
        holder.STRANGE = 4
        server = serve(comm, TABLES, on=[0])
        comm.barrier()
        comm.barrier()
        with server.holder._counting:
            counts = sorted(len(guests) for guests in server.holder._guests.values())
        assert counts[-1] <= holder.SEVERAL and len(server.holder._incoming._threads) <= 4 + holder.SEVERAL + 1, counts
        comm.barrier()
        assert server.wait(60)
        return
    with Client(comm, TABLES) as client:
        comm.barrier()
        made = []
        if comm.rank == 2:
            view, me = client._heads.view, client._heads._worker
            assert view is not None
            address = view.addresses[view.heads[0]]
            for named in [None] * 3 + [say.drawn()] * 3 + [me] * 10:
                made.append(ServerLink(hocket.connect(address, like=comm), to_server=True))
                if named is not None:
                    made[-1].send(framed(0, named))
            for each in made[:2]:
                assert ends(each)
            for each in made[6:8]:
                assert ends(each)
        comm.barrier()
        if comm.rank == 1:
            client.push("w", np.ones(4))
        comm.barrier()
        for each in made:
            each.close(ValueError("the test is over"))
        if comm.rank == 2:
            client._leave(said=False)  # its own link was the oldest


def test_links_of_a_process_and_of_strangers_are_few() -> None:
    spread(comes_often, 3, "shm")
