"""`hocket simulate training --parameters 85M --step 250ms --size 4 --topology ...`: which method, and how often.

A step is the computation and, every so many steps, a round of communication.  Rounds are simulated as `hocket simulate
allreduce` does it, each by its fastest algorithm.  How well a method trains is not predicted: docs/less.md has measured
some.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hocket.algorithms import Topology, get, hierarchical, names, simulate, topology
from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.prediction.topology import IN_A_SECOND, PREFIX
from hocket.collectives.measuring.cases import parse_size
from hocket.errors import ArgumentError, Error
from hocket.kernels.codecs import CODECS
from hocket.transports.base import Traits

EVERY = (1, 4, 16, 64, 256, 500)
FRAGMENTS, ENOUGH = 4, 0.1
"""Fragments of streaming DiLoCo; and the part of a step's computation that communication may take where it pays."""
CHUNK, CHOSEN = 4096, 41
"""SparseLoCo's: of each chunk 1 %, by index and two bits, beside two floats (hocket.compression.TwoBits)."""
SPARSE = (8 + 2.25 * CHOSEN) / CHUNK
"""Bytes an element."""
ASSUMED = (
    "every rank computes a step in the same time; nothing hides a round but streaming; encoding takes no time; "
    f"streaming has {FRAGMENTS} fragments and the longest delay; SparseLoCo sends 1 % in two bits"
)


class MethodCost(NamedTuple):
    method: str
    every: int
    sent: float
    """Bytes that a rank sends, in the mean of all steps."""
    exposed: float
    """Seconds of communication that a step waits for, in the mean."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hocket simulate training", description="Predict which method pays, and how often.", allow_abbrev=False
    )
    add = made.add_argument
    add("--parameters", required=True, metavar="N", help="of the model: 85M, 1.3G (powers of 1000), float32 each")
    add("--step", required=True, metavar="TIME", help="of a step's computation: 250ms, 1.5s")
    add("--size", type=int, required=True, metavar="P", help="ranks")
    add("--topology", required=True, metavar="SPEC", help="as for the collectives: flat:latency=20ms,bandwidth=100Mbit")
    add("--every", default=",".join(map(str, EVERY)), metavar="K,...", help="steps from round to round")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(argv)
    try:
        count, step = _number(options.parameters), _seconds(options.step)
        every = [parse_size(text) for text in options.every.split(",")]
        if options.size < 2 or min(every) < 1:
            raise ArgumentError("--size must be at least 2, and --every at least 1")
        there = topology(options.topology)
        there.check(options.size)
        print(f"# {options.parameters} parameters, steps of {options.step}, {options.size} ranks, {options.topology}")
        print(f"# assumed: {'; '.join(filter(None, [ASSUMED, there.assumed]))}")
        report(rows(there, options.size, count, step, every), step)
    except Error as why:
        made.error(str(why))
    return 0


def _number(text: str) -> int:
    """85M, 1.3G."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)", text)
    if not found or not float(found[1]):
        raise ArgumentError(f"--parameters {text!r}: expected a number such as 85M or 1.3G")
    return round(float(found[1]) * PREFIX[found[2]])


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us)", text)
    if not found or not float(found[1]):
        raise ArgumentError(f"--step {text!r}: expected a time such as 250ms or 1.5s")
    return float(found[1]) / IN_A_SECOND[found[2]]


def rows(there: Topology, size: int, count: int, step: float, every: Sequence[int]) -> list[MethodCost]:
    """Every method that has rounds so often."""

    @lru_cache
    def call(collective: str, nbytes: float) -> tuple[float, float]:
        return _call(there, size, collective, nbytes)

    def apart(method: str, k: int, round_: tuple[float, float]) -> MethodCost:
        return MethodCost(method, k, round_[1] / k, round_[0] / k)

    int8 = next(codec for codec in CODECS if codec.name == "int8")
    coded = int8.itemsize / int8.block * count
    far = max(range(1, size), key=lambda other: there.latency(0, other))
    pair = 8.0 * count
    exchange = there.latency(0, far) + pair / min(map(there.bandwidth, there.ports(0, far, size)))
    found = [apart("every gradient", 1, call("allreduce", 4.0 * count))]
    for k in (k for k in every if k > 1):
        found += [
            apart("LocalSGD, DiLoCo", k, call("allreduce", 4.0 * count)),
            apart("the same, int8", k, call("allreduce", coded)),
        ]
        if k >= FRAGMENTS:
            delay = k // FRAGMENTS - 1
            seconds, sent = call("allreduce", 4.0 * count / FRAGMENTS)
            late = max(0.0, seconds - delay * step)
            found.append(MethodCost("StreamingDiLoCo", k, FRAGMENTS * sent / k, FRAGMENTS * late / k))
        found += [
            apart("SparseLoCo", k, call("allgather", SPARSE * count * size)),
            apart("NoLoCo", k, (exchange, pair)),
        ]
    return found


def _call(there: Topology, size: int, collective: str, nbytes: float) -> tuple[float, float]:
    """(seconds, bytes that the busiest rank sends) by the fastest algorithm; `nbytes`: of the whole vector."""
    groups, found = there.groups(size), []
    ways = [get(collective, name) for name in names(collective)]
    if collective in STAGES and 1 < len(groups) < size:
        ways.append(hierarchical(collective, groups))
    for way in ways:
        if not way.requires(size):
            made = simulate(way, size, nbytes, there, segment=Traits().between_hosts)
            found.append((made.seconds, float(made.sent)))
    return min(found)


def report(found: Sequence[MethodCost], step: float) -> None:
    """The table; the least `every` of each method that leaves at most ENOUGH of a step to communication is marked."""
    once, told = step + found[0].exposed, set()
    print(f"#{'method':>20}{'every':>8}{'sent a step':>14}{'exposed':>11}{'of a step':>11}{'times as fast':>15}")
    print(f"#{'':>20}{'(steps)':>8}{'(kB)':>14}{'(ms)':>11}{'':>11}")
    for row in found:
        pays = row.exposed <= ENOUGH * step and row.method not in told
        told |= {row.method} if pays else set()
        part = row.exposed / (step + row.exposed)
        print(
            f" {row.method:>20}{row.every:>8}{row.sent / 1e3:>14.1f}{row.exposed * 1e3:>11.2f}{part:>11.1%}"
            f"{once / (step + row.exposed):>15.2f}" + ("  <- pays" if pays else ""), flush=True,
        )  # fmt: skip
    if "every gradient" in told:
        print("# the links are fast enough to average every gradient: nothing else is needed")
