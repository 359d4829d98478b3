"""One member of an elastic job: steps on a state that all members hold, bit for bit.

A step is one allreduce of the state's size.  After a loss the members renew, and who is behind takes the state of the
lowest of the most advanced.  It prints a line for each step, and for what it went through before one.  At some moments
(`Life.at`) it looks whether it has an order: to kill or to stop itself a little later.
"""

from __future__ import annotations

import os
import pathlib
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.elastic_trial import PROCESS
from hocket.conformance.jobs.trial import say

MOMENTS = ("step", "renew", "moves", "lobby")
"""Before a step's allreduce; before renew; before the state moves; before a newcomer comes."""
EACH = 4.0
"""Seconds of one attempt to renew: then who has not called is known, and it is called again."""
ME = int(os.environ.get(PROCESS, "0"))


class Fenced(Exception):
    """The others have gone on without this process."""


class Life:
    """A member's state, and how it goes on."""

    size: int | None = None
    """Members that have done the last step together, where these need not be all."""

    def __init__(self, megabytes: float, place: str, expel: bool, computes: float = 0.0) -> None:
        self.place, self.expel, self.computes = pathlib.Path(place), expel, computes
        self.state = np.zeros(max(8, int(megabytes * 1e6 / 4)), np.float32)
        self.t = -1
        """Steps done; -1: the state is not the job's."""
        self.who: list[int] = []
        """The members, by rank: numbers of their processes."""
        self.began = 0.0
        self.seen: dict[str, Any] = {}
        """Events since the last step, and their times."""

    def at(self, moment: str) -> None:
        """Follow an order, if there is one for this moment."""
        try:
            wanted, delay, number = (self.place / f"order{ME}").read_text().split()
        except FileNotFoundError:
            return
        if wanted != moment:
            return
        os.unlink(self.place / f"order{ME}")
        threading.Timer(float(delay), self.end, [moment, int(number)]).start()

    def end(self, moment: str, number: int) -> None:
        say(hit=moment, signal=number)
        os.kill(os.getpid(), number)

    def begin(self) -> None:
        if os.environ.get("HOCKET_JOIN"):
            self.at("lobby")
            try:
                self.comm = hocket.init(timeout=120, info=[-1, 0, ME])
            except hocket.PeerLostError as error:
                raise Fenced(str(error)) from error
            self.met()
            self.heal()
        else:
            self.t, self.comm = 0, hocket.init(timeout=60)
            self.who = [row[0] for row in self.comm.share([ME], "the members")]

    def met(self) -> None:
        """There is another generation."""
        before, self.who = self.who, [info[2] for info in self.comm.infos]
        say(generation=self.comm.generation, who=self.who, before=before)

    def digest(self) -> int:
        return zlib.crc32(self.state.data)

    def heal(self) -> None:
        """All hold the most advanced state."""
        while True:
            try:
                return self._heal()
            except hocket.PeerLostError:
                self.renew()

    def _heal(self) -> None:
        told = self.comm.infos
        top = max(t for t, *_ in told)
        if len({digest for t, digest, _ in told if t == top}) != 1:
            raise AssertionError(f"the members' states differ: {told}")
        donor = next(rank for rank, (t, *_) in enumerate(told) if t == top)
        if any(t < top for t, *_ in told):
            if told[self.comm.rank][0] < top:
                self.t = -1  # until it is whole
            self.at("moves")
            self.comm.broadcast(self.state, donor)
            self.t = top

    def renew(self) -> None:
        """Until it is done: others may be stopped or cut off for a while."""
        old, info = self.comm, [self.t, self.digest(), ME]
        without: Sequence[int] = ()
        self.at("renew")
        while True:
            began = time.monotonic()
            try:
                self.comm = old.renew(info, without=without, timeout=EACH)
                break
            except hocket.TimeoutError as error:
                say(waited=time.monotonic() - began, missing=[self.who[rank] for rank in error.missing])
                without = error.missing if self.expel else ()
            except hocket.PeerLostError as error:
                raise Fenced(str(error)) from error
        self.seen["agreed"] = time.monotonic()
        for rank, how in self.comm.previous_lost.items():
            self.seen.setdefault("lost", {})[self.who[rank]] = how
        self.met()

    def step(self) -> bool:
        """True: the job is over.  Before it newcomers come in, where some wait."""
        self.began = time.monotonic()
        while True:
            asked = np.array([(self.place / "over").exists(), self.comm.waiting > 0])
            over, waiting = self.comm.allreduce(asked, "max")
            if over:
                return True
            if not waiting:
                break
            self.seen["joined"] = time.monotonic()
            self.renew()
            self.heal()
        time.sleep(self.computes)
        gradient = np.full(self.state.size, part(self.t, self.comm.rank), np.float32)
        self.at("step")
        self.average(gradient)
        self.state += gradient
        self.t += 1
        return False

    def average(self, gradient: Any) -> None:
        """In place, over all members."""
        self.comm.allreduce(gradient, "avg")

    def live(self) -> None:
        self.begin()
        while True:
            try:
                if self.step():
                    break
            except hocket.PeerLostError as error:
                self.seen.setdefault("error", time.monotonic())
                self.seen.setdefault("named", [self.who[rank] for rank in error.ranks])
                self.renew()
                self.heal()
                continue
            done, seen, self.seen = time.monotonic(), self.seen, {}
            say(t=self.t, generation=self.comm.generation, done=done, digest=self.digest(),
                value=float(self.state[0]), lasted=done - self.began, size=self.size,
                **({"seen": seen} if seen else {}))  # fmt: skip
        self.comm.close()


def part(t: int, rank: int) -> int:
    """A rank adds this in a step."""
    return (t * 7 + rank) % 5 + 1
