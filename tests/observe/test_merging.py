"""Records of simulated rings, on clocks that disagree, become one timeline that says what is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hocket.errors import ArgumentError
from hocket.observe.evidence import evidence, hosts_of
from hocket.observe.files.reading import read
from hocket.observe.files.writing import write
from hocket.observe.merging import merge
from hocket.observe.timeline import Timeline, stacked, taken
from hocket.recording import RECORD, Kind, Recorded, Ring
from support.ring_traces import CALLS, Link, Ran, computed, good, recorded, ring, slow

DAY = 86_400_000_000_000
HOSTS = ("anna", "anna", "berta", "berta")


def ran(late: int | None = None, link: Link = good) -> Ran:
    return ring(4, 4 << 16, computed(4, late), link)


def on_two_hosts(late: int | None = None, link: Link = good) -> Timeline:
    """Berta's clock is a day ahead, and 40 ppm fast."""
    return merge(recorded(4, ran(late, link), HOSTS, (0, 0, DAY, DAY), (0, 0, 40, 40)))


def test_one_timeline_of_all_ranks() -> None:
    what = ran()
    timeline = merge(recorded(4, what))
    assert list(timeline.processes) == [0, 1, 2, 3] and timeline.processes[2].startswith("rank 2 on one, pid 102")
    calls = timeline.of("calls")
    assert len(calls) == 4 * CALLS and {timeline.names[n] for n in calls["name"]} == {"allreduce(float32[262144])"}
    for stay in what.stays:
        (mine,) = calls[(timeline.ranks(calls) == stay.rank) & (calls["seq"] == stay.call + 1)]  # type: ignore[operator]
        assert abs(mine["end"] - mine["begin"] - (stay.leave - stay.enter) * 1e9) <= 2
    assert timeline.slices["begin"].min() == 0 and timeline.about["missing"] == []
    assert timeline.about["calls"]["allreduce(float32[262144])"]["algorithm"] == "ring"


def test_each_message_is_an_arrow() -> None:
    timeline = on_two_hosts()
    sends, receives = timeline.of("sends"), timeline.of("receives")
    assert len(sends) == len(receives) == CALLS * 6 * 4
    came = dict(zip(receives["flow"].tolist(), receives, strict=True))
    assert len(came) == len(sends) and 0 not in came
    for send in sends:
        receive = came[int(send["flow"])]
        assert (send["seq"], send["step"], send["bytes"]) == (receive["seq"], receive["step"], receive["bytes"])
        assert send["peer"] == timeline.ranks(np.array([receive], receive.dtype))[0]
        assert receive["end"] >= send["begin"] - send["held"]  # nothing arrives before it is sent


def test_messages_alone_bind_clocks_that_are_a_day_apart() -> None:
    """By as much as a message takes, the other way round too: 72 us here."""
    timeline, truth = on_two_hosts(), merge(recorded(4, ran()))
    bound = timeline.about["ranks"]["2"]["clock_error_us"]
    assert timeline.about["ranks"]["1"]["clock_error_us"] == 0 and 0 < bound < 80
    assert timeline.about["ranks"]["2"]["drift_ppm"][0] <= -40 <= timeline.about["ranks"]["2"]["drift_ppm"][1]
    for rows, true in ((timeline.of(group), truth.of(group)) for group in ("calls", "receives")):
        assert np.abs(rows["end"] - true["end"]).max() <= 1000 * bound + 2


@pytest.mark.parametrize("suffix", [".pftrace.gz", ".json"])
def test_blame_survives_the_file(suffix: str, tmp_path: Path) -> None:
    for late, link, name in ((1, good, ("late", 1)), (None, slow, ("link", 0, 1))):
        path = str(tmp_path / f"{name[0]}{suffix}")
        write(path, on_two_hosts(late, link))
        found = evidence(read(path))
        blame = found.blame()
        assert blame.worst("late", "link", "core")[0][0] == name
        truth = ran(late, link).waited
        assert blame.total == pytest.approx(truth, rel=1e-3)
        assert len(found.waits) > 500 and found.error > 0 and hosts_of(read(path))[3] == "berta"


def without(rank: Recorded, kind: Kind, after: int) -> Recorded:
    """The recording of a rank as if it had been killed: its last records of a kind, and what comes later, are not
    there."""
    (old,) = rank.rings
    cut = np.flatnonzero(old.records["kind"] == kind)[after]
    return Recorded(rank.facts, rank.table, [Ring(old.comm, old.kind, old.index, old.members, old.records[:cut])])


def test_ranks_and_records_that_are_missing() -> None:
    parts = recorded(4, ran())
    parts[1] = without(parts[1], Kind.DONE, 5)
    (ring_of_2,) = parts[2].rings
    newest = Ring("world", "collectives", 2, (0, 1, 2, 3), ring_of_2.records[701:], 701)
    timeline = merge([parts[1], Recorded(parts[2].facts, parts[2].table, [newest])])
    assert timeline.about["missing"] == [0, 3] and timeline.about["ranks"]["2"]["lost"] == 701
    calls = timeline.of("calls")
    open_call = calls[(timeline.ranks(calls) == 1) & (calls["seq"] == 6)]
    assert len(open_call) == 1 and open_call["end"][0] > open_call["begin"][0]
    sends, receives = timeline.of("sends"), timeline.of("receives")
    both = np.intersect1d(sends["flow"][sends["flow"] > 0], receives["flow"])
    by_flow = {int(r["flow"]): r for r in receives}
    for send in sends[np.isin(sends["flow"], both)]:
        assert send["step"] == by_flow[int(send["flow"])]["step"]
    with pytest.raises(ArgumentError, match="no recordings"):
        merge([])


def test_a_host_that_exchanged_nothing_is_placed_by_its_wall_clock() -> None:
    parts = recorded(2, ring(2, 2 << 16, computed(2), good), ("anna", "berta"), (0, DAY))
    empty = [Recorded(p.facts, p.table, [without(p, Kind.SEND_READY, 0).rings[0]]) for p in parts]
    timeline = merge(empty)
    assert timeline.about["ranks"]["1"]["clock_error_us"] is None
    calls = timeline.of("calls")
    assert np.ptp(calls["begin"]) < 100_000_000
    assert evidence(timeline).blame().worst("late", "link") == []


def test_rings_with_nonsense_are_merged_all_the_same() -> None:
    """Anybody of this user can write into a ring: whatever stands there, a timeline with sound rows comes of it."""
    r, ran = np.random.default_rng(3), ring(2, 2 << 16, computed(2), good)
    for _ in range(25):
        raw = r.integers(0, 256, 400 * RECORD.itemsize, np.uint8).view(RECORD).copy()
        raw["kind"] = r.integers(0, 30, len(raw))
        raw["ns"] >>= np.uint64(r.integers(1, 30))
        raw["seq"], raw["step"], raw["lane"] = raw["seq"] % 5, raw["step"] % 4, raw["lane"] % 3
        raw["peer"] = raw["peer"] % 5
        parts = recorded(2, ran)
        odd = Ring("world", "collectives", 0, (0, 1), raw)
        timeline = merge([Recorded(parts[0].facts, parts[0].table, [odd, *parts[0].rings]), parts[1]])
        assert (timeline.slices["end"] >= timeline.slices["begin"]).all() and timeline.slices["begin"].min() >= 0
        evidence(timeline).blame()


def test_ranks_that_recorded_nothing_make_an_empty_timeline() -> None:
    (part,) = recorded(1, ring(1, 1, computed(1), good))
    timeline = merge([Recorded(part.facts, part.table)])
    assert len(timeline.slices) == 0 and list(timeline.processes) == [0]


def test_rows_are_taken_and_stacked_as_numpy_does() -> None:
    rows = on_two_hosts().slices
    mask = rows["track"] % 2 == 0
    assert (taken(rows, mask) == rows[mask]).all() and (taken(rows, np.array([5, 1])) == rows[[5, 1]]).all()
    assert (taken(rows[::2], mask[::2]) == rows[::2][mask[::2]]).all()
    assert (stacked([rows[:3], rows[:0], rows[7:]]) == np.concatenate([rows[:3], rows[7:]])).all()
