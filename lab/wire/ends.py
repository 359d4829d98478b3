"""One end of a long link under the stopwatch: `python ends.py KIND MB... `, of rank RANK; rank 0 prints lines of JSON.

KIND: hocket, gloo, mpi, or plain4: so many sockets, which carry as many bytes both ways at once as an allreduce of two
does.  Or a training step that sends about as many: outer (a round of DiLoCo), sharded (ZeRO, stage 2), or pipeline (two
stages that compute nothing; the MICRO micro-batches of a step have so many bytes).
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

CALLS, PAUSE = int(os.environ.get("WIRE_CALLS", "6")), 0.5
"""Calls of each size, of which the first does not count, and seconds of rest before each."""
WARM = float(os.environ.get("WIRE_WARM", "6"))
"""Seconds of calls with the largest size before anything is measured: hocket finds out how many streams pay."""
PORT, PIECE, MICRO = 29700, 65536, 8
RANK, MASTER = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]), os.environ["MASTER_ADDR"]
BASE = float(os.environ["WIRE_BASE"])
Ends = tuple[Callable[[Any], object], Callable[[Any], object], Callable[[], str]]
"""The call that is measured; one that tells rank 1 the first element that rank 0 has; and what it was, in words."""


def hocket_ends() -> Ends:
    import hocket

    comm = hocket.init()
    return comm.allreduce, comm.allreduce, lambda: link_of(comm)


def link_of(comm: Any) -> str:
    lines: list[str] = comm.explain().splitlines()
    return next(line for line in lines if line.startswith(f"  rank {1 - RANK}: ")).strip()


def outer_step(comm: Any, x: Any) -> Callable[[], object]:
    from hocket.training import DiLoCo

    return DiLoCo(comm, {"w": x}, every=1, momentum=0.5).step


def sharded_step(comm: Any, x: Any) -> Callable[[], object]:
    from hocket.training import Adam, Sharded

    made, gradients = Sharded(Adam(lr=1e-3), comm, {"w": x}, stage=2), {"w": x.copy()}
    return lambda: made.step(gradients)


class Passing:
    """A stage of a pipeline: nothing is computed."""

    def forward(self, x: Any) -> tuple[Any, None]:
        return x, None

    def backward(self, dy: Any, kept: None) -> Any:
        return dy


def pipeline_step(comm: Any, x: Any) -> Callable[[], object]:
    from hocket.training import Pipeline

    batch = x[: len(x) // MICRO * MICRO].reshape(MICRO, -1)
    pipe = Pipeline(Passing(), comm, batch[:1].copy(), micro=MICRO)
    return lambda: pipe.step(batch if pipe.first else None, lambda y, micro: (0.0, y))


STEPS = {"outer": outer_step, "sharded": sharded_step, "pipeline": pipeline_step}


def step_ends(kind: str) -> Ends:
    import hocket

    comm = hocket.init()
    made: dict[int, Callable[[], object]] = {}

    def call(x: Any) -> None:
        if len(x) not in made:
            made[len(x)] = STEPS[kind](comm, x)
        made[len(x)]()

    return call, comm.allreduce, lambda: link_of(comm)


def gloo_ends() -> Ends:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def call(x: Any) -> None:
        dist.all_reduce(torch.from_numpy(x))

    return call, call, lambda: f"torch {torch.__version__}"


def mpi_ends() -> Ends:
    from mpi4py import MPI

    if len(set(MPI.COMM_WORLD.allgather(socket.gethostname()))) < 2:
        raise SystemExit("both ranks are on one host")

    def call(x: Any) -> None:
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)

    return call, call, lambda: MPI.Get_library_version().split(",")[0]


def plain_ends(count: int) -> Ends:
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

    def tell(x: Any) -> None:
        links[0].sendall(x.tobytes())
        came = links[0].recv(x.nbytes, socket.MSG_WAITALL)
        if RANK:
            x[0] = memoryview(came).cast("f")[0]

    return exchange, tell, lambda: f"{count} sockets"


def meet(tell: Callable[[Any], object], at: Any) -> None:
    """Return at an instant that rank 0 names: the two hosts are one machine, and have one clock."""
    at[:] = time.monotonic() - BASE + PAUSE if RANK == 0 else 0
    tell(at)
    time.sleep(max(0.0, BASE + float(at[0]) - time.monotonic()))


def main(kind: str, sizes: list[float]) -> None:
    import numpy as np

    makes = {"gloo": gloo_ends, "mpi": mpi_ends, "hocket": hocket_ends}
    if kind in STEPS:
        call, tell, told = step_ends(kind)
    else:
        call, tell, told = plain_ends(int(kind[5:])) if kind.startswith("plain") else makes[kind]()
    arrays = [np.ones(int(mb * 1e6) // 4, np.float32) for mb in sizes]
    until, go = time.monotonic() + WARM, np.ones(1, np.float32)
    ours = kind in ("hocket", *STEPS)
    for _ in range(40 if ours else 1):
        call(arrays[-1])
        if ours:
            go[:] = time.monotonic() < until
            tell(go)
            if go[0] < 2:
                break
    for mb, x in zip(sizes, arrays, strict=True):
        took = []
        for _ in range(CALLS):
            meet(tell, go)
            began = time.perf_counter()
            call(x)
            took.append(time.perf_counter() - began)
        if RANK == 0:
            print(json.dumps({"mb": mb, "median": statistics.median(took[1:]), "most": max(took[1:])}), flush=True)
    if RANK == 0:
        print(json.dumps({"told": told()}), flush=True)
    meet(tell, go)
    if kind == "mpi":
        from mpi4py import MPI

        MPI.Finalize()
    os._exit(0)  # whatever else a library would wait for


if __name__ == "__main__":
    main(sys.argv[1], [float(each) for each in sys.argv[2:]])
