"""A rank's membership in its job: exchange values, report faults, hear of losses.

Holds one control connection to the coordinator (rank 0 holds the coordinator too).  The reactor's thread reads it and
calls the owner's callbacks; the owner's threads call the methods.  Knows no algorithms and moves no data.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.control.coordinator import JOIN, Coordinator
from hocket.control.handshake import AuthError, prove
from hocket.control.link import Link, Message
from hocket.control.reactor import Reactor
from hocket.control.records import Account, Fault, Stuck, Verdict
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError

log = logging.getLogger("hocket.control")
GOODBYE = 1.0  # seconds that leaving waits for the coordinator's answer
LAST_OUT = 2.0  # seconds that rank 0, whose process holds the coordinator, waits for the others' goodbyes


class Session:
    """What `join` returns.  The callbacks run on the reactor's thread and must not block.

    on_stop(fault) -> account    a communicator of this rank fails: stop waiting in it, say what this rank is doing
    on_verdict(verdict)          what failed and what every rank was doing; kind "lost": `lost` names all ranks that
                                 died so far, `new` those that this verdict is about
    on_left(rank, finished)      a rank said goodbye, and how many calls it has finished, by communicator
    on_ask(comm) -> account      another rank waits, and wants to know what this one is doing
    on_told(comm, rank, account) the answer of one rank to `ask`
    on_open(transport)           some rank wants this transport, which all ranks are to open now

    `lost` (rank: how) and `left` remember what came before the callbacks were set.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket, rank: int, size: int, key: bytes | None) -> None:
        self.rank, self.size, self.key, self.reactor = rank, size, key or b"", reactor
        self.epoch = 0  # tells this session from others of the job; made of the key in `_admit`
        self.lost: dict[int, str] = {}
        self.left: set[int] = set()
        self.on_stop: Callable[[Fault], Account] = lambda fault: {}
        self.on_verdict: Callable[[Verdict], object] = lambda verdict: None
        self.on_left: Callable[[int, dict[str, int]], object] = lambda rank, finished: None
        self.on_ask: Callable[[str], Account] = lambda comm: {}
        self.on_told: Callable[[str, int, Account], object] = lambda comm, rank, account: None
        self.on_open: Callable[[str], object] = lambda transport: None
        self._coordinator: Coordinator | None = None
        self._owns_reactor = False
        self.home: str | None = None  # rank 0: where its coordinator listens; its own way there is a pair of sockets
        self._changed = threading.Condition()
        self._heard: dict[Any, Message] = {}  # its answers: "welcome", "refused", ("exchange", n), ("who", n)
        self._exchanges = 0
        self._closed = False
        self._admitted = False
        self._ended_how = ""
        self._link = Link(reactor, sock)
        self._link.on_message, self._link.on_end = self._hear, self._ended
        reactor.soon(self._link.start)
        me = {"rank": rank, "size": size, "pid": os.getpid(), "host": socket.gethostname()}
        self._link.send({JOIN: me})

    def exchange(self, value: Any, timeout: float, name: str = "") -> list[Any]:
        """Every rank's `value`, by rank.  All ranks call it, in the same order; the values are JSON.  2 messages.

        One with a `name`, which no other has, stands outside of that order.
        """
        number: int | str = name
        if not name:
            number, self._exchanges = self._exchanges, self._exchanges + 1
        self._alive()
        self._link.send({"exchange": number, "value": value})
        answer = self._wait(("exchange", number), seconds=timeout)
        if answer is None:
            if self.lost or self.left or self._ended_how:
                raise self._loss(f"exchange {number} of the job")
            missing = self._ask(number)
            raise TimeoutError(
                f"rank {self.rank}: exchange {number} was not complete after {timeout:g} s: {_ranks(missing)} had not "
                "come to it; is it running, or somewhere else?",
                missing,
            )
        if "error" in answer:
            raise ArgumentError(f"rank {self.rank}: exchange {number}: {answer['error']}")
        return list(answer["values"])

    @property
    def local_address(self) -> str | None:
        """The address of this host on its connection to the coordinator; None over a Unix socket."""
        return self.home or self._link.local_address

    def report(self, fault: Fault) -> None:
        """Tell all ranks of a communicator that it failed."""
        self._link.send({"report": fault})

    def stuck(self, info: Stuck) -> None:
        """Tell the coordinator that this rank has waited a while."""
        self._link.send({"stuck": info})

    def ask(self, comm: str, ranks: list[int]) -> None:
        """Ask these ranks what they are doing on this communicator; `on_told` gets each one's answer."""
        self._link.send({"ask": {"comm": comm, "ranks": ranks}})

    def open(self, transport: str) -> None:
        """Let all ranks open this transport, whatever they are doing: each hears `on_open`, once."""
        self._link.send({"open": transport})

    def close(self, finished: dict[str, int] | None = None, patient: bool = False) -> None:
        """Say goodbye, and how many calls this rank has finished.  Never raises, may be repeated.

        Takes at most about 3 s, as rank 0 waits for the others; if it is `patient`, until they have left.
        """
        if self._closed or self.reactor.dead:
            return
        self._closed = True
        try:
            self._link.send({"goodbye": finished or {}})
            if not self.reactor.inside():
                self._wait("bye", seconds=GOODBYE, absence=False)
                if self._coordinator is not None:
                    self._coordinator.empty.wait((None if patient else LAST_OUT) if self._coordinator.formed else 0.0)
            self._shut()
        except Exception:
            log.debug("hocket: leaving the job", exc_info=True)

    def _shut(self) -> None:
        self._link.close()
        if self._coordinator is not None:
            self.reactor.soon(self._coordinator.shut)
        if self._owns_reactor:
            self.reactor.close()

    # --- the owner's side ---

    def _alive(self) -> None:
        if self._closed or self.reactor.dead:
            raise Error(f"rank {self.rank}: this session is closed, or this process is a fork of the rank's")

    def _wait(self, *kinds: Any, seconds: float, absence: bool = True) -> Message | None:
        """The coordinator's answer; None when time is over, the connection has ended, or (`absence`) a rank is gone."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for kind in kinds:
                    if kind in self._heard:
                        return self._heard.pop(kind)
                left = deadline - time.monotonic()
                if left <= 0 or self._ended_how or (absence and (self.lost or self.left)):
                    return None
                self._changed.wait(left)

    def _ask(self, number: Any) -> list[int]:
        """Which ranks have not come to an exchange; [0], which should have told, if there is no answer."""
        self._link.send({"who": number})
        answer = self._wait(("who", number), seconds=1.0)
        return [0] if answer is None else list(answer["missing"])

    def _loss(self, what: str) -> PeerLostError:
        how = [f"rank {rank} was lost: {how}" for rank, how in sorted(self.lost.items())]
        how += [f"rank {rank} left" for rank in sorted(self.left)]
        gone = sorted(self.lost or self.left) or [0]  # ranks that left because others were lost are not to blame
        return PeerLostError(f"rank {self.rank}: {what} cannot complete: {'; '.join(how) or 'rank 0 is gone'}", gone)

    def look(self) -> None:
        """Raise PeerLostError if a rank was lost.  For waits for other ranks while all meet."""
        if self.lost:
            raise self._loss("the meeting of the ranks")

    def _admit(self, welcome: Message) -> None:
        """Take the session's key, so that a former session's is void.

        It is derived from the job's key and the coordinator's salt.  Only where there is no key (a Unix socket, where
        the user id is the proof) does the coordinator draw it: a rank that has one takes none from anybody.
        """
        wanted = "salt" if self.key else "key"
        try:
            drawn = bytes.fromhex(welcome[wanted])
        except (KeyError, TypeError, ValueError):
            raise AuthError(
                f"rank {self.rank}: the coordinator's welcome holds no {wanted}, but {', '.join(map(str, welcome))}: "
                f"it has {'no secret, and this rank has one' if self.key else 'a secret, and this rank has none'}"
            ) from None
        self.key = hmac.digest(self.key, b"session" + drawn, "sha256") if self.key else drawn
        self.epoch = int.from_bytes(prove(self.key, b"epoch", b"")[:4], "big")

    # --- the reactor's side ---

    def _hear(self, message: Message) -> None:
        if "stop" in message:
            self._stop(message["stop"])
        elif "verdict" in message:
            self._judge(message["verdict"])
        elif "left" in message:
            self._note(left=message["left"])
            self.on_left(message["left"], message["finished"])
        elif "ask" in message:
            self._link.send({"told": self.on_ask(message["ask"]), "comm": message["ask"], "to": message["by"]})
        elif "open" in message:
            self.on_open(message["open"])
        elif "told" in message:
            self.on_told(message["comm"], message["rank"], message["told"])
        else:
            kind = next(iter(message))
            number = message[kind] if kind in ("exchange", "who") else None
            with self._changed:
                self._admitted |= kind == "welcome"
                self._heard[kind if number is None else (kind, number)] = message
                self._changed.notify_all()

    def _stop(self, fault: Fault) -> None:
        try:
            account = self.on_stop(fault)
            self._link.send({"account": account, "comm": fault["comm"]})
        except Exception as why:
            log.exception("hocket: rank %d could not say what it is doing", self.rank)
            self._link.send({"account": {"state": "error", "text": repr(why)}, "comm": fault["comm"]})

    def _judge(self, verdict: Verdict) -> None:
        if "accounts" in verdict:
            verdict["accounts"] = {int(rank): account for rank, account in verdict["accounts"].items()}
        self._note(lost=dict.fromkeys(verdict.get("new", ()), str(verdict.get("how"))))
        self.on_verdict(verdict)

    def _ended(self, how: str) -> None:
        with self._changed:
            loss = self._admitted and not self._closed and 0 not in self.left
            self._ended_how = how
            self._changed.notify_all()
        if loss:  # rank 0 held the coordinator, so nobody else can tell
            self._note(lost={0: how})
            self.on_verdict({"kind": "lost", "lost": sorted(self.lost), "new": [0], "how": how})

    def _note(self, lost: dict[int, str] | None = None, left: int | None = None) -> None:
        with self._changed:
            self.lost.update(lost or {})
            if left is not None:
                self.left.add(left)
            self._changed.notify_all()


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
