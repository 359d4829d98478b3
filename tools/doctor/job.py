"""`hocket doctor --job`: all ranks measure their links and say what they are; rank 0 prints what that means."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
import time
from typing import Any

import hocket
from hocket.collectives.base.config import Config
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.place import Place, detect
from hocket.collectives.members.reach import ways
from hocket.errors import ArgumentError, Error, TimeoutError
from hocket.tools.doctor import clocks, links, sentences
from hocket.tools.doctor.facts import collect
from hocket.tools.doctor.pairing import Pair, packed, rounds
from hocket.tools.doctor.report import Group, Report
from hocket.tools.doctor.suspicion import Suspicion, suspicions
from hocket.tools.doctor.units import ranks

LEAST, LONGEST = 0.04, 0.4
"""Seconds of a round: with less nothing is learned, with more nothing new."""
AGAIN = 0.25
"""The part of the time for a second look at what seems slow."""
PATIENCE = 30.0
"""Seconds that a call may wait: all ranks are there, and little is sent."""
WIDTH = 100
WITHIN = "hocket doctor"
"""Its name in texts.  Ranks share JSON: HOCKET_OBJECTS=0 forbids objects, and a doctor unpickles nothing."""


def examine(seconds: float, timeout: float, plot: str | None) -> int:
    """Run on every rank.  0; 1: the ranks did not meet, or a call between them failed."""
    mine = collect(os.environ)
    place = detect(os.environ, Config(secret=b"not a secret: no one is met"))
    try:
        comm = hocket.init(timeout=timeout)
    except Error as why:
        _not_met(place, why)
        return 1
    try:
        with comm:
            comm.set_timeout(PATIENCE)
            report, suspected, took = _examined(comm, mine, seconds)
            sent = sum(stat.bytes for stat in comm.stats() if stat.queue == "messages")
            sent = comm.allreduce(sent)
            if comm.rank == 0:
                _print(report, suspected, f"{took:.1f} s, {sent / 1e6:.0f} MB in messages")
                if plot:
                    from hocket.tools.doctor.picture import draw

                    draw(plot, report)
                    print(f"drawn in {plot}")
    except Error as why:
        print(f"hocket doctor: rank {place.rank} on {platform.node()}: {why}", file=sys.stderr)
        return 1
    return 0


def _not_met(place: Place, why: Error) -> None:
    """Rank 0 says who is missing; every rank that came says where it is and what it knows."""
    missing = set(why.missing) if isinstance(why, TimeoutError) else set()
    if place.rank == 0 and missing:
        came = sorted(set(range(place.size)) - missing)
        print(f"{len(came)} of {place.size} ranks came: {ranks(came)}. {ranks(missing).capitalize()} did not. "
              "Is it running, on a host that reaches this one, with the same secret?", flush=True)  # fmt: skip
    elif place.rank == 0:
        print(f"The {place.size} ranks do not meet: {why}", flush=True)
    about = f"rank {place.rank} on {platform.node()} (pid {os.getpid()}): {place.why}"
    print(f"hocket doctor: {about}\n  {why}", file=sys.stderr, flush=True)
    if isinstance(why, ArgumentError):
        print("  HOCKET_LOG=info tells more", file=sys.stderr, flush=True)


def _examined(comm: Communicator, mine: dict[str, Any], seconds: float) -> tuple[Report, list[Suspicion], float]:
    """On every rank the same report, so that all agree what to measure again."""
    start = time.monotonic()
    report = _said(comm, mine)
    first = rounds(report.hosts, max(1, int(seconds * (1 - AGAIN) / LEAST)))
    _measure(comm, report, first, seconds * (1 - AGAIN), start)
    suspected = suspicions(report)
    doubtful = sorted(pair for pair in set().union(*(each.pairs for each in suspected)))
    second = packed(doubtful, report.host_of)[: max(1, int(seconds * AGAIN / LEAST))]
    if second:
        _measure(comm, report, second, seconds * AGAIN, time.monotonic())
        suspected = suspicions(report)
    report.unmeasured = comm.size * (comm.size - 1) // 2 - len(report.links)
    for host, members in enumerate(report.hosts[1:], 1):
        if comm.rank in (0, members[0]) and (found := clocks.offset(comm, members[0])):
            report.clocks[host] = found
    return report, suspected, time.monotonic() - start


def _said(comm: Communicator, mine: dict[str, Any]) -> Report:
    """The words of all ranks about themselves and their ways."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    addresses = {}
    for way in ways(comm):
        groups.setdefault((way.transport, way.detail, way.refusals), []).append(way.rank)
        if way.address:
            addresses[way.rank] = way.address
    mine |= {"host": comm.host, "groups": [[*what, peers] for what, peers in groups.items()], "addresses": addresses}
    facts = comm.share(mine, WITHIN)
    hosts: dict[int, list[int]] = {}
    for rank, each in enumerate(facts):
        hosts.setdefault(each["host"], []).append(rank)
    seen: dict[int, str] = {}
    for each in facts:
        seen |= {int(rank): address for rank, address in each["addresses"].items()}
    told = [[_group(each) for each in fact["groups"]] for fact in facts]
    return Report(facts, [hosts[host] for host in sorted(hosts)], told, seen)


def _group(said: list[Any]) -> Group:
    name, detail, refusals, peers = said
    return name, detail, tuple((other, why) for other, why in refusals), tuple(peers)


def _measure(comm: Communicator, report: Report, every: list[list[Pair]], seconds: float, start: float) -> None:
    """Run rounds until the time is over; every rank's report has all links then."""
    slot = min(LONGEST, seconds / len(every)) if every else 0.0
    space = links.room()
    found: list[tuple[Pair, links.Speed]] = []
    for pairs in every:
        if comm.allreduce(time.monotonic() - start, "max") > seconds:
            break
        for a, b in pairs:
            if comm.rank == a:
                found.append(((a, b), links.lead(comm, b, slot, space)))
            elif comm.rank == b:
                links.follow(comm, a, space)
    for some in comm.share(found, WITHIN):
        for (a, b), link in some:
            made = links.Speed(*link)
            report.links[a, b] = made.better(report.links.get((a, b), made))


def _print(report: Report, suspected: list[Suspicion], cost: str) -> None:
    print(textwrap.fill(sentences.paragraph(report, suspected), WIDTH, break_on_hyphens=False), end="\n\n")
    for line in sentences.details(report, suspected):
        print(line)
    print(f"measured in {cost}", flush=True)
