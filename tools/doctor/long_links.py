"""Long links in words: what bounds one stream there, and what would help.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hocket.tools.doctor.report import Report
from hocket.tools.doctor.units import latency, listed

LONG = 0.002
"""Seconds of a round trip, as transports/tcp/long/congestion.py has it."""
PAYLOAD = 0.62
"""The part of a window of tcp_wmem that is bytes on the way: of 4 MiB 209 Mbit/s x 100 ms (veth, MTU 9000)."""
MANY = 3
"""Links that are told."""


def long_links(report: Report) -> Iterator[str]:
    """Sentences, for the longest links between hosts over TCP."""
    longest: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
    for pair, link in report.links.items():
        hosts, round_trip = (report.host_of[pair[0]], report.host_of[pair[1]]), 2 * link.latency
        if not report.inside(pair) and round_trip >= LONG and report.transport(pair) == "tcp":
            longest[hosts] = min(longest.get(hosts, (round_trip, pair)), (round_trip, pair))
    for (a, b), (round_trip, pair) in sorted(longest.items(), key=lambda each: -each[1][0])[:MANY]:
        told = [report.facts[rank].get("tcp") or {} for rank in pair]
        text = f"Between hosts {report.names[a]} and {report.names[b]} a round trip takes {latency(round_trip)}"
        if window := min((each["wmem"] for each in told if each.get("wmem")), default=0):
            most = 8e-6 * PAYLOAD * window / round_trip
            text += f": one TCP stream is bound at {most:.3g} Mbit/s by net.ipv4.tcp_wmem ({window >> 10} KiB)"
            text += ", and hocket opens more where that shows"
        yield text
    why = [each["bbr"] for each in (fact.get("tcp") or {} for fact in report.facts) if each.get("bbr")]
    if longest and why:
        yield f"Losses bind streams there, as {listed(dict.fromkeys(why), 2)}"
