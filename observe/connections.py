"""The kernel's facts about the connections of a trace: TCP_INFO, which tells a network that loses from a full buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hocket.observe.timeline import Group, Timeline
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
    links: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, track in enumerate(timeline.tracks):
        if track.group != Group.LINK or not track.counter:
            continue
        values = timeline.counts["value"][timeline.counts["track"] == number]
        if len(values):
            value = np.median(values) if track.counts == Link.RTT_US else values.max() - values.min()
            links[track.process, track.peer][track.counts].append(float(value))
    return {link: _put_together(numbers) for link, numbers in links.items()}


def _put_together(numbers: Mapping[int, list[float]]) -> Connection:
    sums = {which: sum(numbers.get(which, [])) for which in Link}
    busy, receiver, sender = (sums[x] / 1e6 for x in (Link.BUSY_US, Link.RWND_LIMITED_US, Link.SNDBUF_LIMITED_US))
    rtt = min(numbers.get(Link.RTT_US, [0.0])) / 1e6
    return Connection(rtt, int(sums[Link.RETRANSMITS]), busy, receiver, sender)
