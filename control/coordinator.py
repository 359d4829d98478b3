"""The meeting point of a job, in rank 0's process: who is here, their exchanges, who is lost, whose fault.

Everything runs on the reactor's thread.  A member's messages:

    join {rank, size, pid, host}   exchange n, value   who n   report fault   stuck info   account comm   goodbye
    finished   ask {comm, ranks}   told account, comm, to   open name

and the coordinator's: welcome, refused, missing, exchange n, values, who n, missing, stop, verdict, ask comm, by,
told account, comm, rank, left finished, open name, bye.
Every member hears of a loss in one hop.  Cost: 2 messages a rank and exchange.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.control.faults import Faults
from hocket.control.handshake import Hello
from hocket.control.link import Link, Message, encode
from hocket.control.reactor import Reactor
from hocket.control.records import State
from hocket.errors import ArgumentError

log = logging.getLogger("hocket.control")
JOIN = "join"  # the "exchange" that everybody takes part in first
PURPOSE = "rendezvous"
ASK_AGAIN = 5.0  # seconds in which only one rank of a communicator is told what the others do
AGAIN = 0.4  # seconds in which a rank whose connection ended before all were here may come again
PLAIN = "not encrypted"  # the purpose noted for a rank that comes so, where it must not


class Coordinator:
    """`take` is a listener's on_peer; `complete` is called once all are here; `empty` is set once the others left."""

    def __init__(self, reactor: Reactor, size: int, job: str, keyed: bool) -> None:
        self.size, self.job, self.reactor = size, Hello(0, PURPOSE, job).job, reactor
        self.empty = threading.Event()
        # With a job key the session's key is derived from it and this salt; without one it is the key itself.
        self.welcome = {"salt" if keyed else "key": secrets.token_hex(32)}
        self.complete: Callable[[], object] = lambda: None
        self.formed = False
        self.absent: dict[int, State] = {}  # rank: "lost" or "left"
        self._links: dict[int, Link] = {}
        self._who: dict[int, str] = {}  # rank: "process 123 on host x"
        self._how: dict[int, str] = {}  # rank: how it was lost
        self._asked: dict[str, float] = {}  # communicator: when its ranks were last asked what they do
        self._gave_up: set[int] = set()  # came, and said goodbye before all were here
        self._strangers: set[Link] = set()  # proven, but have not joined
        self._rounds: dict[Any, dict[int, Any]] = {JOIN: {}}
        self._opened: set[str] = set()  # transports that all ranks were told to open
        self._faults = Faults(self._send, reactor.later, self.absent)

    def take(self, sock: socket.socket, hello: Hello) -> None:
        """A proven connection: wait for its join."""
        link = Link(self.reactor, sock)
        self._strangers.add(link)
        link.on_message = lambda message: self._joins(link, hello, message)
        link.on_end = lambda how: self._strangers.discard(link)
        link.start()
        self.reactor.later(10.0, lambda: self._forget(link))

    def late(self) -> None:
        """Rank 0's time to wait for the others is over: tell the ranks that are here which ones are not."""
        missing = self._blame(JOIN)
        for rank in list(self._links):
            self._send(rank, {"who": JOIN, "missing": missing, "over": True})

    def shut(self) -> None:
        """Close all connections (what was sent is delivered first)."""
        for link in [*self._links.values(), *self._strangers]:
            link.close()
        self._links.clear()
        self._strangers.clear()

    # --- joining ---

    def _joins(self, link: Link, hello: Hello, message: Message) -> None:
        claim = message.get(JOIN)
        if not isinstance(claim, dict):
            self._forget(link)
            return
        refusal = self._objection(hello, claim)
        if refusal or self.absent:  # a rank that comes after another was lost learns that
            foreign = hello.job != self.job or hello.purpose not in (PURPOSE, PLAIN)
            link.send({"refused": refusal, "foreign": foreign} if refusal else self._verdict(min(self.absent)))
            self.reactor.soon(lambda: self._forget(link))
            return
        rank = hello.rank
        self._strangers.discard(link)
        self._links[rank], self._who[rank] = link, _process(claim)
        self._rounds[JOIN][rank] = None
        link.on_message = lambda message: self._hear(rank, message)
        link.on_end = lambda how: self._ended(rank, how)
        if not self._missing(JOIN):
            self.formed = True
            if self.size == 1:
                self.empty.set()
            for each in self._links:
                self._send(each, {"welcome": self.welcome})
            self.complete()

    def _objection(self, hello: Hello, claim: Message) -> str:
        rank, size = hello.rank, claim.get("size")
        if hello.purpose == PLAIN and hello.job == self.job:
            return f"HOCKET_ENCRYPT is set on rank 0, and not on rank {rank}: it must be the same on every rank"
        if hello.purpose != PURPOSE or hello.job != self.job:
            return f"this is the rendezvous of job {self.job!r}, not of {hello.job!r}"
        if size != self.size:
            return f"rank {rank} ({_process(claim)}) came with size {size}, but rank 0 with size {self.size}"
        if claim.get("rank") != rank or not 0 <= rank < self.size:
            return f"rank {rank} is outside of 0..{self.size - 1}"
        if rank in self._links or (self.formed and rank in self.absent):
            return (
                f"rank {rank} is taken by {self._who[rank]}, and {_process(claim)} came as rank {rank} too: "
                "every process needs its own rank"
            )
        return ""

    def _forget(self, link: Link) -> None:
        if link in self._strangers:
            self._strangers.discard(link)
            link.close()

    # --- members ---

    def _hear(self, rank: int, message: Message) -> None:
        if "exchange" in message:
            self._exchange(rank, message["exchange"], message.get("value"))
        elif "open" in message:
            self._open(str(message["open"]))
        elif "who" in message:
            self._send(rank, {"who": message["who"], "missing": self._blame(message["who"])})
        elif "report" in message:
            self._faults.report(rank, message["report"])
        elif "stuck" in message:
            self._faults.stuck(rank, message["stuck"])
        elif "account" in message:
            self._faults.account(rank, message["comm"], message["account"])
        elif "ask" in message:
            self._ask(rank, message["ask"])
        elif "told" in message:
            self._send(message["to"], {"told": message["told"], "rank": rank, "comm": message["comm"]})
        elif "goodbye" in message:
            self._leaves(rank, message["goodbye"])
        else:
            log.warning("hocket: rank %d sent an unknown control message %s", rank, list(message))

    def _ask(self, by: int, asked: Message) -> None:
        """Ask these ranks what they are doing.  Each answers by itself; for one that is gone the coordinator does."""
        now = time.monotonic()
        self._asked = {comm: since for comm, since in self._asked.items() if now - since < ASK_AGAIN}
        if self._asked.setdefault(str(asked["comm"]), now) != now:
            return  # all ranks that wait ask at once, and it is enough if one logs it
        for rank in asked["ranks"]:
            if rank in self.absent:
                gone = {"state": self.absent[rank]}
                self._send(by, {"told": gone, "rank": rank, "comm": asked["comm"]})
            elif rank != by:
                self._send(rank, {"ask": asked["comm"], "by": by})

    def _open(self, name: str) -> None:
        """A rank wants a transport that the job has not opened: all ranks are to, once."""
        if name not in self._opened:
            self._opened.add(name)
            for rank in self._links:
                self._send(rank, {"open": name})

    def _exchange(self, rank: int, number: int | str, value: Any) -> None:
        values = self._rounds.setdefault(number, {})
        values[rank] = value
        if len(values) < self.size:
            return
        del self._rounds[number]
        try:
            data = encode({"exchange": number, "values": [values[each] for each in range(self.size)]})
        except ArgumentError as why:  # too long together
            data = encode({"exchange": number, "error": str(why)})
        for link in self._links.values():
            link.post(data)

    def _missing(self, number: Any) -> list[int]:
        here = self._rounds.get(number, {})
        return [rank for rank in range(self.size) if rank not in here]

    def _blame(self, number: Any) -> list[int]:
        """The ranks to blame when time is over: not those that came, and whose own time was over first."""
        missing = self._missing(number)
        return [rank for rank in missing if number != JOIN or rank not in self._gave_up] or missing

    def _leaves(self, rank: int, finished: Any) -> None:
        self._send(rank, {"bye": True})
        self._links.pop(rank).close()
        if not self.formed:
            self._gave_up.add(rank)
            del self._rounds[JOIN][rank]
            return
        self.absent[rank] = "left"
        self._tell_absence(rank, {"left": rank, "finished": finished if isinstance(finished, dict) else {}})

    def _ended(self, rank: int, how: str) -> None:
        del self._links[rank]
        if not self.formed:
            del self._rounds[JOIN][rank]
            self.reactor.later(AGAIN, lambda: self._died(rank, how))
            return
        self._lose(rank, how)

    def _died(self, rank: int, how: str) -> None:
        """While the ranks meet: a rank whose connection was cut comes again in time, one that has died does not."""
        if not self.formed and rank not in self._links and rank not in self.absent:
            self._lose(rank, how)

    def _lose(self, rank: int, how: str) -> None:
        self.absent[rank] = "lost"
        self._how[rank] = how
        self._tell_absence(rank, self._verdict(rank))

    def _verdict(self, rank: int) -> Message:
        """That `rank` was lost."""
        lost = sorted(each for each, state in self.absent.items() if state == "lost")
        return {"verdict": {"kind": "lost", "lost": lost, "new": [rank], "how": self._how[rank]}}

    def _tell_absence(self, rank: int, message: Message) -> None:
        for each in list(self._links):
            self._send(each, message)
        self._faults.gone()
        if not set(self._links) - {0}:
            self.empty.set()

    def _send(self, rank: int, message: Message) -> None:
        if rank in self._links:
            self._links[rank].send(message)


def _process(claim: Message) -> str:
    return f"process {claim.get('pid')} on {claim.get('host')}"
