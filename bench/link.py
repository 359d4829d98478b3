"""`hocket bench allreduce --codec int8,auto --link 100Mbit,1Gbit,none`: does a codec pay over such a link?

Two hosts with a cable of that rate between them, as network namespaces (root); or, for `none`, the ranks of this
machine alone.  All codecs take turns in the same processes, beside float32 and fp16.  Each rank has other normal
numbers.

encode, decode: the kernels alone, one thread, on the whole vector; in a call they overlap with sending.  cable: bytes
that host 0 has put on it for one call, by its own counter, as a part of the vector's.  of ideal: how many times faster
than float32, as a part of how many times fewer bytes it sends.  error: the length of (result - exact) / that of exact.

Methods with state (powersgd:4, topk:0.01, ...) are beside them by their names.  A codec is how one call sends; a method
is a `Compressor`'s: it keeps what it did not send for the next call, gives some a matrix (rows of 1,024 here, where the
vector has so many), and computes in NumPy before and after its calls, which total has, with a copy of x, and encode and
decode have not.  Its error is that of one call without what later calls make good, and of normal numbers, of which no
few are large and which have no low rank: gradients are kinder.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.codecs import others
from hocket.collectives.calls.encodings import AUTO, BY_NAME, wire_format
from hocket.collectives.measuring.cases import numpy_dtype
from hocket.compression import Compressor
from hocket.compression.choice.names import PLAIN, WITH_ARGUMENT, resolved
from hocket.conformance.jobs.ranks import again, found_here, found_on
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec
from hocket.kernels.cpu import reduce
from hocket.system.namespaces.hosts import hosts, refusal, remove_stale, sent

HOSTS = 2
TURNS, SECONDS = (5, 300), 1.0
"""Each codec is called this often: as often as a float32 call goes into so many seconds, but at least and at most ...
"""
PATIENCE = 600.0
BESIDE = ("float32", "fp16")
"""Every codec is compared with these."""
USUAL = 16 << 20
"""Bytes, unless -b or -e says otherwise.  A float32 call of as many takes 1.4 s at 100 Mbit/s."""
WIDTH = 1024
"""Elements in a row of the matrix that a method gets."""


def checked(codecs: str, links: str, collective: str, ranks: int) -> tuple[list[str], list[str]]:
    """The codecs or methods, and the links.  Raises ArgumentError, also where this system has no such links."""
    if collective != "allreduce":
        raise ArgumentError(f"--codec compares allreduces, not {collective}")
    names = [name for name in codecs.split(",") if name]
    for name in names:
        if _is_method(name):
            resolved(name)
        elif name != AUTO:
            wire_format(name)
    rates = [link for link in links.split(",") if link]
    for rate in rates:
        if rate != "none" and not re.fullmatch(r"\d+(\.\d+)?[kKmMgG]?bit", rate):
            raise ArgumentError(f"--link {rate}: expected a rate in tc's words, such as 100Mbit, or none")
        if rate != "none" and (why := refusal(rate.lower())):
            raise ArgumentError(f"--link {rate}: {why}; --link none works for every user")
        if rate != "none" and ranks % HOSTS:
            raise ArgumentError(f"--link {rate}: -n must be a multiple of the {HOSTS} hosts, got {ranks}")
    return names, rates


def _is_method(name: str) -> bool:
    return name.partition(":")[0] in {*PLAIN, *WITH_ARGUMENT, *others()}


def run(names: Sequence[str], rates: Sequence[str], sizes: Sequence[int], ranks: int, transport: str | None) -> None:
    """Measure and print a table for each link."""
    words = again("hocket.bench.link", ",".join([*BESIDE, *names]))
    words += [",".join(map(str, sizes)), transport or ""]
    for rate in rates:
        if rate == "none":
            report(found_here(words, ranks, "link", PATIENCE), f"{ranks} ranks on this machine")
            continue
        remove_stale()
        with hosts(rate.lower()) as two:
            lines = found_on(two, ranks // HOSTS, words, "link", PATIENCE)
        report(lines, f"{HOSTS} hosts of {ranks // HOSTS} ranks, {rate}/s between them")


# --------------------------------------------------------------------------------------------- a rank


def rank(names: Sequence[str], sizes: Sequence[int], transport: str | None) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each size and codec."""
    with hocket.init(transport=transport) as comm:
        for nbytes in sizes:
            x = np.random.default_rng(comm.rank).standard_normal(nbytes // 4, np.float32)
            exact = comm.allreduce(x.astype(float))
            y = np.empty_like(x)
            calls = {name: _call(comm, name, x, y) for name in names}
            rows = {name: _once(comm, name, calls[name], x, y, exact) for name in names}
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(_turns(comm, x, y)):
                for name in names:
                    seconds[name].append(_timed(comm, calls[name]))
            slowest = comm.allreduce(np.array([median(seconds[name]) for name in names]), "max")
            for name, total in zip(names, slowest, strict=True):
                if comm.rank == 0:
                    print(json.dumps({**rows[name], "nbytes": nbytes, "seconds": total}), flush=True)


def _call(comm: Any, name: str, x: Any, y: Any) -> Callable[[], object]:
    """The sum of all ranks' x, into y."""
    if not _is_method(name):
        return partial(comm.allreduce, x, "sum", y, codec=None if name == "float32" else name)
    compressor = Compressor(comm, name)
    matrix = y.reshape(-1, WIDTH) if y.size % WIDTH == 0 else y

    def call() -> None:
        y[:] = x
        compressor.allreduce(matrix, "x", "sum")

    return call


def _turns(comm: Any, x: Any, y: Any) -> int:
    """The same on all ranks."""
    slowest = comm.allreduce(np.array([_timed(comm, partial(comm.allreduce, x, "sum", y))]), "max")[0]
    least, most = TURNS
    return max(least, min(most, int(SECONDS / slowest)))


def _once(comm: Any, name: str, call: Callable[[], object], x: Any, y: Any, exact: Any) -> dict[str, Any]:
    """Measure all that needs no stopwatch, or only this rank's."""
    call()  # makes the plan
    error = float(np.linalg.norm(y - exact) / np.linalg.norm(exact))
    comm.barrier()
    before = _sent()
    call()
    comm.barrier()
    wire = _sent() - before
    encode, decode = _kernels(x, BY_NAME.get(name))
    row = {"codec": name, "cable": wire / x.nbytes, "error": error, "encode": encode, "decode": decode}
    if name == AUTO:
        lines = comm.explain("allreduce", x.nbytes, codec=AUTO).splitlines()
        row["why"] = next(line.strip() for line in lines if AUTO in line)
    return row


def _sent() -> int:
    """On the cable, or 0 where there is none."""
    try:
        return sent()
    except Exception:
        return 0


def _timed(comm: Any, call: Callable[[], object]) -> float:
    comm.barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _kernels(x: Any, codec: Any) -> tuple[float, float]:
    """Seconds to encode x, and to decode it."""
    if codec is None:
        return 0.0, 0.0
    y, found = np.empty_like(x), []
    if isinstance(codec, Codec):
        wire = np.empty(codec.nbytes(len(x)), np.uint8)
        calls = partial(reduce.encode_array, wire, x, codec), partial(reduce.decode_array, y, wire, codec)
    else:
        wire = np.empty(len(x), numpy_dtype(codec.name))
        calls = partial(reduce.scale_array, wire, x, 1.0), partial(reduce.scale_array, y, wire, 1.0)
    for call in calls:
        call()
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found[0], found[1]


# --------------------------------------------------------------------------------------------- the table


def report(lines: Sequence[dict[str, Any]], where: str) -> None:
    for nbytes in dict.fromkeys(row["nbytes"] for row in lines):
        rows = {row["codec"]: row for row in lines if row["nbytes"] == nbytes}
        plain, half = (rows[name] for name in BESIDE)
        print(f"# allreduce of {nbytes} bytes of float32, {where}")
        print("| codec | cable | encode ms | decode ms | total ms | x float32 | x fp16 | of ideal | error |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name, row in rows.items():
            faster = plain["seconds"] / row["seconds"]
            fewer = plain["cable"] / row["cable"] if row["cable"] else 0
            print(
                f"| {name} | {row['cable']:.3f} | {row['encode'] * 1e3:.2f} | {row['decode'] * 1e3:.2f}"
                f" | {row['seconds'] * 1e3:.2f} | {faster:.2f} | {half['seconds'] / row['seconds']:.2f}"
                f" | {f'{faster / fewer:.0%}' if fewer else '-'} | {row['error']:.2g} |"
            )
        for row in rows.values():
            if "why" in row:
                print(f"# {row['why']}")
        print(flush=True)


if __name__ == "__main__":
    rank(sys.argv[2].split(","), [*map(int, sys.argv[3].split(","))], sys.argv[4] or None)
