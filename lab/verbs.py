"""Verbs beside perftest, pyverbs and our TCP: `python -m hocket.lab.verbs [--rounds 5] [--json FILE]`.

Small: an allreduce of 8 bytes between 2 ranks beside ib_send_lat's typical time of 8 bytes one way; each rank sends and
receives once, so one way is what it must take.  Large: 1 MiB broadcast, and sent, beside ib_write_bw and ib_read_bw.
All take turns, several times round (A B A B), and the median round counts.  `one device` is from a device to itself,
`across` from the first to the second; TCP is loopback, without a place.  CPU seconds are those of both processes,
and of all that the machine did meanwhile: the kernel's part of Soft-RoCE belongs to no process.

Without RDMA devices or perftest only TCP is measured, and a line says why; tests/guest/run.sh makes a machine that has
them.
The ranks are this file again, with the argument `rank`; they take an order from stdin and answer with a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

from hocket.bench.harness.environment import describe
from hocket.conformance.jobs.ranks import again, main_or_rank, on_this_machine, started
from hocket.errors import Error
from hocket.lab.rivals.perftest import (
    LONG,
    LONG_CALLS,
    PERFTEST,
    SMALL_CALLS,
    Ends,
    Numbers,
    machine_seconds,
    perftest,
)
from hocket.lab.rivals.pyverbs_pair import PYVERBS, installed, pyverbs
from hocket.transports import registry

SYSTEM = "/sys/class/infiniband"
WARM = 100
LATENCY, BANDWIDTH = 2.0, 0.85
"""Targets: at most so many times ib_send_lat's typical time, at least such a part of ib_write_bw's bandwidth."""


# --------------------------------------------------------------------------------------------- our two ranks


class Pair:
    """Two ranks over a transport; between orders they sleep in a read."""

    def __init__(self, transport: str, place: Ends, gid_index: int) -> None:
        self.stack = contextlib.ExitStack()
        directory = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="hocket-verbs-"))
        words = again("hocket.lab.verbs")
        settings = {"HOCKET_TRANSPORT": transport, "HOCKET_TUNING": "off"}
        commands = []
        for device, (_, env) in zip(place.devices, on_this_machine(words, 2, directory, **settings), strict=True):
            rdma = f"{device}:1:{gid_index}" if gid_index >= 0 else device
            commands.append((words, {**env, **({"HOCKET_RDMA": rdma} if rdma and device else {})}))
        self.ranks = self.stack.enter_context(started(commands, stdin=subprocess.PIPE))

    def order(self, do: str) -> Numbers:
        begin = machine_seconds()
        for process in self.ranks:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the read below finds out
                process.stdin.write(do + "\n")
                process.stdin.flush()
        lines = [process.stdout.readline() for process in self.ranks if process.stdout]
        machine = machine_seconds() - begin
        if not all(lines):
            raise Error("a rank has ended; its reason is above")
        found = [json.loads(line) for line in lines]
        if do == "small":
            return {"us": max(each["us"] for each in found)}
        gigabytes = LONG * LONG_CALLS / 1e9
        return {
            "bandwidth": LONG * LONG_CALLS / max(each["seconds"] for each in found),
            "cpu": sum(each["cpu"] for each in found) / gigabytes, "machine": machine / gigabytes,
        }  # fmt: skip

    def close(self) -> None:
        """Their input ends, and so do the ranks."""
        for process in self.ranks:
            if process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        self.stack.close()


def rank() -> None:
    """Do what is ordered until nothing more comes."""
    import numpy

    import hocket

    with hocket.init() as comm:
        x, y = numpy.zeros(1), numpy.zeros(LONG, numpy.uint8)

        def send() -> None:
            if comm.rank == 0:
                comm.send(y, 1)
            else:
                comm.recv(y, 0)

        calls: dict[str, Callable[[], object]] = {"broadcast": lambda: comm.broadcast(y, 0), "send": send}
        for line in sys.stdin:
            do = line.strip()
            if do == "small":
                found = {"us": _small(comm, x)}
            else:
                calls[do]()
                comm.barrier()
                begin, used = time.perf_counter(), _used()
                for _ in range(LONG_CALLS):
                    calls[do]()
                comm.barrier()  # the last has arrived
                found = {"seconds": time.perf_counter() - begin, "cpu": _used() - used}
            print(json.dumps(found), flush=True)


def _small(comm: Any, x: Any) -> float:
    """The median call, in us."""
    took = []
    for i in range(WARM + SMALL_CALLS):
        begin = time.perf_counter()
        comm.allreduce(x)
        if i >= WARM:
            took.append(time.perf_counter() - begin)
    return median(took) * 1e6


def _used() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------------------------------------- the table


def places() -> list[Ends]:
    """One device, and two of them where there are."""
    devices = sorted(os.listdir(SYSTEM)) if os.path.isdir(SYSTEM) else []
    found = [Ends("one device", (devices[0], devices[0]))] if devices else []
    return found + ([Ends("across", (devices[0], devices[1]))] if len(devices) > 1 else [])


def missing() -> str | None:
    """Why there is nothing to measure but TCP."""
    if not places():
        return f"no RDMA device in {SYSTEM}: tests/guest/run.sh makes a machine with two"
    absent = [tool for tool in PERFTEST if shutil.which(tool) is None]
    if absent:
        return f"no {', '.join(absent)}: install perftest"
    _, reasons = registry.load(["verbs"])
    return reasons.get("verbs") if "verbs" in registry.known() else "this hocket has no verbs transport"


Rows = dict[tuple[str, str], list[Numbers]]
"""(who and what, place) -> rounds."""
TCP = Ends("tcp")


def measure(rounds: int, gid_index: int, where: Sequence[Ends]) -> Rows:
    """All in turns."""
    rows: Rows = {}
    with contextlib.ExitStack() as stack:
        pairs = {TCP.name: Pair("tcp", TCP, gid_index)}
        stack.callback(pairs[TCP.name].close)
        for place in where:
            pairs[place.name] = Pair("verbs", place, gid_index)
            stack.callback(pairs[place.name].close)
        for _ in range(rounds):
            for place in (*where, TCP):
                for do in ("small", "broadcast", "send"):
                    rows.setdefault((do, place.name), []).append(pairs[place.name].order(do))
                if place is TCP:
                    continue
                for tool in PERFTEST:
                    rows.setdefault((tool, place.name), []).append(perftest(tool, place, gid_index))
                for tool in PYVERBS if installed() else ():
                    rows.setdefault((tool, place.name), []).append(pyverbs(tool, place, gid_index))
    return rows


def middle(rows: Rows, what: str, place: str, which: str) -> float | None:
    rounds = rows.get((what, place))
    return median(found[which] for found in rounds) if rounds else None


LINES = (
    ("8 B allreduce, us", "small", "ib_send_lat", "us", 1.0),
    ("8 B allreduce, us", "small", "pyverbs_send_lat", "us", 1.0),
    ("1 MiB broadcast, MB/s", "broadcast", "ib_write_bw", "bandwidth", 1e-6),
    ("1 MiB send, MB/s", "send", "ib_write_bw", "bandwidth", 1e-6),
    ("1 MiB send, MB/s", "send", "ib_read_bw", "bandwidth", 1e-6),
    ("1 MiB send, MB/s", "send", "pyverbs_write_bw", "bandwidth", 1e-6),
    ("1 MiB send, CPU s/GB of the processes", "send", "ib_write_bw", "cpu", 1.0),
    ("1 MiB send, CPU s/GB of the processes", "send", "pyverbs_write_bw", "cpu", 1.0),
    ("1 MiB send, CPU s/GB of the machine", "send", "ib_write_bw", "machine", 1.0),
)
"""(title, ours, theirs, which number, its factor)"""


def report(rows: Rows, where: Sequence[Ends]) -> list[str]:
    lines = [
        "| | place | hocket verbs | perftest, pyverbs | ratio | target | hocket tcp |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, ours, theirs, which, factor in LINES:
        tcp = middle(rows, ours, TCP.name, which)
        for place in where or [TCP]:
            mine = middle(rows, ours, place.name, which) if where else None
            other = middle(rows, theirs, place.name, which)
            ratio = mine / other if mine is not None and other else None
            target = ""
            if ratio is not None and theirs == "ib_send_lat":
                target = f"<= {LATENCY:g}: {'yes' if ratio <= LATENCY else 'no'}"
            elif ratio is not None and which == "bandwidth" and theirs == "ib_write_bw":
                target = f">= {BANDWIDTH:g}: {'yes' if ratio >= BANDWIDTH else 'no'}"
            cells = [_number(mine, factor), f"{theirs} {_number(other, factor)}", _number(ratio), target]
            lines.append(f"| {title} | {place.name} | {' | '.join(cells)} | {_number(tcp, factor)} |")
    return lines


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.verbs", description="Verbs beside perftest and TCP.")
    parser.add_argument("--rounds", type=int, default=5, help="each of everything (5)")
    parser.add_argument("--gid-index", type=int, default=1, metavar="N", help="RoCE's (1); -1: InfiniBand")
    parser.add_argument("--json", metavar="FILE", help="write every round there")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the stack ends the ranks
    where: list[Ends] = []
    if why := missing():
        print(f"# verbs: not measured: {why}", flush=True)
    else:
        where = places()
    try:
        rows = measure(max(1, options.rounds), options.gid_index, where)
    except Error as failed:
        raise SystemExit(f"verbs: {failed}") from None
    print("\n".join(report(rows, where)))
    if options.json:
        kept = [{"what": what, "place": place, "rounds": rounds} for (what, place), rounds in rows.items()]
        with open(options.json, "w") as file:
            json.dump({"machine": describe(), "rows": kept}, file, indent=1)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
