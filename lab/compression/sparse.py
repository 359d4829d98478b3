"""The bytes and times of sparse sums.  As root: `python -m hocket.lab.compression.sparse [--rate 100mbit]`

Bytes: 2, 4 and 8 ranks of one host over TCP, 1 % of a million floats, half of the elements common to all; what the
host's kernel counts on its loopback, headers and all, in elements of 4 bytes that a rank sends; "oktopk" in calls that
reuse their thresholds.  Then Deep Gradient Compression with its 0.1 %, beside an allreduce.  Time: 16 MiB between two
hosts of two ranks, over a cable.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.compression import DGC, Compressor, allreduce_sparse
from hocket.compression.sparse.allreduce import WAYS
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments
from hocket.system.namespaces.hosts import sent

N, K = 1_000_000, 10_000
SIZES = (2, 4, 8)
MODELS = {"digits, 84 thousand floats": 84_234, "ResNet-18, 11.7 million floats": 11_689_512}
LONG = 4 << 20
TURNS = 5
PATIENCE = 300.0


def rank(what: str) -> None:
    """Measure, with the others; rank 0 prints lines of JSON."""
    with hocket.init() as comm:
        for row in {"bytes": _bytes, "dgc": _dgc, "time": _time}[what](comm):
            if comm.rank == 0:
                print(json.dumps(row), flush=True)


def _counted(comm: Any, call: Callable[..., object], *args: Any, **options: Any) -> float:
    """Bytes of a call that a rank has put on the loopback, in the mean of all ranks."""
    comm.barrier()
    before = sent("lo")
    comm.barrier()
    for _ in range(TURNS):
        call(*args, **options)
    comm.barrier()
    return (sent("lo") - before) / TURNS / int(comm.size)


def _bytes(comm: Any) -> list[dict[str, Any]]:
    common = np.random.default_rng(0).choice(N, K // 2, replace=False)
    own = np.random.default_rng([1, comm.rank]).choice(N, K - K // 2, replace=False)
    values = np.random.default_rng([2, comm.rank]).uniform(1, 2, K).astype(np.float32)
    indices, rows = np.concatenate([common, own]), []
    for codec in (None, "fp16"):
        for way in WAYS if codec is None else WAYS[:2]:
            name = way if codec is None else f"{way}, {codec}"
            found = _counted(comm, allreduce_sparse, comm, indices, values, N, way, codec=codec)
            rows.append({"way": name, "bytes": found})
    x = np.zeros(N, np.float32)
    x[indices] = values
    ok = Compressor(comm, "oktopk:0.01", feedback=False)  # else more and more would be owed, of one vector
    ok.allreduce(x.copy(), "w")
    rows.append({"way": "oktopk", "bytes": _counted(comm, lambda: ok.allreduce(x.copy(), "w"))})
    return [*rows, {"way": "allreduce", "bytes": _counted(comm, comm.allreduce, x)}]


def _dgc(comm: Any) -> list[dict[str, Any]]:
    rows = []
    for name, n in MODELS.items():
        x = np.random.default_rng(comm.rank).standard_normal(n, np.float32)
        dense = _counted(comm, comm.allreduce, x.copy())
        for codec in (None, "fp16"):
            c = Compressor(comm, DGC(0.001, codec=codec))
            found = _counted(comm, lambda c=c, x=x: c.allreduce(x.copy(), "w"))
            rows.append({"model": name, "values": codec or "float32", "dense": dense, "bytes": found})
    return rows


def _time(comm: Any) -> list[dict[str, Any]]:
    x = np.random.default_rng(comm.rank).standard_normal(LONG, np.float32)
    ways: dict[str, Callable[[Any], object]] = {"allreduce": comm.allreduce}
    for method in ("topk:0.01", "topk:0.01:fp16", "oktopk:0.01", "dgc:0.001:fp16"):
        ways[method] = partial(Compressor(comm, method).allreduce, key="w")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + TURNS):
        for name, call in ways.items():
            comm.barrier()
            mine, begin = x.copy(), time.perf_counter()
            call(mine)
            comm.barrier()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return [{"way": name, "seconds": median(each)} for name, each in seconds.items()]


# --------------------------------------------------------------------------------------------- the tables


def asked(names: Sequence[str], each: int, what: str) -> list[dict[str, Any]]:
    """The numbers of `each` ranks on every host about "bytes", "dgc" or "time"."""
    return found_on(names, each, again("hocket.lab.compression.sparse", what, warns=False), what, PATIENCE)


def report_bytes(names: Sequence[str]) -> None:
    table = {size: {row["way"]: row["bytes"] for row in asked(names[:1], size, "bytes")} for size in SIZES}
    print("# sums of a million floats, of which a rank has 1 %: 4-byte words that a rank sends for each element it has")
    print(f"| ranks | {' | '.join(next(iter(table.values())))} |")
    print("|---" * (len(table[SIZES[0]]) + 1) + "|")
    for size, row in table.items():
        print(f"| {size} | {' | '.join(f'{nbytes / 4 / K:.2f}' for nbytes in row.values())} |")


def report_dgc(names: Sequence[str]) -> None:
    print("# a step of Deep Gradient Compression, 0.1 %, 4 ranks: bytes that a rank sends")
    print("| model | values | allreduce | DGC | ratio |")
    print("|---|---|---|---|---|")
    for row in asked(names[:1], 4, "dgc"):
        ratio = row["dense"] / row["bytes"]
        print(f"| {row['model']} | {row['values']} | {row['dense']:,.0f} | {row['bytes']:,.0f} | {ratio:.0f} |")


def report_time(names: Sequence[str], rate: str) -> None:
    rows = asked(names, 2, "time")
    print(f"# 16 MiB, 2 hosts of 2 ranks, {rate}/s between them")
    print("| way | ms | x allreduce |")
    print("|---|---|---|")
    for row in rows:
        print(f"| {row['way']} | {row['seconds'] * 1e3:.0f} | {rows[0]['seconds'] / row['seconds']:.1f} |")


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.compression.sparse", __doc__, argv, rate="100mbit")
    with cabled(options.rate) as names:
        report_time(names, options.rate)
        os.environ["HOCKET_TRANSPORT"] = "tcp"
        report_bytes(names)
        report_dgc(names)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
