"""Replays of simulated runs, where what the change brings is known: the same run with the change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hocket.errors import ArgumentError
from hocket.observe.files.writing import write
from hocket.observe.findings import Findings, find
from hocket.observe.merging import merge
from hocket.observe.replay import reproduced, taken, what_if
from hocket.tools import report, trace
from support.ring_traces import Link, Ran, computed, good, recorded, ring, slow


def ran_as(arrive: list[list[float]], link: Link) -> Ran:
    return ring(4, 1 << 20, arrive, link, back=True)


def found(ran: Ran, p: int = 4) -> Findings:
    return find(merge(recorded(p, ran, ("one",) * p)))


def lasted(ran: Ran) -> float:
    return max(s.leave for s in ran.stays) - min(s.enter for s in ran.stays)


def predicted(said: str) -> float:
    number, unit = re.findall(r"would take ([\d.]+) (s|ms) instead", said)[0]
    return float(number) * (1e-3 if unit == "ms" else 1)


@pytest.mark.parametrize("late", [None, 1])
@pytest.mark.parametrize("link", [good, slow])
def test_a_replay_takes_as_long_as_the_run(late: int | None, link: Link) -> None:
    ran = ran_as(computed(4, late), link)
    run = taken(found(ran))
    assert run.seconds == pytest.approx(lasted(ran), rel=1e-4)
    assert reproduced(run) == pytest.approx(run.seconds, rel=0.03)


def test_a_link_twice_as_fast() -> None:
    def twice(source: int, dest: int, nbytes: int) -> float:
        return slow(source, dest, nbytes // 2 if (source, dest) == (0, 1) else nbytes)

    truth = lasted(ran_as(computed(4), twice))
    said = what_if(found(ran_as(computed(4), slow)), "link 0-1 x2")
    assert predicted(said) == pytest.approx(truth, rel=0.05), (said, truth)


def test_a_late_rank_like_the_median() -> None:
    truth = lasted(ran_as(computed(4), good))
    said = what_if(found(ran_as(computed(4, late=2), good)), "rank 2 like the median")
    assert predicted(said) == pytest.approx(truth, rel=0.05), (said, truth)


def test_fewer_bits() -> None:
    ran = ran_as(computed(4), slow)
    assert predicted(what_if(found(ran), "codec int8")) < 0.7 * lasted(ran)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("link 0-9 x2", "no messages between 0 and 9"), ("rank 9 like the median", "no rank 9"),
        ("link 0-1 x0", "more than 0"), ("codec zip", "is not a codec; known: "),
        ("all faster", "is not understood: expected"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_is_refused(change: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        what_if(found(ran_as(computed(4), good)), change)


def test_a_run_that_cannot_be_reproduced_is_not_predicted() -> None:
    """Its calls took longer than their messages: something else held them up."""
    ran = ran_as(computed(4), good)
    later = [s._replace(enter=s.enter + 0.02 * i, leave=s.leave + 0.02 * i + 0.02)
             for i, s in enumerate(sorted(ran.stays, key=lambda s: s.enter))]  # fmt: skip
    with pytest.raises(ArgumentError, match="predicts nothing"):
        what_if(found(Ran(ran.waits, later, ran.transfers)), "link 0-1 x2")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, html = str(tmp_path / "t.pftrace.gz"), str(tmp_path / "t.html")
    write(path, merge(recorded(4, ran_as(computed(4, late=2), good), ("one",) * 4)))
    assert report.main([path, "-o", html, "--what-if", "rank 2 like the median"]) == 0
    out = capsys.readouterr().out
    assert "Rank 2 made the others wait" in out and "the run would take" in out and html in out
    assert Path(html).read_text().startswith("<!DOCTYPE html>") and Path(html).stat().st_mode & 0o777 == 0o600
    assert report.main([str(tmp_path / "none")]) == 1 and "cannot be read: No such file" in capsys.readouterr().err
    assert trace.main(["merge", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "has no recordings" in said and "t.html: it does not begin as hocket's recordings do" in said


HOSTS = ("anna", "anna", "berta", "berta")


def test_a_cable_that_all_ranks_of_two_hosts_share() -> None:
    """A change of one pair's link is one of the cable."""

    def cable(source: int, dest: int, nbytes: int) -> float:
        return good(source, dest, nbytes) if HOSTS[source] == HOSTS[dest] else 20e-6 + nbytes / 0.05e9

    def twice(source: int, dest: int, nbytes: int) -> float:
        return good(source, dest, nbytes) if HOSTS[source] == HOSTS[dest] else 20e-6 + nbytes / 0.1e9

    seen = find(merge(recorded(4, ran_as(computed(4), cable), HOSTS)))
    found = taken(seen).links.cables
    assert set(found) == {("anna", "berta"), ("berta", "anna")}
    assert all(link.bandwidth == pytest.approx(0.05e9, rel=0.03) for link in found.values()), found
    truth = lasted(ran_as(computed(4), twice))
    for change in ("link anna-berta x2", "link 1-2 x2"):
        assert predicted(what_if(seen, change)) == pytest.approx(truth, rel=0.05), (change, truth)


def test_a_hierarchical_call_is_replayed() -> None:
    """Hosts of one rank make a ring."""
    hosts = ("anna", "berta", "carla", "dora")
    seen = find(merge(recorded(4, ran_as(computed(4), good), hosts, algorithm="hierarchical")))
    run = taken(seen)
    assert all(each.simulated for each in run.rounds) and reproduced(run) == pytest.approx(run.seconds, rel=0.03)
    assert predicted(what_if(seen, "codec int8")) < 0.98 * run.seconds


@pytest.mark.parametrize("change", ["link 0-1 x2", "codec int8"])
def test_nothing_is_predicted_where_nothing_was_replayed(change: str) -> None:
    """A call that is taken as it was fits always: that proves nothing."""
    seen = find(merge(recorded(4, ran_as(computed(4), good), ("one",) * 4, algorithm="theirs")))
    assert reproduced(taken(seen)) == pytest.approx(taken(seen).seconds, rel=1e-4)
    with pytest.raises(ArgumentError, match="100% of the time in calls is of collectives with a root or algorithms"):
        what_if(seen, change)
    assert "instead of" in what_if(seen, "rank 2 like the median")


def test_codecs_do_nothing_for_what_is_not_float32() -> None:
    recordings = recorded(4, ran_as(computed(4), good), ("one",) * 4)
    for each in recordings:
        each.table[1] = each.table[1].__class__(**{**vars(each.table[1]), "dtype": "float64"})
    with pytest.raises(ArgumentError, match="codecs encode float32"):
        what_if(find(merge(recordings)), "codec int8")


def test_ranks_of_two_hosts_that_send_each_other_nothing_share_the_cable() -> None:
    seen = find(merge(recorded(4, ran_as(computed(4), good), HOSTS)))
    assert what_if(seen, "link 0-2 x2") == what_if(seen, "link anna-berta x2").replace("anna-berta", "0-2")
