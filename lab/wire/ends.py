"""One end of a long link under the stopwatch: `python ends.py KIND MB... `, of rank RANK; rank 0 prints lines of JSON.

KIND: hocket, gloo, or plain4: so many sockets, which carry as many bytes both ways at once as an allreduce of two does.
It is run as a file, as an older hocket may be the one that is measured.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CALLS, PAUSE = int(os.environ.get("WIRE_CALLS", "6")), 0.2
"""Calls of each size, of which the first does not count, and seconds between them."""
WARM = float(os.environ.get("WIRE_WARM", "6"))
"""Seconds of calls with the largest size before anything is measured: hocket finds out how many streams pay."""
PORT, PIECE = 29700, 65536
RANK, MASTER = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]


def hocket_ends() -> tuple[Callable[[Any], object], Callable[[], object], Callable[[], str]]:
    import hocket

    comm = hocket.init()

    def told() -> str:
        return next(line for line in comm.explain().splitlines() if line.startswith(f"  rank {1 - RANK}: ")).strip()

    return comm.allreduce, comm.barrier, told


def gloo_ends() -> tuple[Callable[[Any], object], Callable[[], object], Callable[[], str]]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return lambda x: dist.all_reduce(torch.from_numpy(x)), dist.barrier, lambda: f"torch {torch.__version__}"


def mpi_ends() -> tuple[Callable[[Any], object], Callable[[], object], Callable[[], str]]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return lambda x: comm.Allreduce(MPI.IN_PLACE, x), comm.Barrier, lambda: MPI.Get_library_version().split(",")[0]


def plain_ends(count: int) -> tuple[Callable[[Any], object], Callable[[], object], Callable[[], str]]:
    """Both directions by the same sockets; the bytes of each are cut in pieces for whichever has room."""
    links: list[socket.socket] = []
    if RANK == 0:
        with socket.create_server((MASTER, PORT), backlog=64) as server:
            links = [server.accept()[0] for _ in range(count)]
    while len(links) < count:
        try:
            links.append(socket.create_connection((MASTER, PORT)))
        except OSError:
            time.sleep(0.1)
    if control := os.environ.get("WIRE_CONTROL"):
        for link in links:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    for link in links:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.IPPROTO_TCP, 25, 2 * PIECE)  # TCP_NOTSENT_LOWAT

    def exchange(x: Any) -> None:
        left, lock, data = [x.nbytes], threading.Lock(), memoryview(x).cast("B")

        def send(link: socket.socket) -> None:
            while True:
                with lock:
                    n = min(PIECE, left[0])
                    left[0] -= n
                if n == 0:
                    link.sendall(b"\0" * 4)
                    return
                link.sendall(n.to_bytes(4, "little"))
                link.sendall(data[:n])

        def receive(link: socket.socket) -> None:
            room = bytearray(PIECE)
            while n := int.from_bytes(link.recv(4, socket.MSG_WAITALL), "little"):
                link.recv_into(room, n, socket.MSG_WAITALL)

        threads = [threading.Thread(target=each, args=(link,)) for link in links for each in (send, receive)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def meet() -> None:
        links[0].sendall(b"+")
        links[0].recv(1)

    return exchange, meet, lambda: f"{count} sockets"


def main(kind: str, sizes: list[float]) -> None:
    import numpy as np

    makes = {"hocket": hocket_ends, "gloo": gloo_ends, "mpi": mpi_ends}
    call, meet, told = plain_ends(int(kind[5:])) if kind.startswith("plain") else makes[kind]()
    arrays = [np.ones(int(mb * 1e6) // 4, np.float32) for mb in sizes]
    until, go = time.monotonic() + WARM, np.ones(1, np.float32)
    for _ in range(40 if kind == "hocket" else 1):
        call(arrays[-1])
        if kind == "hocket":
            go[:] = time.monotonic() < until
            call(go)
            if go[0] < 2:
                break
    for mb, x in zip(sizes, arrays, strict=True):
        took = []
        for _ in range(CALLS):
            meet()
            time.sleep(PAUSE)
            began = time.perf_counter()
            call(x)
            took.append(time.perf_counter() - began)
        if RANK == 0:
            print(json.dumps({"mb": mb, "median": statistics.median(took[1:]), "most": max(took[1:])}), flush=True)
    if RANK == 0:
        print(json.dumps({"told": told()}), flush=True)
    meet()
    os._exit(0)  # whatever else a library would wait for


if __name__ == "__main__":
    main(sys.argv[1], [float(each) for each in sys.argv[2:]])
