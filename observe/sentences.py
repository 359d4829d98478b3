"""A report's first lines: what was found, in words that name ranks, hosts and seconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hocket.arguments import printable, some_of
from hocket.observe.attribution import Cause
from hocket.observe.evidence import hosts_of
from hocket.observe.findings import CROWDED, Findings, recurrence
from hocket.observe.timeline import Group, Timeline
from hocket.recording import HealedSpan

MOST = 4
"""Culprits that are named."""


def seconds(value: float) -> str:
    """1.25 s, 310 ms, 42 us."""
    if value >= 1:
        return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def rate(value: float) -> str:
    """Bytes a second: 110 MB/s."""
    return f"{value / 1e9:.3g} GB/s" if value >= 1e9 else f"{value / 1e6:.3g} MB/s"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0 %"


def count(number: int, what: str) -> str:
    """A count in words: "2 ranks" and "1 host"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def summary(findings: Findings) -> list[str]:
    """Sentences, the most important first."""
    ranks, source = findings.ranks, findings.timeline.about.get("source")
    hosts = {rank.host for rank in ranks}
    where = "" if hosts == {""} else f" on {count(len(hosts), 'host')}"
    lines = [
        f"{count(len(ranks), 'rank')}{where}, {seconds(findings.seconds)}: "
        f"{findings.efficiency:.0%} of the time was spent outside of calls, {1 - findings.efficiency:.0%} inside."
    ]
    waited = findings.blame.total
    if source:
        lines.append(f"{printable(str(source))} knows calls, not messages, links or cores.")
    if not waited and source:
        lines.append("Who waited for whom is known where the traces of all ranks are read together.")
    elif not waited:
        lines.append("No waits were recorded: only a trace has them, not the recorder that is always on.")
    elif not findings.culprits:
        lines.append(f"The ranks waited {seconds(waited)} in all. No rank and no link stands out.")
    for cause, part in findings.culprits[:MOST]:
        lines.append(sentence(findings, cause, part))
    without = sum(part for _, part in findings.blame.worst("core"))
    if waited and without >= CROWDED * waited:
        lines.append(f"For {seconds(without)} of it ranks had no core: their hosts have more to run than cores.")
    return lines + _healed(findings) + _long_waits(findings) + _clocks(findings) + gaps(findings.timeline)


def sentence(findings: Findings, cause: Cause, part: float) -> str:
    """One culprit."""
    waited, calls = findings.blame.total, f"in {recurrence(findings.blame, cause)} of {findings.rounds} calls"
    if cause[0] == "link":
        why = next((link.tcp.why() for link in findings.links if ("link", link.source, link.dest) == cause), "")
        more = f" TCP says that {why}." if why else ""
        what = _link(findings, cause)
        return f"{what}: that made the ranks wait {seconds(part)} of {seconds(waited)}, {calls}.{more}"
    if cause[0] == "cable":
        sender, receiver = (printable(host) for host in cause[1:])
        shared = findings.evidence.sharing
        its = [link.tcp for link in findings.links if shared.cable((link.source, link.dest)) == cause]
        why = next((f" TCP says that {tcp.why()}." for tcp in its if tcp.why()), "")
        return (
            f"The cable from host {sender} to host {receiver} is full: all its links together carried"
            f" {rate(shared.rate(cause))}. The ranks waited {seconds(part)} of {seconds(waited)} for it, {calls}.{why}"
        )
    rank = cause[1]
    why = {
        "late": "It came to the calls later than the others.",
        "core": "It had no core to run on.",
        "work": "It was busy inside the calls.",
    }[cause[0]]
    return f"Rank {rank} made the others wait {seconds(part)} of {seconds(waited)}, {calls}. {why}"


def _link(findings: Findings, cause: Cause) -> str:
    _, source, dest = cause
    hosts = hosts_of(findings.timeline)
    sender, receiver = printable(hosts.get(source, "")), printable(hosts.get(dest, ""))
    name = f"The link from rank {source} to rank {dest}"
    if sender != receiver:
        name = f"The link from host {sender} to host {receiver} (rank {source} to rank {dest})"
    each = next((link for link in findings.links if (link.source, link.dest) == (source, dest)), None)
    if each is None or not each.rate:
        return f"{name} was slow"
    if each.usual and each.rate >= each.usual:
        return f"{name} was slow at times (in its better half it carried {rate(each.rate)}, as others of its kind)"
    others = "others of its kind carry" if each.usual else "others' is not known"
    return f"{name} carried {rate(each.rate)} where {others} {rate(each.usual)}"


def _healed(findings: Findings) -> list[str]:
    """Links that broke and were made again, those that did so most often first (marks of transports/tcp/history.py)."""
    timeline = findings.timeline
    told = {name: facts for name, facts in timeline.as_data().items() if isinstance(facts, HealedSpan)}
    rows: Any = timeline.of(Group.SPANS) if told else ()
    links: dict[tuple[int, int], list[float]] = {}
    flap: set[tuple[int, int]] = set()
    for row in rows:
        healed, rank = told.get(int(row["name"])), timeline.tracks[row["track"]].process
        if healed is not None and healed.flaps:
            flap.add((rank, healed.rank))
        elif healed is not None:
            links.setdefault((rank, healed.rank), []).append(float(row["end"] - row["begin"]) * 1e-9)
    hosts, most = hosts_of(timeline), sorted(links.items(), key=lambda each: -len(each[1]))
    lines = []
    for (a, b), took in most[:MOST]:
        line = f"The link from rank {a} to rank {b} broke {count(len(took), 'time')}"
        ends = [printable(hosts.get(each, "")) for each in (a, b)]
        flaps = f": it flaps, look at the cable between {ends[0]} and {ends[1]}" if (a, b) in flap else ""
        lines.append(f"{line}, and was made again after {seconds(max(took))} at most{flaps}.")
    return lines


def _long_waits(findings: Findings) -> list[str]:
    """Waits that were logged while they lasted: also where the job ended before the wait did."""
    rows = findings.timeline.of(Group.LONG_WAITS)
    if not len(rows):
        return []
    first = rows[np.argsort(rows["begin"], kind="stable")][0]
    rank, call = int(findings.timeline.ranks(np.atleast_1d(first))[0]), findings.timeline.names[int(first["name"])]
    return [f"{count(len(rows), 'long wait')} came into the log: the first was rank {rank}'s, in {call}."]


def _clocks(findings: Findings) -> list[str]:
    error = findings.evidence.error
    if len(findings.ranks) < 2:
        return []
    if error == math.inf:
        return ["The clocks of some hosts are not known: waits between hosts are not explained."]
    if error:
        return [f"The clocks of the hosts agree within {seconds(error)}; shorter waits are not explained."]
    return []


def gaps(timeline: Timeline) -> list[str]:
    """Lost or missing records."""
    lines, about = [], timeline.about
    by_rank = ranks if isinstance(ranks := about.get("ranks"), dict) else {}
    facts = {rank: each for rank in timeline.processes if isinstance(each := by_rank.get(str(rank)), dict)}
    lost = {rank: each["lost"] for rank, each in facts.items() if isinstance(each.get("lost"), int) and each["lost"]}
    if lost:
        total, whose = sum(lost.values()), _ranks_in_words([*lost])
        lines.append(f"{total} older records of {whose} are lost: the trace shows the end of the run.")
    for rank, each in facts.items():
        if isinstance(overflow := each.get("overflow"), str) and overflow:
            lines.append(f"Rank {rank} could not record everything: {overflow}.")
    left_out = about.get("left out")
    if isinstance(left_out, int) and left_out:
        lines.append(f"{left_out} older slices were left out of the file.")
    if isinstance(missing := about.get("missing"), list) and missing:
        lines.append(f"There are no records of {_ranks_in_words(missing)}.")
    return lines


def _ranks_in_words(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {some_of(ranks, 16)}"


def name(cause: Cause) -> str:
    """For a table: "rank 2, late"."""
    if cause[0] == "link":
        return f"link from rank {cause[1]} to {cause[2]}"
    if cause[0] == "cable":
        return f"cable from host {cause[1]} to {cause[2]}"
    words = {"late": "late", "core": "without a core", "work": "busy inside calls"}
    return f"rank {cause[1]}, {words[cause[0]]}" if cause[0] in words else OTHERS[cause[0]]


OTHERS = {"transfer": "the usual transfer", "unsure": "unsure"}
