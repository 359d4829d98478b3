"""The cost of encryption: TCP between two ranks, plain and with HOCKET_ENCRYPT, turn by turn in the same run.

    python -m hocket.bench.encryption [--turns 5]

Messages of 1 MiB go one way: by the clock, with a core for each rank that nobody else should use, and by the CPU time
of one thread that has both ends of a TCP connection in turn: what a core does in one direction.  The best of both
counts, as other load only adds to it; of 8 bytes the median counts.  `handshake` is CPU time too, of both ends
together.  Beside them, if the command is there, what `openssl speed` says of AES-256-GCM alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy

import hocket
from hocket.bench.harness import limits
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.system import tls
from hocket.system.cores import processor
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.tls_channels import TlsStreams
from hocket.transports.tcp.transport import tuned

LARGE, BURST, BURSTS = 1 << 20, 4, 200
SMALL_CALLS = 3000
HANDSHAKES = 50
MOVES = 300


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="hocket.bench.encryption", description=__doc__, allow_abbrev=False)
    made.add_argument("--turns", type=int, default=5, metavar="N", help="(5)")
    options = made.parse_args(argv)
    if reason := tls.missing():
        raise SystemExit(f"connections cannot be encrypted here: {reason}")
    found: dict[str, list[dict[str, float]]] = {"0": [], "1": []}
    for _ in range(options.turns):
        for encrypt, rows in found.items():
            rows += _job(encrypt)
    print(f"{processor()}; {tls.version()}; {options.turns} turns\n")
    print("| what | plain | encrypted | ratio |\n|---|---|---|---|")
    for name, unit, of in (("8 B there and back", "us", median), ("1 MiB, one way", "GB/s", max)):
        plain, encrypted = (of([row[name] for row in rows]) for rows in found.values())
        print(f"| {name} | {plain:.2f} {unit} | {encrypted:.2f} {unit} | {encrypted / plain:.2f} |")
    for name, rates in zip(("seal and send", "receive and open"), zip(*_ends(), strict=True), strict=True):
        plain, encrypted = rates
        name = f"1 MiB, per core and direction: {name}"
        print(f"| {name} | {plain:.2f} GB/s | {encrypted:.2f} GB/s | {encrypted / plain:.2f} |")
    print(f"| handshake | | {_handshake() * 1e3:.2f} ms | |")
    if shutil.which("openssl"):
        print(f"| AES-256-GCM alone | | {_alone():.2f} GB/s | |")
    return 0


def _job(encrypt: str) -> list[dict[str, float]]:
    """The rounds of a job of two, as rank 0 found them."""
    words = again("hocket.bench.encryption")
    return found_here(words, 2, "encryption", 120, HOCKET_ENCRYPT=encrypt)


def rank() -> None:
    rank = int(os.environ["HOCKET_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # else a busy machine has both on one, in turn
    with hocket.init(transport="tcp") as comm:
        small, large = numpy.zeros(8, numpy.uint8), numpy.zeros(LARGE, numpy.uint8)

        def there_and_back() -> None:
            for step in (comm.send, comm.recv) if rank == 0 else (comm.recv, comm.send):
                step(small, 1 - rank)

        def one_way(calls: int) -> None:
            for _ in range(calls):
                (comm.send if rank == 0 else comm.recv)(large, 1 - rank)
            there_and_back()

        there_and_back()
        one_way(20)
        trips = []
        for _ in range(SMALL_CALLS):
            begin = time.perf_counter()
            there_and_back()
            trips.append(time.perf_counter() - begin)
        bursts = []
        for _ in range(BURSTS):
            begin = time.perf_counter()
            one_way(BURST)
            bursts.append(time.perf_counter() - begin)
        rate = LARGE * BURST / min(bursts)
        if rank == 0:
            print(json.dumps({"8 B there and back": median(trips) * 1e6, "1 MiB, one way": rate * 1e-9}))


def _joined(a: socket.socket, b: socket.socket) -> tuple[tls.Tls, tls.Tls]:
    ends = tls.Tls(a, bytes(tls.KEY), False), tls.Tls(b, bytes(tls.KEY), True)
    while [end.shake() for end in ends] != [None, None]:
        continue
    return ends


def _handshake() -> float:
    """Median seconds."""
    times = []
    for _ in range(HANDSHAKES):
        a, b = socket.socketpair()
        with a, b:
            begin = time.thread_time()
            _joined(a, b)
            times.append(time.thread_time() - begin)
    return median(times)


def _ends() -> list[tuple[float, float]]:
    """(send, receive), GB a second of a core's time: plain, then encrypted.  The best of some."""
    found = []
    for encrypt in (False, True):
        pairs = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            a = socket.create_connection(server.getsockname())
            b, _ = server.accept()
        with a, b:
            for sock in (a, b):
                tuned(sock).setblocking(False)
            out: Any = SocketStreams(a)
            into: Any = SocketStreams(b)
            if encrypt:
                one, other = _joined(a, b)
                out, into = TlsStreams(one), TlsStreams(other)
                into.receive_from(other)
            for _ in range(MOVES):
                pairs.append(limits.through(out.send, into.recv, LARGE))
        found.append((LARGE / min(s for s, _ in pairs) * 1e-9, LARGE / min(r for _, r in pairs) * 1e-9))
    return found


def _alone() -> float:
    words = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-256-gcm"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return float(out.split()[-1].rstrip("k")) * 1e-6  # thousands of bytes a second


if __name__ == "__main__":
    main_or_rank(main, rank)
