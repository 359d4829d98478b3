"""Pairs and sides of a transport's channels, between ranks that are all in this process."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable
from typing import Any

from hocket.conformance.ends import Side, expect
from hocket.control.reactor import Reactor
from hocket.transports.base import Context, Transport

REACH = 30.0
"""Seconds for all ranks to test their transports."""


class InProcess:
    """The ranks of `kind(context)` in one process, opened as `hocket.init` does it; a context manager that closes all
    of it.

    Offers travel as JSON; all ranks test their transports at the same time; then one rank after the other opens its
    channels, in one thread, so that an `open` which waits for the peer's hangs here.
    """

    def __init__(self, kind: Callable[[Context], Transport]) -> None:
        self.kind = kind
        self.made: list[Any] = []
        self.names = itertools.count()

    def sides(self, size: int) -> list[list[Side | None]]:
        """sides(size)[a][b]: rank a's side towards rank b."""
        key, job = secrets.token_bytes(32), secrets.token_hex(8)
        transports = []
        rdma = os.environ.get("HOCKET_RDMA", "")
        for rank in range(size):
            reactor = Reactor()
            self.made.append(reactor)
            transports.append(self.kind(Context(rank, size, key, job, reactor, timeout=REACH, rdma=rdma)))
            self.made.append(transports[-1])
        self._reach(transports)
        name, members = f"{next(self.names):08x}", list(range(size))
        channels = [transport.channels(name, rank, members) for rank, transport in enumerate(transports)]
        self.made += channels
        offers = [_sent(each.offer()) for each in channels]

        def side(rank: int, peer: int) -> Side:
            return Side(*channels[rank].open(peer, offers[peer]), (channels, transports), channels[rank].close)

        return [[None if a == b else side(a, b) for b in members] for a in members]

    def pair(self) -> tuple[Side, Side]:
        table = self.sides(2)
        one, other = table[0][1], table[1][0]
        assert one is not None and other is not None
        return one, other

    def _reach(self, transports: list[Transport]) -> None:
        offers = [_sent(transport.offer()) for transport in transports]
        refusals: dict[tuple[int, int], object] = {}

        def reach(rank: int) -> None:
            try:
                answer = transports[rank].reach(offers)
                refusals.update({(rank, peer): why for peer, why in enumerate(answer) if why and peer != rank})
            except Exception as error:
                refusals[rank, rank] = error

        threads = [threading.Thread(target=reach, args=(r,), daemon=True) for r in range(len(transports))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * REACH)
            expect(not thread.is_alive(), "`reach` does not end")
        expect(not refusals, f"no transport between ranks of one process (rank, peer): {refusals}")

    def close(self) -> None:
        while self.made:
            self.made.pop().close()  # in the order of `World.close`: channels, transport, reactor

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _sent(offer: Any) -> Any:
    return json.loads(json.dumps(offer))
