"""The number of streams that pay from a rank to another one: found while calls run.

A machine without I/O.  One stream is not enough where its window is full (rate x round trip is more than
net.ipv4.tcp_wmem or the receiver's window), or where losses bound it.  More are tried then; they stay if the same bytes
take clearly less time.  Nobody else need agree: the receiver goes on with whatever piece comes (many.h).
"""

from __future__ import annotations

from typing import NamedTuple

from hocket.transports.tcp.long.congestion import LONG

LADDER = 1, 8, 16
"""No 4: they carry 0.8 of 1 Gbit/s x 100 ms, 8 all of it, which is too little more for a trial to see under noise."""
ENOUGH, MOST = 0.3, 10.0
"""Seconds of sending that a judgement stands on, at least and at most: losses may be rare, and bind all the same."""
TRIAL, TRIALS = 0.8, 3
"""Seconds of sending by which more streams are judged, and how often before they go: new ones begin slowly, ..."""
LOST = 2.0
"""... and those before losses are believed to bound a stream: it begins faster than it can go on."""
BOUND = 0.25
"""The part of the time in which a window was full, from which on it bounds the stream."""
LOSSES = 3
"""Bytes sent again so often: one may be chance."""
BETTER = 1.1
"""Times the rate, for which more streams stay."""
REST, MORE = 10.0, 3.0
"""Seconds until more streams are tried again that did not pay, and times as many after each such trial."""


class Usage(NamedTuple):
    """The doings of the connections from one rank to another one since the last look, all together."""

    nbytes: int
    """Bytes that the other host has acknowledged."""
    busy: float
    """Seconds in which there were bytes on the way, ..."""
    full: float
    """... and those in which a window was full."""
    losses: int
    round_trip: float
    by_loss: bool
    """Does the congestion control take a loss for a full queue?"""

    def plus(self, more: Usage) -> Usage:
        return Usage(self.nbytes + more.nbytes, self.busy + more.busy, self.full + more.full, self.losses + more.losses,
                    more.round_trip, more.by_loss)  # fmt: skip

    @property
    def rate(self) -> float:
        return self.nbytes / self.busy if self.busy else 0.0


NOTHING = Usage(0, 0.0, 0.0, 0, 0.0, False)


def together(streams: list[Usage]) -> Usage:
    """Connections side by side, as one.  A window that is full does not bind the others: `full` is their mean."""
    nbytes, busy, full, losses, round_trip, by_loss = zip(NOTHING, *streams, strict=True)
    most = max(busy)
    return Usage(sum(nbytes), most, most * sum(full) / (sum(busy) or 1.0), sum(losses), max(round_trip), by_loss[-1])


class Width:
    """The number of streams from one rank to another one on one lane.  most: as many may be opened."""

    def __init__(self, most: int = LADDER[-1]) -> None:
        self.streams, self.most = 1, most
        self.why = ""
        """For people: what bounds one stream, or bounded it."""
        self._seen, self._before, self._trial = NOTHING, 0.0, 0
        self._latest, self._rate, self._grows = NOTHING, 0.0, False
        self._rest, self._again = 0.0, REST

    def saw(self, seen: Usage, now: float) -> int:
        """The streams to use from now on."""
        if self._trial == 1:  # the first look behind a change has both
            self._trial, self._seen, self._latest = 2, NOTHING, NOTHING
            return self.streams
        if self._seen.busy > MOST:
            self._seen = NOTHING
        self._latest = self._latest.plus(seen)  # of one look it may be a call's first half, or its second one
        if judged := self._latest.busy >= TRIAL:
            self._grows = self._latest.rate >= BETTER * self._rate
            self._rate, self._latest = self._latest.rate, NOTHING
        self._seen = seen = self._seen.plus(seen)
        if seen.busy < ENOUGH or self._trial and not judged:
            return self.streams
        if self._trial:
            better = self._rate >= BETTER * self._before
            self._trial += 1
            if not better and self._trial < 2 + TRIALS:
                return self.streams
            self._trial = 0
            if not better:
                self._rest, self._again = now + self._again, self._again * MORE
                self.streams = max(each for each in LADDER if each < self.streams)
                self._seen, self._latest, self._rate = NOTHING, NOTHING, 0.0
                return self.streams
        ready = now >= self._rest and self.streams < self.most and not (self._grows and self.streams > 1)
        if ready and (why := bound(seen)):
            self.why, self._before, self._trial = self.why or why, self._rate or seen.rate, 1
            self.streams = min(each for each in (*LADDER, self.most) if self.streams < each <= self.most)
        return self.streams

    def limited(self, streams: int, now: float, ever: bool) -> None:
        """No more than so many could be opened, now or ever."""
        self.streams, self._trial, self._seen = streams, 0, NOTHING
        self._rest = now + self._again
        if ever:
            self.most = streams


def bound(seen: Usage) -> str:
    """The reason that bounds these streams where more of them would not be bound; "": nothing is known."""
    if seen.round_trip < LONG:
        return ""
    rate = f"{8e-6 * seen.rate:.3g} Mbit/s"
    if seen.full >= BOUND * seen.busy:
        return f"at {rate} the window was full"
    if seen.by_loss and seen.losses >= LOSSES and seen.busy >= LOST:
        return f"losses bound it at {rate}"
    return ""
