"""A table of rows that exceeds the memory that it may take: how fast are rows in memory, and rows in the file?

    python -m hocket.lab.server.cold [--rows 10000000] [--width 64] [--room 1073741824] [--batch 10000] [--seconds 5]

A server and a worker, of one host.  All rows are pushed, in the order of their keys, then pulled by lot: of the last
ones, which are in memory, of the first ones, and of all.  The file is in TMPDIR, or /var/tmp; what the system's page
cache has of it is not read from the disk, so `cold` is the disk's speed only where the memory is full.  The ranks are
this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.training import Client, Rows, serve

MODULE = "hocket.lab.server.cold"
PATIENCE = 1800.0
ROWS, WIDTH, ROOM, BATCH, SECONDS = 10_000_000, 64, 1 << 30, 10_000, 5.0
FILL = 50_000
"""Rows of a push, while the table is filled."""


def resident() -> int:
    """Bytes of memory of this process that no file has."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon:"))


def rank(count: str, width: str, room: str, batch: str, seconds: str) -> None:
    """Measure; rank 0 serves and prints a line of JSON for each row."""
    rows, wide = int(count), int(width)
    tables = {"e": Rows(wide, optimizer="sum", room=int(room), scale=0.0)}
    found: list[dict[str, Any]] = []
    with hocket.init(timeout=PATIENCE) as comm:
        before = resident()
        if comm.rank == 0:
            server = serve(comm, tables, on=[0], clock="async")
            comm.barrier()
            found = [{"resident": resident() - before}]
            comm.barrier()
            server.wait()
        else:
            with Client(comm, tables) as client:
                found = _worker(client, rows, wide, tables["e"], int(batch), float(seconds))
                comm.barrier()
                comm.barrier()
        said = comm.share(found)
        if comm.rank == 0:
            for each in said[1]:
                print(json.dumps({**each, **said[0][0]}), flush=True)


def _worker(client: Client, rows: int, width: int, table: Rows, batch: int, seconds: float) -> list[dict[str, Any]]:
    warm = min(rows, (table.room or 0) // table.line)
    fill = min(FILL, warm // 4)
    began = time.perf_counter()
    for first in range(0, rows, fill):
        keys = np.arange(first, min(first + fill, rows))
        values = np.repeat(keys[:, None].astype(np.float32), width, 1)
        client.push("e", values, rows=keys)
    found = [{"what": "pushed, new", "rows": rows / (time.perf_counter() - began)}]
    dice, batch = np.random.default_rng(1), min(batch, warm // 8)
    last = rows - warm // 2
    for what, low, high in (
        ("pulled, in memory", last, rows), ("pulled, in the file", 0, rows - warm), ("pulled, of all", 0, rows)
    ):  # fmt: skip
        found.append({"what": what, "rows": _rate(lambda: _pull(client, dice, low, high, batch), batch, seconds)})  # noqa: B023
    found.append({"what": "pushed, of all", "rows": _rate(
        lambda: client.push("e", np.zeros((batch, width), np.float32), rows=dice.choice(rows, batch)), batch, seconds
    )})  # fmt: skip
    return found


def _pull(client: Client, dice: Any, low: int, high: int, batch: int) -> None:
    keys = dice.integers(low, max(high, low + 1), batch)
    values = client.pull("e", rows=keys)
    if not (values == keys[:, None].astype(np.float32)).all():
        raise SystemExit("a row is not what was pushed")


def _rate(call: Callable[[], object], count: int, seconds: float) -> float:
    began, calls = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        call()
        calls += 1
    return calls * count / (time.perf_counter() - began)


def asked(rows: int, width: int, room: int, batch: int, seconds: float) -> list[dict[str, Any]]:
    return found_here(again(MODULE, rows, width, room, batch, seconds), 2, "cold", PATIENCE)


def main(argv: Sequence[str] | None = None) -> int:
    o = arguments(MODULE, __doc__, argv, rows=ROWS, width=WIDTH, room=ROOM, batch=BATCH, seconds=SECONDS)
    heading(("", "rows a second", "MB/s"))
    found = asked(**vars(o))
    for each in found:
        print(f"| {each['what']} | {each['rows']:,.0f} | {4e-6 * o.width * each['rows']:.0f} |")
    has, rows = found[0]["resident"] / 2**20, o.rows * o.width * 4 / 2**20
    print(f"\nthe server has {has:,.0f} MiB in memory; the rows are {rows:,.0f} MiB")
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
