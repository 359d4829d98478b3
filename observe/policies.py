"""Replay of another order of gradients: a step's gradients and waits, replayed over one cable.

`hocket.training.Scheduler` tells a trace when each gradient was ready, and how long the program waited for each average
(`hocket.recording.GradientSpan`).  Between two of these the program computes.  The cable carries as many bytes a second
as it did while calls were under way; which gradient is next is the policy.  The run as it was must come out within a
tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hocket.errors import ArgumentError
from hocket.observe.findings import Findings
from hocket.observe.sentences import seconds, share
from hocket.observe.timeline import Group
from hocket.recording import GradientSpan

POLICIES = ("fifo", "priority")
OFF = 0.1
"""Part of the run's time by which the replay of the run as it was may be off."""


class Event(NamedTuple):
    """An act of a rank's program about one gradient, one after the other."""

    computed: float
    """Seconds since the event before."""
    name: str
    nbytes: int
    """It is ready, with so many bytes; 0: it is waited for."""


def policy_would(findings: Findings, policy: str) -> str:
    """In words: what the run would have taken with this policy.  Raises ArgumentError if it cannot be said."""
    if policy not in POLICIES:
        raise ArgumentError(f"--what-if: the policy must be {' or '.join(POLICIES)}, not {policy!r}")
    rank, events, own, took = _events(findings)
    rate = _rate(findings, rank, events)
    now, then = (replayed(events, rate, each) for each in (own, policy))
    if abs(now - took) > OFF * took:
        raise ArgumentError(
            f"the replay takes {seconds(now)} where the run took {seconds(took)}: it predicts nothing about this run"
            " (other calls beside the gradients, or a rank that was late)"
        )
    gain = f"{share(now - then, now)} less" if then <= now else f"{share(then - now, now)} more"
    return (
        f"With the policy {policy} instead of {own} the run would take {seconds(then * took / now)} instead of"
        f" {seconds(took)}, {gain}. (Its replay is off by {abs(now / took - 1):.1%}.)"
    )


def replayed(events: Sequence[Event], rate: float, policy: str) -> float:
    """Seconds until the last event, with a cable of `rate` bytes a second.

    The most urgent gradient is the one that is waited for first after it was ready.
    """
    left: dict[str, float] = {}
    urgency: dict[str, int] = {}
    clock, carried = 0.0, 0.0

    def carry(until: float, wanted: str | None = None) -> float:
        """Let the cable work until a moment, or until this gradient is there; when that was."""
        nonlocal carried
        while left and carried < until and (wanted is None or wanted in left):
            turn = next(iter(left)) if policy == "fifo" else min(left, key=urgency.__getitem__)
            step = min(left[turn] / rate, until - carried)
            carried += step
            left[turn] -= step * rate
            if left[turn] <= 1e-6:
                del left[turn]
        if not left and wanted is None:
            carried = max(carried, until)
        return carried

    for i, event in enumerate(events):
        clock += event.computed
        carry(clock)
        if event.nbytes:
            later = (j for j in range(i + 1, len(events)) if events[j].name == event.name and not events[j].nbytes)
            urgency[event.name] = next(later, len(events))
            left[event.name] = left.get(event.name, 0.0) + event.nbytes
        elif event.name in left:
            clock = max(clock, carry(float("inf"), event.name))
    return clock


def _events(findings: Findings) -> tuple[int, list[Event], str, float]:
    """The rank that has told the most, what it told, its policy, and the seconds from the first to the last."""
    timeline = findings.timeline
    told = timeline.as_data()
    by_rank: dict[int, list[tuple[int, int, GradientSpan]]] = {}
    for row in timeline.of(Group.SPANS):
        rank, gradient = timeline.tracks[row["track"]].process, told.get(int(row["name"]))
        if isinstance(gradient, GradientSpan):
            by_rank.setdefault(rank, []).append((int(row["begin"]), int(row["end"]), gradient))
    if not by_rank:
        raise ArgumentError("--what-if policy: the trace has no gradients of a hocket.training.Scheduler")
    rank = max(by_rank, key=lambda each: len(by_rank[each]))
    gradients = sorted(by_rank[rank], key=lambda row: row[:2])
    events: list[Event] = []
    own, before = gradients[0][2].order, gradients[0][0]
    for begin, end, gradient in gradients:
        events.append(Event(max(0, begin - before) / 1e9, gradient.name, gradient.nbytes))
        before = max(before, end)
    if own not in POLICIES:
        raise ArgumentError(f"--what-if policy: gradients in the order {own!r} are not replayed, only {POLICIES}")
    return rank, events, own, (before - gradients[0][0]) / 1e9


def _rate(findings: Findings, rank: int, events: Sequence[Event]) -> float:
    """Bytes a second, while a call of this rank's gradients was under way."""
    timeline = findings.timeline
    lanes = {told.lanes for told in timeline.as_data().values() if isinstance(told, GradientSpan)}
    own = [track.process == rank and any(name in track.comm for name in lanes) for track in timeline.tracks]
    spans = sorted((int(row["begin"]), int(row["end"])) for row in timeline.of(Group.CALLS) if own[row["track"]])
    busy, until = 0, 0
    for begin, end in spans:
        busy += max(0, end - max(begin, until))
        until = max(until, end)
    if not busy:
        raise ArgumentError("--what-if policy: the trace has no calls of the scheduler's lanes")
    return sum(event.nbytes for event in events) / (busy / 1e9)
