"""TCP's facts about a link come into words and into the page."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe.connections import Connection, connections
from hocket.observe.findings import find
from hocket.observe.page.make import page
from hocket.observe.sentences import sentence, summary
from hocket.observe.timeline import COUNT, Group, Timeline, Track, slices
from hocket.recording import Link
from support.one_wait import timeline


def counted(**values: list[int]) -> Timeline:
    """A trace with these numbers of the link from rank 0 to 1, one each ms."""
    made = timeline(7, 7)
    rows = []
    for name, told in values.items():
        made.tracks.append(Track(0, name, True, Group.LINK, peer=1, counts=Link[name.upper()]))
        rows += [(at * 10**6, value, len(made.tracks) - 1) for at, value in enumerate(told)]
    made.counts = np.array(rows, COUNT)
    return made


def test_numbers_count_from_where_the_trace_began() -> None:
    made = counted(rtt_us=[90, 100, 5000], retransmits=[7, 7, 9], busy_us=[1000, 3000], rwnd_limited_us=[500, 1500])
    assert connections(made) == {(0, 1): Connection(rtt=1e-4, again=2, busy=2e-3, receiver=1e-3)}
    assert connections(timeline(7, 7)) == {}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"retransmits": [1, 32]}, "lost packets: 31 were sent again"),
        ({"busy_us": [0, 1000], "rwnd_limited_us": [0, 400]}, "receiver's buffer was full 40% of the time"),
        ({"busy_us": [0, 1000], "sndbuf_limited_us": [0, 300]}, "sender's buffer was too small 30% of the time"),
        ({"busy_us": [0, 1000], "rwnd_limited_us": [0, 100]}, ""),
        ({"busy_us": [0, 0], "rwnd_limited_us": [0, 400]}, ""),
        ({"busy_us": [0, 0], "sndbuf_limited_us": [0, 400]}, ""),
    ],
)
def test_a_slow_link_is_told_with_its_reason(values: dict[str, list[int]], why: str) -> None:
    found = find(counted(**values))
    said = sentence(found, ("link", 0, 1), 0.5)
    assert why in said and ("TCP says" in said) == bool(why)
    assert "packets sent again" in page(found)


def test_long_waits_are_told_though_the_call_never_ended() -> None:
    made = timeline(7, 7)
    made.tracks.append(Track(1, "long waits", False, "long waits", ""))
    made.names.append("allreduce(float64[3], op='sum')")
    row = slices(1)
    row["end"], row["track"], row["name"] = 10**10, len(made.tracks) - 1, 1
    made.slices = np.concatenate([made.slices, row])
    told = "1 long wait came into the log: the first was rank 1's, in allreduce(float64[3], op='sum')."
    assert told in summary(find(made))
