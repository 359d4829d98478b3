"""Facts that should be the same on all ranks and are not: versions, variables, limits; addresses and MTUs.  Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from hocket.tools.doctor.local import FEW_FILES
from hocket.tools.doctor.report import Report
from hocket.tools.doctor.units import listed, ranks

FILES = "open files (ulimit -n)"


def different(report: Report) -> list[tuple[str, list[str]]]:
    """(what, its values and whose they are) of all that is not the same on all ranks."""
    names = dict.fromkeys(name for each in report.facts for name in each["what"])
    found = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, each in enumerate(report.facts):
            values.setdefault(each["what"].get(name, "not set"), []).append(rank)
        if len(values) > 1:
            found.append((name, [f"{value} on {ranks(some)}" for value, some in values.items()]))
    return found


def warnings(report: Report) -> Iterator[str]:
    """Sentences on low limits, addresses that lead nowhere, MTUs that differ, and hosts with too many ranks."""
    few = [r for r, each in enumerate(report.facts) if (_number(each["what"][FILES]) or FEW_FILES) < FEW_FILES]
    if few:
        yield f"Few files may be open on {ranks(few)}: ulimit -n 1024"
    crowded = [report.names[host] for host in sorted(report.crowded)]
    if crowded:
        yield (f"Ranks outnumber the cores of {listed(crowded)}, so times vary: inside hosts they are not judged, and "
               "between hosts only a link that is 5 times slower is named")  # fmt: skip
    yield from _placed(report)
    if len(report.hosts) > 1:
        inner = [rank for rank, address in report.addresses.items() if _loopback(address)]
        if inner:
            yield (f"Hosts reach {ranks(inner)} by a loopback address, so they are one machine that shares no memory "
                   "(containers, or users): let them share /tmp and the user")  # fmt: skip
        mtus = {name: mtu for host, name in enumerate(report.names) if (mtu := _mtu(report, host)) is not None}
        if len(set(mtus.values())) > 1:
            yield "MTUs differ: " + listed(f"{mtu} on {name}" for name, mtu in mtus.items())


def _placed(report: Report) -> Iterator[str]:
    """Sentences on ranks that were put on too few of their host's cores, and on threads that outnumber them."""
    for host, members in enumerate(report.hosts):
        facts, name = [report.facts[rank] for rank in members], report.names[host]
        cores = set().union(*(each["cores"] for each in facts))
        have = facts[0].get("online", len(cores))
        if len(cores) < len(members) and len(cores) < have:
            yield (f"The {len(members)} ranks of host {name} may run on {len(cores)} of its {have} cores: whatever "
                   "started them has bound them (hocket run --bind, mpirun --bind-to, srun --cpu-bind)")  # fmt: skip
            continue
        told = [each.get("threads", "1") for each in facts]
        threads = sum(int(text) if text.isdecimal() else each["usable"] for text, each in zip(told, facts, strict=True))
        if len(members) > 1 and threads > max(len(cores), len(members)):
            which = "OMP_NUM_THREADS is not set" if not all(told) else "OMP_NUM_THREADS is too large"
            yield (f"The {len(members)} ranks of host {name} may start {threads} threads on {len(cores)} cores, as "
                   f"{which}: set it to {max(1, len(cores) // len(members))}")  # fmt: skip


def _mtu(report: Report, host: int) -> int | None:
    """The MTU of the interface at which others reach a host."""
    rank = report.hosts[host][0]
    found = report.facts[rank]["interfaces"].get(report.addresses.get(rank))
    return None if found is None else int(found[1])


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback
