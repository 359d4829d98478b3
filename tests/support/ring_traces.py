"""Ring allreduces as they would run, and what ranks would record of them: the truth is known."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hocket.observe.attribution import Stay, Transfer, Wait
from hocket.recording import NOBODY, RECORD, Facts, Kind, Recorded, Ring, What

Link = Callable[[int, int, int], float]
CALLS = 40


class Ran(NamedTuple):
    waits: list[Wait]
    stays: list[Stay]
    transfers: list[Transfer]

    @property
    def waited(self) -> float:
        return sum(max(0.0, w.until - w.since) for w in self.waits)


def good(source: int, dest: int, nbytes: int) -> float:
    return 20e-6 + nbytes / 1.25e9


def slow(source: int, dest: int, nbytes: int) -> float:
    """One direction of one link carries 50 MB/s."""
    return 20e-6 + nbytes / 0.05e9 if (source, dest) == (0, 1) else good(source, dest, nbytes)


def ring(
    p: int, nbytes: int, arrive: Sequence[Sequence[float]], link: Link, gamma: float = 2e-10, back: bool = False
) -> Ran:
    """Ring allreduces as they would run: arrive[c][r] is what rank r computes before call c.

    `back`: the second half goes around the other way, as hocket's does.
    """
    now, ran, chunk = [0.0] * p, Ran([], [], []), nbytes // p
    free: dict[tuple[int, int], float] = defaultdict(float)  # when a link has carried what it was given
    for c, compute in enumerate(arrive):
        enter = [now[r] + compute[r] for r in range(p)]
        at = list(enter)
        for step in range(2 * (p - 1)):
            ready, done = list(at), list(at)
            for r in range(p):
                q = (r + 1) % p if back and step >= p - 1 else (r - 1) % p
                free[q, r] = max(ready[q], free[q, r]) + link(q, r, chunk)
                came = max(free[q, r], ready[r])
                ran.waits.append(Wait(r, q, c, (q, r), chunk, ready[q], ready[r], came))
                if came > ready[q] >= ready[r]:
                    ran.transfers.append(Transfer((q, r), chunk, came - ready[q]))
                done[r] = came + (gamma * chunk if step < p - 1 else 0.0)
            at = done
        ran.stays.extend(Stay(r, c, enter[r], at[r]) for r in range(p))
        now = at
    return ran


def computed(p: int, late: int | None = None, every: int = 4, by: float = 5e-3) -> list[list[float]]:
    """5 ms before each call, a little more here and there, and `by` more on a late rank."""
    r = random.Random(1)
    plain = [[5e-3 + r.uniform(0, 20e-6) for _ in range(p)] for _ in range(CALLS)]
    return [[t + by * (q == late and c % every == 0) for q, t in enumerate(row)] for c, row in enumerate(plain)]


SECOND = 1_000_000_000


def recorded(
    p: int, ran: Ran, hosts: Sequence[str] = (), ahead: Sequence[int] = (), ppm: Sequence[float] = (),
    algorithm: str = "ring",
) -> list[Recorded]:  # fmt: skip
    """The recording of each rank; its host, and its clock: ahead of the truth by so many ns, and faster by so much."""
    rows: list[list[tuple[float, int, int, int, int, int, int]]] = [[] for _ in range(p)]  # s, seq, bytes, kind, ...
    for stay in ran.stays:
        mine, seq = rows[stay.rank], int(stay.call) + 1  # type: ignore[call-overload]
        mine += [(when, seq, 1 << 20, kind, NOBODY, 0, 0) for when, kind in _ends(stay)]
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for wait in ran.waits:
        source, dest, seq = wait.peer, wait.rank, int(wait.call) + 1  # type: ignore[call-overload]
        step = seen[dest, seq]
        seen[dest, seq] += 1
        rows[source] += [
            (wait.ready, seq, wait.nbytes, Kind.SEND_READY, dest, step, 0),
            (wait.until, seq, wait.nbytes, Kind.SEND_END, dest, step, 0),
        ]
        rows[dest] += [
            (wait.since, seq, 0, Kind.STEP, NOBODY, step, 0),
            (wait.since, seq, wait.nbytes, Kind.RECV_READY, source, step, 1),
            (wait.until, seq, wait.nbytes, Kind.RECV_END, source, step, 1),
        ]
        if wait.until > wait.since:
            rows[dest] += [
                (wait.since, seq, 0, Kind.WAIT_RECV, source, step, 1), (wait.until, seq, 0, Kind.MOVED, NOBODY, step, 0)
            ]  # fmt: skip
    call = What("allreduce(float32[262144])", "allreduce", algorithm, "tcp", 1 << 20, 7, "train.py:12", "float32")
    table = {0: What(), 1: call}
    found = []
    for rank, mine in enumerate(rows):
        host, off = hosts[rank] if hosts else "one", ahead[rank] if ahead else 0
        rate = 1 + (ppm[rank] if ppm else 0.0) * 1e-6
        records = np.zeros(len(mine), RECORD)
        for at, (s, seq, nbytes, kind, peer, step, lane) in enumerate(sorted(mine, key=lambda row: row[0])):
            records[at] = (SECOND + off + round(s * 1e9 * rate), seq, 1, nbytes, kind, peer, step, lane)
        boot, began = f"boot of {host}", SECOND + off
        facts = Facts(rank, p, "job", 100 + rank, host, boot, 0, began, 1_700_000_000 * SECOND, True)
        found.append(Recorded(facts, table, [Ring("world", "collectives", rank, tuple(range(p)), records)]))
    return found


def _ends(stay: Stay) -> tuple[tuple[float, int], ...]:
    return (stay.enter, Kind.CALL), (stay.leave, Kind.DONE)
