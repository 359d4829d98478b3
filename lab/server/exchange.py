"""A model as large as VGG-19 is pushed to a server and pulled back: by hocket, and by what others would use.

    python -m hocket.lab.server.exchange [--bytes 553430176] [--rounds 3] [--rate 1gbit]

Two processes.  Rows: memcpy (both copies in one process); plain sockets; ZMQ without copies; gRPC with one message,
with messages of 4 MB, and with a tensor that is encoded as TensorFlow's TensorProto is; mpi4py with Open MPI; `send`
and `recv` of hocket; and its server, whose table keeps what is pushed ("put").  Rows that end in "copied" are the same
ways, but what is sent was copied into a message before, and what has come is copied out of one (an answer of the server
is not copied on its side), in new memory each time, as a library does that has messages of its own.  With --rate
(root), over a cable between two hosts.  The medians of the rounds; each row checks what comes back.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import hocket
from hocket.bench.rivals.launchers import mpirun
from hocket.conformance.jobs.ranks import again, cabled, findings, found_here, found_on, main_or_rank
from hocket.errors import ArgumentError
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import V4
from hocket.training import Client, Range, serve

MODULE = "hocket.lab.server.exchange"
VGG = 4 * 138_357_544
PIECE = 4 << 20
PATIENCE = 900.0
Round = Callable[[Any, Any], None]
"""Push the first array, and pull into the second."""


class Worker:
    """A rank's arrays, and the rounds that the worker (rank 1) times."""

    def __init__(self, comm: Any, nbytes: int, rounds: int, address: str) -> None:
        self.comm, self.rounds, self.address = comm, rounds, address
        self.serves = comm is not None and comm.rank == 0
        self.x = np.arange(nbytes // 4, dtype=np.float32)
        self.back = np.zeros_like(self.x)

    def timed(self, one: Round) -> list[float]:
        seconds = []
        for _ in range(self.rounds):
            self.back[-1] = 0
            began = time.perf_counter()
            one(self.x, self.back)
            seconds.append(time.perf_counter() - began)
            if not np.array_equal(self.back, self.x):
                raise SystemExit("what came back is not what was pushed")
        return seconds

    def from_rank_0(self, value: Any) -> Any:
        """Rank 0's value, on both."""
        return self.comm.share(value)[0]


def _memcpy(w: Worker) -> list[float]:
    if w.serves:
        return []
    between = np.zeros_like(w.x)

    def one(x: Any, back: Any) -> None:
        np.copyto(between, x)
        np.copyto(back, between)

    return w.timed(one)


def _sockets(w: Worker) -> list[float]:
    if w.serves:
        with socket.create_server((w.address, 0)) as listener:
            w.from_rank_0(listener.getsockname()[1])
            with listener.accept()[0] as link:
                for _ in range(w.rounds):
                    _into(link, w.back)
                    link.sendall(w.back.data.cast("B"))
        return []
    with socket.create_connection((w.address, w.from_rank_0(None))) as link:

        def one(x: Any, back: Any) -> None:
            link.sendall(x.data.cast("B"))
            _into(link, back)

        return w.timed(one)


def _into(link: socket.socket, room: Any) -> None:
    left = room.data.cast("B")
    while len(left):
        left = left[link.recv_into(left) :]


def _zmq(w: Worker) -> list[float]:
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP if w.serves else zmq.REQ) as link:
        if w.serves:
            w.from_rank_0(link.bind_to_random_port(f"tcp://{w.address}"))
            for _ in range(w.rounds):
                link.send(link.recv(copy=False), copy=False)
            w.comm.barrier()
            return []
        link.connect(f"tcp://{w.address}:{w.from_rank_0(None)}")

        def one(x: Any, back: Any) -> None:
            link.send(x, copy=False)
            np.copyto(back, np.frombuffer(link.recv(copy=False).buffer, np.float32))

        seconds = w.timed(one)
        w.comm.barrier()
        return seconds


ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def _grpc(w: Worker, piece: int, encoded: bool) -> list[float]:
    import grpc

    if w.serves:
        kept: dict[int, bytes] = {}

        def push(asked: bytes, _: object) -> bytes:
            kept[int.from_bytes(asked[:8], "little")] = _decoded(asked[8:]) if encoded else asked[8:]
            return b""

        def pull(asked: bytes, _: object) -> bytes:
            data = kept[int.from_bytes(asked[:8], "little")]
            return _encoded(data) if encoded else data

        server = grpc.server(ThreadPoolExecutor(2), options=ANY_SIZE)
        methods = {name: grpc.unary_unary_rpc_method_handler(each) for name, each in (("push", push), ("pull", pull))}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kept", methods),))
        port = server.add_insecure_port(f"{w.address}:0")
        server.start()
        w.from_rank_0(port)
        w.comm.barrier()
        server.stop(None)
        return []
    with grpc.insecure_channel(f"{w.address}:{w.from_rank_0(None)}", options=ANY_SIZE) as channel:
        push_, pull_ = channel.unary_unary("/kept/push"), channel.unary_unary("/kept/pull")

        def one(x: Any, back: Any) -> None:
            out, room = x.data.cast("B"), back.data.cast("B")
            for first in range(0, x.nbytes, piece):
                data = bytes(out[first : first + piece])
                push_(first.to_bytes(8, "little") + (_encoded(data) if encoded else data))
            for first in range(0, x.nbytes, piece):
                data = pull_(first.to_bytes(8, "little"))
                room[first : first + piece] = _decoded(data) if encoded else data

        seconds = w.timed(one)
        w.comm.barrier()
        return seconds


def _encoded(data: bytes) -> bytes:
    """The bytes of a protobuf TensorProto: its dtype, a shape of one dimension, and `tensor_content`."""
    count = _varint(len(data) // 4)
    shape = b"\x12" + _varint(len(count) + 1) + b"\x08" + count
    return b"".join([b"\x08\x01\x12", _varint(len(shape)), shape, b"\x22", _varint(len(data)), data])


def _decoded(message: bytes) -> bytes:
    at = 4 + message[3] + 1
    while message[at] & 0x80:
        at += 1
    return message[at + 1 :]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _pair(w: Worker, transport: str) -> list[float]:
    if w.serves:
        for _ in range(w.rounds):
            w.comm.recv(w.back, 1, transport=transport)
            w.comm.send(w.back, 1, transport=transport)
        return []

    def one(x: Any, back: Any) -> None:
        w.comm.send(x, 0, transport=transport)
        w.comm.recv(back, 0, transport=transport)

    return w.timed(one)


def _copied(w: Worker) -> list[float]:
    if w.serves:
        for _ in range(w.rounds):
            np.copyto(w.back, w.comm.recv(np.empty_like(w.back), 1, transport="tcp"))
            w.comm.send(w.back.copy(), 1, transport="tcp")
        return []

    def one(x: Any, back: Any) -> None:
        w.comm.send(x.copy(), 0, transport="tcp")
        np.copyto(back, w.comm.recv(np.empty_like(back), 0, transport="tcp"))

    return w.timed(one)


def _served_copied(w: Worker) -> list[float]:
    tables = {"w": Range(w.x.size, optimizer=lambda values, pushed: np.copyto(values, pushed.copy()))}
    if w.serves:
        serve(w.comm, tables, on=[0], clock="async", transport="tcp").wait()
        return []
    with Client(w.comm, tables, transport="tcp") as client:

        def one(x: Any, back: Any) -> None:
            client.push("w", x.copy())
            np.copyto(back, client.pull("w"))

        return w.timed(one)


def _served(w: Worker, transport: str) -> list[float]:
    tables = {"w": Range(w.x.size, optimizer="put")}
    if w.serves:
        serve(w.comm, tables, on=[0], clock="async", transport=transport).wait()
        return []
    with Client(w.comm, tables, transport=transport) as client:

        def one(x: Any, back: Any) -> None:
            client.push("w", x)
            client.pull("w", out=back)

        return w.timed(one)


def _mpi(w: Worker) -> list[float]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank == 0:
        for _ in range(w.rounds):
            world.Recv(w.back, 1)
            world.Send(w.back, 1)
        return world.recv(source=1)  # type: ignore[no-any-return]

    def one(x: Any, back: Any) -> None:
        world.Send(x, 0)
        world.Recv(back, 0)

    world.send(w.timed(one), 0)
    return []


ROWS: dict[str, tuple[str, Callable[[Worker], list[float]]]] = {
    "memcpy": ("", _memcpy),
    "plain sockets": ("", _sockets),
    "ZMQ": ("zmq", _zmq),
    "gRPC, one message": ("grpc", lambda w: _grpc(w, w.x.nbytes, encoded=False)),
    "gRPC, messages of 4 MB": ("grpc", lambda w: _grpc(w, PIECE, encoded=False)),
    "gRPC, encoded": ("grpc", lambda w: _grpc(w, w.x.nbytes, encoded=True)),
    "hocket, send and recv, tcp": ("", lambda w: _pair(w, "tcp")),
    "hocket, send and recv, shm": ("", lambda w: _pair(w, "shm")),
    "hocket, send and recv, tcp, copied": ("", _copied),
    "hocket, a server, tcp": ("", lambda w: _served(w, "tcp")),
    "hocket, a server, tcp, copied": ("", _served_copied),
    "hocket, a server, shm": ("", lambda w: _served(w, "shm")),
}
"""By name: the package that it needs, and what both ranks do."""
MPI_ROW = "mpi4py, Open MPI"
IN_A_HOST = {"memcpy", "hocket, send and recv, shm", "hocket, a server, shm"}
"""Rows that make no sense between hosts."""


def rank(nbytes: str, rounds: str, address: str, names: str) -> None:
    """Measure; rank 0 prints a line of JSON for each row."""
    if names == MPI_ROW:
        seconds = _mpi(Worker(None, int(nbytes), int(rounds), address))
        if seconds:
            print(json.dumps({"what": MPI_ROW, "seconds": statistics.median(seconds)}), flush=True)
        return
    with hocket.init() as comm:
        for name in names.split(";"):
            seconds = comm.share(ROWS[name][1](Worker(comm, int(nbytes), int(rounds), address)))[1]
            if comm.rank == 0:
                print(json.dumps({"what": name, "seconds": statistics.median(seconds)}), flush=True)


def installed(between_hosts: bool) -> list[str]:
    """The rows whose packages are installed."""
    names = [name for name, (package, _) in ROWS.items() if not package or importlib.util.find_spec(package)]
    return [name for name in names if not between_hosts or name not in IN_A_HOST]


def words(nbytes: int, rounds: int, address: str, names: str) -> list[str]:
    return again(MODULE, nbytes, rounds, address, names)


def asked(nbytes: int, rounds: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows inside a host, and Open MPI's if that is installed."""
    yield from found_here(words(nbytes, rounds, "127.0.0.1", ";".join(names)), 2, "exchange", PATIENCE)
    try:
        before, env = mpirun("openmpi", 2)
    except ArgumentError:
        return
    yield from findings([([*before, *words(nbytes, rounds, "", MPI_ROW)], {**os.environ, **env})], MODULE, PATIENCE)


def table(rows: Sequence[dict[str, Any]], nbytes: int) -> list[str]:
    """GB/s both ways together, and how many times as fast as each row of a baseline."""
    by = {row["what"]: row["seconds"] for row in rows}
    against = [name for name in ("memcpy", "gRPC, encoded", "gRPC, messages of 4 MB", "plain sockets") if name in by]
    lines = [f"| | s | GB/s | {' | '.join('x ' + name for name in against)} |", "|---" * (3 + len(against)) + "|"]
    for name, seconds in by.items():
        ratios = " | ".join(f"{by[each] / seconds:.2f}" for each in against)
        lines.append(f"| {name} | {seconds:.3f} | {2 * nbytes / seconds / 1e9:.2f} | {ratios} |")
    return lines


WANTED = (
    ("hocket, a server, tcp", "gRPC, encoded", 2.7),
    ("hocket, a server, tcp", "hocket, a server, tcp, copied", 1.4),
    ("hocket, send and recv, tcp", "hocket, send and recv, tcp, copied", 1.4),
    ("hocket, a server, shm", "memcpy", 0.8),
)
"""A row, what it is compared with, and how many times as fast it is to be."""
TIE = 1.1
"""The slowest row over a cable takes at most so many times as long as the fastest."""


def verdicts(rows: Sequence[dict[str, Any]], between_hosts: bool) -> list[str]:
    """The targets for the rows, and the findings."""
    by = {row["what"]: row["seconds"] for row in rows}
    if not between_hosts:
        return [f"{one}: {by[other] / by[one]:.2f} x {other} ({wanted} wanted)"
                for one, other, wanted in WANTED if one in by and other in by]  # fmt: skip
    fastest = min(by.values())
    late = [f"{name} {each / fastest:.2f}" for name, each in by.items() if each > TIE * fastest]
    return [f"times the fastest row's, where it is more than {TIE}: {', '.join(late) or 'no row'}"]


def main() -> int:
    o = arguments(MODULE, __doc__, None, bytes=VGG, rounds=3, rate=None)
    if o.rate is None:
        rows = list(asked(o.bytes, o.rounds, installed(between_hosts=False)))
    else:
        with cabled(o.rate) as names:
            line = words(o.bytes, o.rounds, V4[0], ";".join(installed(between_hosts=True)))
            rows = found_on(names, 1, line, MODULE, PATIENCE)
    heading(["push and pull", "of", f"{o.bytes / 1e6:.0f} MB"])
    print("\n".join([*table(rows, o.bytes), "", *verdicts(rows, o.rate is not None)]))
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
