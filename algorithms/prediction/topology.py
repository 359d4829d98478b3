"""Where ranks sit and what lies between them, as data, and the text that says it.

Ranks fill hosts in order, hosts fill racks in order.  In a flat topology every rank is a host of its own.
Ports are what transfers share: each host's NIC, out and in (full duplex), each rack's uplink, up and down, and
inside a host either one directed port for every pair of ranks or one memory for all of them.

Must not know: schedules, time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hocket.errors import ArgumentError

OVERHEAD = 1e-6
"""Seconds of CPU a message, at each end, or the latency of its way if that is less.  An allreduce of 8 bytes on 2 ranks
(`hocket bench allreduce -n 2 -b 8 -e 8`) takes 0.4 us over shared memory and 3.9 us with `--transport tcp`, both ends
and the way between them together."""
REDUCE = 9e9
"""Bytes a second reduced, or what a rank's fastest link carries if that is more: who has links of 300 GB/s reduces on
GPUs.  A third of the 28 GB/s that a float32 sum of two moves, `python -m hocket.bench.kernels`."""

Port = tuple[str, int, int]
"""(kind, which, and for a pair the receiving rank, else 0)"""


class Link(NamedTuple):
    """Latency in seconds, one way; bandwidth in bytes a second, each way."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Topology:
    """Hosts of `ranks` ranks, joined by links of one kind, in racks if there is an uplink.

    A transfer between racks takes the latency of `link` and that of `uplink`, and needs both bandwidths.
    """

    link: Link
    ranks: int = 1
    """Ranks on each host."""
    hosts: int = 0
    """In all, or of a rack; 0: as many as are asked for."""
    racks: int = 0
    inside: Link | None = None
    uplink: Link | None = None
    shared: bool = False
    """One memory carries all transfers inside a host, instead of each pair having the bandwidth for itself."""
    overhead: float | None = None
    """Seconds of CPU a message, at its sender and again at its receiver.  None: as the way of the message suggests."""
    reduction: float | None = None
    """Seconds of CPU a byte reduced.  None: as the links suggest."""

    def check(self, size: int) -> None:
        """ArgumentError if so many ranks have no room."""
        room = self.ranks * self.hosts * max(1, self.racks)
        if size < 1 or room and size > room:
            raise ArgumentError(
                f"{size} ranks: expected 1 or more{f', and at most {room}, the ranks of this topology' if room else ''}"
            )

    def groups(self, size: int) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host."""
        return tuple(tuple(range(at, min(at + self.ranks, size))) for at in range(0, size, self.ranks))

    def spread(self, size: int) -> bool:
        """Are so many ranks on several hosts?"""
        return size > self.ranks

    def period(self, size: int) -> int:
        """Ranks so far apart, counted around `size`, see the same topology; `size` if no smaller number will do."""
        rack = self.ranks * self.hosts
        unit = 1 if size <= self.ranks else self.ranks if not self.racks or size <= rack else rack
        return unit if size % unit == 0 else size

    def latency(self, source: int, target: int) -> float:
        """Seconds from rank to rank, one way."""
        a, b = source // self.ranks, target // self.ranks
        if a == b and self.inside is not None:
            return self.inside.latency
        return self.link.latency + (self.uplink.latency if self.uplink and a // self.hosts != b // self.hosts else 0.0)

    def handling(self, source: int, target: int) -> float:
        """Seconds of CPU a message from rank to rank, at each end."""
        return min(OVERHEAD, self.latency(source, target)) if self.overhead is None else self.overhead

    @property
    def reducing(self) -> float:
        """Seconds of CPU a byte reduced."""
        if self.reduction is not None:
            return self.reduction
        return 1 / max(REDUCE, self.link.bandwidth, self.inside.bandwidth if self.inside else 0.0)

    @property
    def assumed(self) -> str:
        """Settings that were not given, in the words of the text; "": nothing."""
        assumptions = []
        if self.overhead is None:
            ways = [self.link, *([self.inside] if self.inside else [])]
            times = dict.fromkeys(f"{min(OVERHEAD, way.latency) * 1e6:g}us" for way in ways)
            assumptions.append(f"overhead={' (inside a host '.join(times)}{')' if len(times) > 1 else ''}")
        if self.reduction is None:
            assumptions.append(f"reduce={1e-9 / self.reducing:g}GB")
        return ", ".join(assumptions)

    def ports(self, source: int, target: int, period: int) -> tuple[Port, ...]:
        """The ports that a transfer from rank to rank passes; ranks that are `period` apart are taken for the same one.
        """
        a, b = source // self.ranks, target // self.ranks
        source, near = source % period, target - source + source % period
        if a == b and self.inside is not None:
            return (("memory", source // self.ranks, 0),) if self.shared else (("pair", source, near),)
        origin, destination = source // self.ranks, target % period // self.ranks
        nics = ("out", origin, 0), ("in", destination, 0)
        if self.uplink is None or a // self.hosts == b // self.hosts:
            return nics
        return *nics, ("up", origin // self.hosts, 0), ("down", destination // self.hosts, 0)

    def bandwidth(self, port: Port) -> float:
        """Bytes a second."""
        link = {"out": self.link, "in": self.link, "up": self.uplink, "down": self.uplink}.get(port[0], self.inside)
        assert link is not None
        return link.bandwidth

    def words(self, port: Port) -> str:
        """A port, for people."""
        kind, which, other = port
        if kind == "pair":
            return f"rank {which} to {other}"
        if kind == "memory":
            return f"host {which} memory"
        return f"{'rack' if kind in ('up', 'down') else 'host' if self.inside else 'rank'} {which} {kind}"


# --------------------------------------------------------------------------------------------- the text

IN_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
BYTES = {"bit": 1 / 8, "B": 1.0}
PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
OPTIONS = "[,overhead=TIME][,reduce=RATE]"
DEFAULTS = (
    f"overhead: CPU time of a message, at each end ({OVERHEAD * 1e6:g}us, or the latency if that is less)",
    f"reduce: what a rank adds up in a second ({REDUCE / 1e9:g}GB, or what its fastest link carries if that is more)",
)
UNITS = "TIME is like 20us (s, ms, us, ns), RATE a second's, like 10Gbit or 1.5GB (k, M, G, T: powers of 1000)"


def _time(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us|ns)", text)
    if not match:
        raise ValueError
    return float(match[1]) / IN_A_SECOND[match[2]]


def _rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)(bit|B)", text)
    if not match or float(match[1]) == 0:
        raise ValueError
    return float(match[1]) * PREFIX[match[2]] * BYTES[match[3]]


def _link(text: str) -> Link:
    latency, _, bandwidth = text.partition("/")
    return Link(_time(latency), _rate(bandwidth))


class Form(NamedTuple):
    """One kind of topology: numbers in its shape, the words it needs, and how all of it is written."""

    numbers: int
    words: dict[str, Callable[[str], Any]]
    written: str


FORMS = {
    "flat": Form(0, {"latency": _time, "bandwidth": _rate}, "flat:latency=TIME,bandwidth=RATE"),
    "hosts": Form(2, {"inside": _link, "link": _link}, "hosts:HOSTSxRANKS,inside=TIME/RATE[/shared],link=TIME/RATE"),
    "racks": Form(
        3,
        {"inside": _link, "link": _link, "uplink": _link},
        "racks:RACKSxHOSTSxRANKS,inside=TIME/RATE[/shared],link=TIME/RATE,uplink=TIME/RATE",
    ),
}
MORE: dict[str, Callable[[str], float]] = {"overhead": _time, "reduce": _rate}


def topology(text: str) -> Topology:
    """The topology that a text describes; ArgumentError names what is accepted.

    >>> topology("hosts:4x8,inside=0.3us/10GB,link=20us/10Gbit").link
    Link(latency=2e-05, bandwidth=1250000000.0)
    """
    kind, _, rest = text.partition(":")
    if kind not in FORMS:
        accepted = " or ".join(form.written for form in FORMS.values())
        raise ArgumentError(f"topology {text!r}: expected {accepted}, each with {OPTIONS}; {UNITS}")
    form = FORMS[kind]
    words = rest.split(",") if rest else []
    numbers = _shape(words.pop(0) if form.numbers and words else "", form, text)
    given = _given(words, form, text)
    if "reduce" in given:
        given["reduction"] = 1 / given.pop("reduce")
    if kind == "flat":
        return Topology(Link(given.pop("latency"), given.pop("bandwidth")), **given)
    *racks, hosts, ranks = numbers
    return Topology(ranks=ranks, hosts=hosts, racks=racks[0] if racks else 0, **given)


def _shape(text: str, form: Form, whole: str) -> list[int]:
    numbers = [int(n) for n in text.split("x")] if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) else []
    if len(numbers) != form.numbers:
        raise _wrong(whole, f"{text!r} is not a shape", form)
    return numbers


def _given(words: list[str], form: Form, whole: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        parse = form.words.get(name) or MORE.get(name)
        if parse is None or name in given:
            raise _wrong(whole, f"{name!r} is {'given twice' if parse else 'unknown'}", form)
        if name == "inside" and value.endswith("/shared"):
            value, given["shared"] = value.removesuffix("/shared"), True
        try:
            given[name] = parse(value)
        except ValueError:
            raise _wrong(whole, f"{word!r} cannot be read", form) from None
    if missing := [name for name in form.words if name not in given]:
        raise _wrong(whole, f"{' and '.join(missing)} is missing", form)
    return given


def _wrong(whole: str, what: str, form: Form) -> ArgumentError:
    return ArgumentError(f"topology {whole!r}: {what}; expected {form.written}{OPTIONS}; {UNITS}")
