"""One rank of an elastic job under survive.py: outer steps on a state that all members hold, bit for bit.

A step is one allreduce of the state's size.  After a loss the members renew, and who is behind takes the state of the
lowest of the most advanced.  It prints a line for each step, and for what it went through before one.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
import traceback
import zlib
from typing import Any

import numpy as np

import hocket
from hocket.bench.adversary.trial import listen, say

CHUNK = 1 << 16


class Life:
    """A member's state, and how it goes on."""

    def __init__(self, megabytes: float, place: str) -> None:
        self.place = pathlib.Path(place)
        self.state = np.zeros(int(megabytes * 1e6 / 4), np.float32)
        self.t = -1
        """Steps done; -1: the state is not the job's."""
        self.step_began = 0.0
        self.seen: dict[str, float] = {}
        """What happened since the last step, and when."""

    def begin(self) -> None:
        if os.environ.get("HOCKET_JOIN"):
            self.comm = hocket.init(timeout=60)
            self.heal()
        else:
            self.t, self.comm = 0, hocket.init(timeout=60)

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
        told = [info or [-1, 0] for info in self.comm.infos]
        top = max(t for t, _ in told)
        if len({digest for t, digest in told if t == top}) != 1:
            raise AssertionError(f"the members' states differ: {told}")
        donor = next(rank for rank, (t, _) in enumerate(told) if t == top)
        if any(t < top for t, _ in told):
            if told[self.comm.rank][0] < top:
                self.t = -1  # until it is whole
            self.comm.broadcast(self.state, donor)
            self.t = top

    def renew(self) -> None:
        self.comm = self.comm.renew([self.t, self.digest()], timeout=30)
        self.seen["agreed"] = time.monotonic()

    def step(self) -> bool:
        """True: the job is over.  Before it newcomers come in, where some wait."""
        self.step_began = time.monotonic()
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
        gradient = np.full(self.state.size, np.float32((self.t * 7 + self.comm.rank) % 5 + 1))
        gradient[:: CHUNK] += self.t
        self.comm.allreduce(gradient, "avg")
        self.state += gradient
        self.t += 1
        return False

    def live(self) -> None:
        self.begin()
        while True:
            try:
                if self.step():
                    break
            except hocket.PeerLostError as error:
                self.seen.setdefault("error", time.monotonic())
                self.seen.setdefault("named", list(error.ranks))  # type: ignore[arg-type]
                self.renew()
                self.heal()
                continue
            done, seen, self.seen = time.monotonic(), self.seen, {}
            say(t=self.t, generation=self.comm.generation, size=self.comm.size, rank=self.comm.rank, done=done,
                digest=self.digest(), lasted=done - self.step_began, **({"seen": seen} if seen else {}))
        self.comm.close()
        say(over=True, held=len(os.listdir("/proc/self/fd")))


def main(words: list[str]) -> int:
    """0, unless something was raised that a loss does not explain."""
    listen()
    life: Any = Life(float(words[0]), words[1])
    try:
        life.live()
    except BaseException:
        say(crash=traceback.format_exc())
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
