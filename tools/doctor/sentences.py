"""The report in words: one paragraph that says it all, then the details.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from hocket.tools.doctor.differences import different, warnings
from hocket.tools.doctor.long_links import long_links
from hocket.tools.doctor.matrix import matrices
from hocket.tools.doctor.report import Group, Report
from hocket.tools.doctor.suspicion import Suspicion, judged
from hocket.tools.doctor.units import latency, listed, ranks, rate

FAR = 0.02
"""Seconds, beyond what cannot be known, by which a clock may differ before the paragraph says so."""
MANY = 5
"""Slow links that the paragraph names."""
LINES = 12
"""Groups of ranks whose transports are told."""


def paragraph(report: Report, suspected: Sequence[Suspicion]) -> str:
    """A paragraph on the ranks and hosts, how they reach each other, what is slow, and what differs."""
    sentences = [_count(report), *_reach(report), *_speed(report)]
    slow = [each.text for each in suspected]
    sentences += slow[:MANY]
    if len(slow) > MANY:
        sentences.append(f"{len(slow) - MANY} more links are slow (below)")
    if judged(report) and not slow:
        sentences.append("No link is much slower than its like")
    sentences += [*long_links(report), *warnings(report)]
    names = [name for name, _ in different(report)]
    if report.size > 1:
        told = f"Not the same on all ranks: {listed(names, 8)} (below)" if names else \
            "Versions, processors, variables and limits are the same on all ranks"  # fmt: skip
        sentences.append(told)
    sentences += _clocks(report)
    return " ".join(f"{sentence}." for sentence in sentences)


def details(report: Report, suspected: Sequence[Suspicion]) -> Iterator[str]:
    """Lines."""
    yield "hosts:"
    for name, members in zip(report.names, report.hosts, strict=True):
        yield f"  {name}: {ranks(members)}; {report.facts[members[0]]['what']['CPU']}"
    if report.size > 1:
        yield "transports:"
        yield from _ways(report)
    for text in (each.text for each in suspected[MANY:]):
        yield f"slow: {text}"
    for name, values in different(report):
        yield f"{name}: {'; '.join(values)}"
    for host, clock in report.clocks.items():
        yield f"clock of {report.names[host]}: {clock.seconds * 1e3:+.3f} ms (within {clock.bound * 1e3:.3f} ms)"
    yield from matrices(report)
    if report.unmeasured:
        yield f"{report.unmeasured} pairs of ranks were not measured: --seconds gives more time"


def _count(report: Report) -> str:
    hosts = len(report.hosts)
    return f"{_number(report.size, 'rank')} on {_number(hosts, 'host')}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _reach(report: Report) -> Iterator[str]:
    used: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for a, groups in enumerate(report.groups):
        for name, _, _, peers in groups:
            for b in peers:
                used[report.inside((a, b))][name] = None
    parts = [f"{where} over {listed(used[inside])}" for inside, where in _WHERE if used[inside]]
    if parts:
        yield f"All reach each other: {listed(parts)}"


_WHERE = ((True, "inside hosts"), (False, "between hosts"))


def _speed(report: Report) -> Iterator[str]:
    """Medians."""
    for inside, where in _WHERE:
        links = [link for pair, link in report.links.items() if report.inside(pair) is inside]
        if links:
            late = median(link.latency for link in links)
            fast = median([link.out for link in links] + [link.back for link in links])
            yield f"{where.capitalize()} a short message takes {latency(late)} and bytes move at {rate(fast)} (medians)"


def _clocks(report: Report) -> Iterator[str]:
    if not report.clocks:
        return
    far = {host: clock for host, clock in report.clocks.items() if abs(clock.seconds) - clock.bound > FAR}
    for host, clock in far.items():
        way = "ahead of" if clock.seconds > 0 else "behind"
        yield (f"The clock of host {report.names[host]} is {latency(abs(clock.seconds))} {way} that of host "
               f"{report.names[0]} (within {latency(clock.bound)})")  # fmt: skip
    if not far:
        most = max(abs(clock.seconds) + clock.bound for clock in report.clocks.values())
        yield f"Clocks agree within {latency(most)}"


def _ways(report: Report) -> Iterator[str]:
    """Ranks that reach the same ranks in the same way share a line; ranks of a host reach each other."""
    same: dict[tuple[bool, Group], list[int]] = {}
    for rank, groups in enumerate(report.groups):
        for name, detail, refusals, peers in groups:
            mutual = all(report.inside((rank, peer)) for peer in peers)
            group = name, detail, refusals, tuple(sorted({rank, *peers})) if mutual else peers
            same.setdefault((mutual, group), []).append(rank)
    for (mutual, (name, detail, refusals, peers)), some in list(same.items())[:LINES]:
        to = "each other" if mutual else ranks(peers)
        yield f"  {ranks(some)} to {to}: {name}{detail and f' ({detail})'}"
        reasons: dict[str, list[str]] = {}
        for other, why in refusals:
            reasons.setdefault(why, []).append(other)
        yield from (f"    not {', '.join(others)}: {why}" for why, others in reasons.items())
    if len(same) > LINES:
        yield f"  and {len(same) - LINES} more groups of ranks: comm.explain() says all on each rank"
