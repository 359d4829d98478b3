"""The cable between two hosts: all their ranks share it, so its rate is that of all their messages together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from math import inf

import numpy as np
from numpy.typing import NDArray

from hocket.algorithms import Link
from hocket.observe.evidence import hosts_of, ways
from hocket.observe.findings import Findings

Cable = tuple[str, str]
"""From host to host: one direction."""


def cables(findings: Findings) -> dict[Cable, Link]:
    """The link of each cable that messages passed: bytes a second while at least one was under way, and the least
    latency.

    A message is under way from when it is offered, and its receiver is in the call, until all of it has come.
    """
    hosts = hosts_of(findings.timeline)
    entered = {(stay.rank, stay.call): stay.enter for stay in findings.evidence.stays}
    seen: dict[Cable, list[NDArray[np.float64]]] = defaultdict(list)
    for (comm, source, dest), way in ways(findings.timeline).items():
        if hosts.get(source) == hosts.get(dest) or not (len(way.sends) and len(way.receives)):
            continue
        steps = way.steps(receiving=True)
        came = np.array([_entered(entered, dest, comm, seq) for seq in steps.seq.tolist()])
        rows = np.stack([np.maximum(steps.ready, came), steps.end, steps.bytes])
        seen[hosts[source], hosts[dest]].append(rows[:, rows[1] > rows[0]])  # NaN: not known
    return {cable: _carried(np.concatenate(rows, axis=1)) for cable, rows in seen.items() if sum(r.size for r in rows)}


def _entered(entered: dict[tuple[int, Hashable], float], rank: int, comm: str, seq: int) -> float:
    return entered.get((rank, (comm, seq)), -inf)


def _carried(rows: NDArray[np.float64]) -> Link:
    """The rate and latency, by messages' begins, ends and bytes."""
    begin, end, nbytes = rows[:, np.argsort(rows[0])]
    until = np.maximum.accumulate(end)
    busy = float((until - np.maximum(begin, np.append(-inf, until[:-1]))).clip(0).sum())
    rate = float(nbytes.sum()) / busy
    return Link(max(0.0, float((end - begin - nbytes / rate).min())), rate)
