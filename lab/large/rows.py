"""Rows of so many bytes, between two ranks of a host: copied out of the neighbour's memory, or sent.

    python -m hocket.lab.large.rows [--mb 8]

"columns to rows": a row follows the one before where it comes from; "rows to columns": where it goes.  It is what
`worth` of collectives/layouts/pulls.py decides by.  In turns, the quarter of 60 rounds that was fastest; in memcpy's
time for the bytes that move.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hocket
from hocket import Layout
from hocket.collectives.layouts import moving
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.lab.program import arguments, heading

MODULE = "hocket.lab.large.rows"
PATIENCE, ROUNDS, RANKS = 170.0, 60, 2
ROWS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
WAYS: dict[str, Callable[..., bool]] = {"copied": lambda *part: True, "sent": lambda *part: False}


def rank(mb: str) -> None:
    """Measure, with the other one."""
    comm = hocket.init()
    for nbytes in ROWS:
        columns = RANKS * nbytes // 4
        shape = (int(float(mb) * 250_000) // columns, columns)
        by_columns, by_rows = Layout.cut(shape, RANKS, axis=1), Layout.cut(shape, RANKS)
        for name, source, target in (
            ("columns to rows", by_columns, by_rows), ("rows to columns", by_rows, by_columns)
        ):  # fmt: skip
            found = _measured(comm, source, target)
            if comm.rank == 0:
                print(json.dumps({"row": nbytes, "case": name, "seconds": found}), flush=True)


def _measured(comm: Any, source: Layout, target: Layout) -> dict[str, float]:
    tree = [np.ones(shape, np.float32) for shape in source.shapes(comm.rank)]
    ways: dict[str, Callable[[], object]] = {}
    module: Any = moving
    chosen = module.worth
    for name, worth in WAYS.items():
        module.worth = worth
        ways[name] = comm.prepare_redistribute(tree, source, target)
    module.worth = chosen
    half = tree[0].reshape(-1)[: tree[0].size // RANKS]
    copy = np.zeros_like(half)
    ways["memcpy"] = lambda: np.copyto(copy, half)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            comm.barrier()
            began = time.perf_counter()
            way()
            comm.barrier()
            seconds[name].append(time.perf_counter() - began)
    return {name: sorted(each)[ROUNDS // 4] for name, each in seconds.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = arguments(MODULE, __doc__, argv, mb=8.0)
    found = found_here(again(MODULE, options.mb), RANKS, MODULE, PATIENCE)
    heading(("row, bytes", "case", "copied, ms", "sent, ms", "x memcpy, copied", "x memcpy, sent"))
    for row in found:
        copied, sent, memcpy = (row["seconds"][name] for name in (*WAYS, "memcpy"))
        print(f"| {row['row']} | {row['case']} | {copied * 1e3:.2f} | {sent * 1e3:.2f} | {copied / memcpy:.1f} "
              f"| {sent / memcpy:.1f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
