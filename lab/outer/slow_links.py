"""Does talking less often pay over a slow cable?  Two sites of two ranks, as network namespaces (root).

    python -m hocket.lab.outer.slow_links [--rates 10mbit,100mbit] [--floats 1000000] [--step 0.002]

Inner steps are sleeps, as two cores cannot compute for four ranks.  Three tables: bytes that host 0 puts on the cable,
by its counter, and wall time a step, for `every` 1 to 16; then what part of a step waits for communication (`exposed`),
with DiLoCo and with streaming DiLoCo, where a round is sent behind the computation.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments
from hocket.system.namespaces.hosts import sent
from hocket.training import DiLoCo, LocalSGD, Outer, StreamingDiLoCo

EACH, PATIENCE = 2, 900.0
RATES, FLOATS, STEP = "10mbit,100mbit", 1_000_000, 0.002
EVERY = (1, 2, 4, 8, 16)
LEAST = 4
"""Steps that are measured, of which a multiple of `every` is made."""
PARTS, DELAY, PERIOD = 4, 4, 20
"""Settings of streaming: fragments, steps that a round may take, steps from a fragment's round to its next."""


def rank(floats: str, step: str, slow: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding.  `slow`: seconds of a step whose
    computation is to hide the communication."""
    with hocket.init() as comm:
        for every in EVERY:
            row = _run(comm, LocalSGD(comm, _theta(int(floats)), every=every), max(LEAST, every), float(step))
            _tell(comm, {"what": "every", "every": every, **row})
        for name, outer in (
            ("DiLoCo", DiLoCo(comm, _theta(int(floats)), every=PERIOD, momentum=0.5)),
            ("streaming", StreamingDiLoCo(
                comm, _theta(int(floats)), every=PERIOD, fragments=PARTS, delay=DELAY, momentum=0.5
            )),
        ):  # fmt: skip
            _tell(comm, {"what": name, **_run(comm, outer, 2 * PERIOD + DELAY, float(slow))})


def _theta(floats: int) -> dict[str, Any]:
    """PARTS arrays of other numbers on each rank, so that nothing is equal by luck."""
    return {f"w{i}": np.full(floats // PARTS, 0.5, np.float32) for i in range(PARTS)}


def _run(comm: Any, outer: Outer, steps: int, seconds: float) -> dict[str, float]:
    comm.barrier()
    before, began, exposed = sent(), time.perf_counter(), 0.0
    for _ in range(steps):
        time.sleep(seconds)
        report = outer.step()
        exposed += report.exposed if report else 0.0
    comm.barrier()
    wall = time.perf_counter() - began
    return {"bytes": (sent() - before) / steps, "wall": wall / steps, "exposed": exposed / steps, "step": seconds}


def _tell(comm: Any, row: dict[str, Any]) -> None:
    if comm.rank == 0:
        print(json.dumps(row), flush=True)


def asked(names: Sequence[str], floats: int, step: float, slow: float) -> list[dict[str, Any]]:
    """The numbers that rank 0 found between these two hosts."""
    return found_on(names, EACH, again("hocket.lab.outer.slow_links", floats, step, slow), "slow links", PATIENCE)


def main() -> int:
    options = arguments("hocket.lab.outer.slow_links", __doc__, None, rates=RATES, floats=FLOATS, step=STEP)
    for rate in options.rates.split(","):
        # Three rounds' time in the steps that a round may take: then the computation can hide it.
        once = 8 * 4 * options.floats / _bits(rate)
        with cabled(rate) as names:
            report(asked(names, options.floats, options.step, 2.5 * once / PERIOD), rate)
    return 0


def _bits(rate: str) -> float:
    """Bits of a second: 10mbit is 1e7."""
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def report(rows: Sequence[dict[str, Any]], rate: str) -> None:
    once = next(row for row in rows if row.get("every") == 1)
    print(f"# {rate}, steps of {once['step'] * 1e3:g} ms")
    print("| every | bytes a step | bytes / (those of 1 / every) | ms a step | times as fast | of every |")
    print("|---|---|---|---|---|---|")
    for row in (row for row in rows if row["what"] == "every"):
        exact, faster = row["bytes"] * row["every"] / once["bytes"], once["wall"] / row["wall"]
        print(
            f"| {row['every']} | {row['bytes']:.0f} | {exact:.4f} | {row['wall'] * 1e3:.1f} | {faster:.2f} "
            f"| {faster / row['every']:.0%} |"
        )
    print(f"# {rate}, a round every {PERIOD} steps; streaming: {PARTS} fragments, delay {DELAY}")
    print("| method | ms of a step's computation | ms exposed | part of a step |\n|---|---|---|---|")
    for row in (row for row in rows if row["what"] != "every"):
        part = row["exposed"] / (row["step"] + row["exposed"])
        print(f"| {row['what']} | {row['step'] * 1e3:.1f} | {row['exposed'] * 1e3:.2f} | {part:.1%} |")
    print(flush=True)


if __name__ == "__main__":
    main_or_rank(main, rank)
