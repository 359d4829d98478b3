"""The kernel's facts about the connections of a trace: TCP_INFO, which tells a network that loses from a full buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hocket.observe.timeline import Timeline
from hocket.recording import Link

LIMITED = 0.25
"""The part of the time in which a connection had something to send: so much of it held up is worth a word."""


@dataclass(frozen=True)
class Connection:
    """All connections from one rank to another, while they were traced."""

    rtt: float = 0.0
    """Seconds, the median; 0: not known."""
    again: int = 0
    """Segments that were sent again."""
    busy: float = 0.0
    """Seconds in which there was something to send."""
    receiver: float = 0.0
    """Seconds of these: the receiver's buffer was full, or too small for the way ..."""
    sender: float = 0.0
    """... and this host's own buffer for sending was too small."""

    def why(self) -> str:
        """The cause that held it up, in words; "" if TCP does not say, or counts from anew on a mended link."""
        if self.again:
            return f"the network lost packets: {self.again} were sent again"
        if self.busy >= self.receiver > LIMITED * self.busy:
            return f"the receiver's buffer was full {self.receiver / self.busy:.0%} of the time (net.ipv4.tcp_rmem)"
        if self.busy >= self.sender > LIMITED * self.busy:
            return f"the sender's buffer was too small {self.sender / self.busy:.0%} of the time (net.ipv4.tcp_wmem)"
        return ""


def connections(timeline: Timeline) -> dict[tuple[int, int], Connection]:
    """(from rank, to rank) -> what is known.  Counts are those of the time that was traced."""
    links: dict[tuple[int, int], dict[str, list[float]]] = {}
    for number, track in enumerate(timeline.tracks):
        words = track.name.split(" ")
        if track.group != "link" or not track.counter or len(words) < 3 or not words[2].isdecimal():
            continue
        values = timeline.counts["value"][timeline.counts["track"] == number]
        if len(values):
            numbers = links.setdefault((track.process, int(words[2])), {})
            rtt = words[0] == Link.RTT_US.name.lower()
            value = np.median(values) if rtt else values.max() - values.min()
            numbers.setdefault(words[0], []).append(float(value))
    return {link: _put_together(numbers) for link, numbers in links.items()}


def _put_together(numbers: dict[str, list[float]]) -> Connection:
    def all_of(which: Link) -> float:
        return sum(numbers.get(which.name.lower(), []))

    busy, receiver, sender = (
        all_of(each) / 1e6 for each in (Link.BUSY_US, Link.RWND_LIMITED_US, Link.SNDBUF_LIMITED_US)
    )
    rtt = min(numbers.get(Link.RTT_US.name.lower(), [0.0])) / 1e6
    return Connection(rtt, int(all_of(Link.RETRANSMITS)), busy, receiver, sender)
