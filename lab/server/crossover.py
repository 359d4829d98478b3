"""From how many bytes on is a ring better than a tree, and what does a server cost beside them?  Root.

    python -m hocket.lab.server.crossover [--ranks 4,8] [--delays 0,1] [--sizes 1000,...] [--columns ring,...]

One rank on each host, 100 Mbit/s each way at a switch, so many ms injected one way (system/namespaces/cables.py).
Milliseconds of an allreduce of float32: by each algorithm; by one server, and by as many shards as ranks, each on a
rank that works, too (all push, tick and pull under "bsp"); reduce, then broadcast; Gloo; and hocket's own choice
without a tuning.  Below a row, what the model says: the simulator's, with the latency of a ping-pong; of servers, one
way each for what is pushed and pulled.  Calls of a quarter second are made once, others up to five times; the median.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.algorithms import Link, Topology, get, simulate
from hocket.collectives.choice.fabric import Fabric, candidates
from hocket.collectives.choice.table import usual
from hocket.conformance.jobs.ranks import again, found_on, hosts_may_come, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.cables import cables
from hocket.system.namespaces.hosts import CABLE
from hocket.training import Client, Range, serve
from hocket.transports.base import Traits

MODULE = "hocket.lab.server.crossover"
RATE = 12.5e6
"""Bytes a second of a cable, each way."""
SIZES = (1_000, 10_000, 100_000, 1_000_000, 4_000_000, 16_000_000)
ALGORITHMS = {
    "ring": "ring", "recursive doubling": "recursive_doubling", "halving": "halving_doubling", "tree": "tree",
    "double tree": "double_binary_tree", "direct": "direct", "one shot": "one_shot",
}  # fmt: skip
SERVER, SHARDS, TWO, GLOO, AUTO = "1 server", "p shards", "reduce + broadcast", "Gloo", "auto"
COLUMNS = (*ALGORITHMS, SERVER, SHARDS, TWO, GLOO, AUTO)
SHORT = {"one shot": 100_000}
"""Columns that are measured up to so many bytes."""
LONG = 1_000_000
"""From so many bytes on the model is to be right."""
TURNS, BUDGET, PATIENCE = 5, 0.5, 900.0
"""Calls of a cell, at most; and seconds of them, if there is more than one."""
SOON = 0.02
"""Seconds until all ranks know when they begin."""
Call = Callable[[Any], Any]
"""An allreduce of this vector; returns the sum, or what the sum was added to."""


# --------------------------------------------------------------------------------------------- a rank


def rank(columns: str, *sizes: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each cell."""
    wanted = columns.split(",")
    with hocket.init() as comm, contextlib.ExitStack() as stack:
        _tell(comm, {"latency": _latency(comm)})
        tables = {each: Range(int(each) // 4) for each in sizes}
        calls: dict[str, Call] = {name: _by(comm, algorithm=each) for name, each in ALGORITHMS.items()}
        calls[TWO], calls[AUTO] = _reduced_and_broadcast(comm), _by(comm)
        for name, on in {SERVER: [0], SHARDS: range(comm.size)}.items():
            calls[name] = _served(stack.enter_context(_client(comm.dup(), tables, on)))
        if GLOO in wanted and importlib.util.find_spec("torch"):
            calls[GLOO] = _gloo(comm)
        for nbytes in map(int, sizes):
            for name in (each for each in wanted if each in calls and nbytes <= SHORT.get(each, nbytes)):
                seconds = _measured(comm, name, calls[name], nbytes)
                _tell(comm, {"what": name, "nbytes": nbytes, "seconds": seconds})


def _latency(comm: Any) -> float:
    """Seconds of 8 bytes one way, the median."""
    x, rounds = np.zeros(1), []
    for _ in range(50 if comm.rank < 2 else 0):
        began = time.perf_counter()
        for sender in (0, 1):
            if comm.rank == sender:
                comm.send(x, 1 - sender)
            else:
                comm.recv(x, sender)
        rounds.append(time.perf_counter() - began)
    return statistics.median(rounds) / 2 if rounds else 0.0


def _by(comm: Any, **how: Any) -> Call:
    return lambda x: comm.allreduce(x, **how)


def _reduced_and_broadcast(comm: Any) -> Call:
    def call(x: Any) -> Any:
        if comm.rank == 0:
            comm.reduce(x, 0, out=x)
        else:
            comm.reduce(x, 0)
        return comm.broadcast(x, 0)

    return call


@contextlib.contextmanager
def _client(comm: Any, tables: Mapping[str, Range], on: Sequence[int]) -> Iterator[Client]:
    if comm.rank in on:
        server = serve(comm, tables, on=on, works=True)
        with Client(server) as client:
            yield client
        server.wait()
    else:
        with Client(comm, tables) as client:
            yield client


def _served(client: Client) -> Call:
    def call(x: Any) -> Any:
        name = str(x.nbytes)
        pushed = client.push(name, x, async_op=True)
        client.tick()
        w = client.pull(name)
        pushed.wait()
        return w

    return call


def _gloo(comm: Any) -> Call:
    """Gloo of torch, between the same processes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    where = f"tcp://{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
    dist.init_process_group("gloo", init_method=where, rank=comm.rank, world_size=comm.size)

    def call(x: Any) -> Any:
        dist.all_reduce(torch.from_numpy(x))
        return x

    return call


def _measured(comm: Any, name: str, call: Call, nbytes: int) -> float:
    """Seconds from a moment when all ranks begin until the last one has the sum: the median."""
    turns = max(1, min(TURNS, int(BUDGET / predicted(name, comm.size, nbytes, 1e-3))))
    x, ends = np.zeros(nbytes // 4, np.float32), []
    if turns > 1:
        call(x)  # makes the plan and opens connections
    for _ in range(turns):
        x[:] = 0
        begins = comm.share(time.monotonic() + SOON)[0]  # all hosts have one clock
        time.sleep(max(0.0, begins - time.monotonic()))
        call(x)
        ends.append(time.monotonic() - begins)
    if turns > 1:
        x[:] = 1
        if set(np.unique(call(x))) != {comm.size}:
            raise SystemExit(f"{name}, {nbytes} bytes: not the sum")
    return float(statistics.median(comm.allreduce(np.array(ends), "max").tolist()))


def _tell(comm: Any, row: dict[str, Any]) -> None:
    if comm.rank == 0:
        print(json.dumps(row), flush=True)


# --------------------------------------------------------------------------------------------- the model


def predicted(name: str, size: int, nbytes: int, latency: float) -> float:
    """Seconds of a column's call; of Gloo those of "auto".

    >>> [round(predicted(name, 4, 4_000_000, 0) * 100) for name in ("ring", "recursive doubling", "1 server")]
    [48, 64, 192]
    """
    if name in (SERVER, SHARDS):
        share = size - 1 if name == SERVER else (size - 1) / size
        return 2 * (latency + share * nbytes / RATE)
    flat, segment = Topology(Link(latency, RATE), overhead=0.0, reduction=0.0), Traits().between_hosts
    layout = Fabric((1,) * size, "", "tcp", segment)
    calls = ("reduce", "broadcast") if name == TWO else ("allreduce",)
    named = ALGORITHMS.get(name)
    chosen = [(each, named or usual(each, nbytes, layout, candidates(each, layout)).name) for each in calls]
    return sum(simulate(get(*each), size, nbytes, flat, segment=segment).seconds for each in chosen)


def crossover(time_of: Callable[[str, float], float], sizes: Sequence[float]) -> float | None:
    """The bytes from which on a ring is faster than recursive doubling, on a logarithmic scale between two sizes.

    None: it is not faster at the last size.
    """
    gains = [math.log(time_of("recursive doubling", n) / time_of("ring", n)) for n in sizes]
    slower = [i for i, gain in enumerate(gains) if gain < 0]
    if not slower:
        return sizes[0]
    if (i := slower[-1]) == len(sizes) - 1:
        return None
    share = gains[i] / (gains[i] - gains[i + 1])
    return float(sizes[i] * (sizes[i + 1] / sizes[i]) ** share)


# --------------------------------------------------------------------------------------------- the table


class Setting(NamedTuple):
    """The measurements with so many ranks and so many ms injected."""

    size: int
    delay: float
    latency: float
    cells: dict[tuple[int, str], float]

    @classmethod
    def of(cls, size: int, delay: float, lines: Sequence[dict[str, Any]]) -> Setting:
        (first, *rest) = lines
        return cls(size, delay, first["latency"], {(each["nbytes"], each["what"]): each["seconds"] for each in rest})

    @property
    def sizes(self) -> list[int]:
        return list(dict.fromkeys(nbytes for nbytes, _ in self.cells))

    def rows(self) -> Iterator[str]:
        for nbytes in self.sizes:
            measured = [self.cells.get((nbytes, name)) for name in COLUMNS]
            said = [predicted(name, self.size, nbytes, self.latency) if (nbytes, name) in self.cells and name != GLOO
                    else None for name in COLUMNS]  # fmt: skip
            begin = f"| {self.size} | {self.delay * 1e3:g} | {nbytes / 1e3:,.0f}"
            yield f"{begin} | {' | '.join(map(_ms, measured))} |"
            yield f"| | | model | {' | '.join(map(_ms, said))} |"

    def verdicts(self) -> Iterator[str]:
        """The targets, and the findings."""
        begin = f"p = {self.size}, {self.delay * 1e3:g} ms (a ping-pong says {self.latency * 1e3:.2f}):"
        best = {n: min(t for (each, name), t in self.cells.items() if each == n and name != AUTO) for n in self.sizes}
        ratios = {n: self.cells[n, AUTO] / best[n] for n in self.sizes}
        yield f"{begin} auto / best " + ", ".join(f"{each:.2f}" for each in ratios.values())
        if all((n, GLOO) in self.cells for n in self.sizes):
            gloo = [self.cells[n, GLOO] / self.cells[n, AUTO] for n in self.sizes]
            yield f"{begin} Gloo / auto " + ", ".join(f"{each:.2f}" for each in gloo)
        for n in (n for n in self.sizes if n == 4_000_000):
            yield f"{begin} server / ring at 4 MB {self.cells[n, SERVER] / self.cells[n, 'ring'] / self.size:.2f} p"
        errors = {
            (n, name): t / predicted(name, self.size, n, self.latency) - 1
            for (n, name), t in self.cells.items() if n >= LONG and name != GLOO
        }  # fmt: skip
        if errors:
            (n, name), worst = max(errors.items(), key=lambda each: abs(each[1]))
            yield f"{begin} from 1 MB on the model is at worst {worst:+.0%} off ({name}, {n / 1e6:g} MB)"
        measured = crossover(lambda name, n: self.cells[int(n), name], self.sizes)
        fine = np.geomspace(self.sizes[0], self.sizes[-1], 49).tolist()
        said = crossover(lambda name, n: predicted(name, self.size, int(n), self.latency), fine)
        yield f"{begin} a ring is faster than recursive doubling from {_kb(measured)} on, by the model {_kb(said)}"


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.3g}" if seconds else ""


def _kb(nbytes: float | None) -> str:
    return "no size" if nbytes is None else f"{nbytes / 1e3:.0f} kB"


def asked(size: int, delay: float, sizes: Sequence[int], columns: Sequence[str] = COLUMNS) -> Setting:
    """The cells of this many ranks and seconds."""
    words = again(MODULE, ",".join(columns), *sizes)
    with cables(size, RATE, delay) as names:
        return Setting.of(size, delay, found_on(names, 1, words, "crossover", PATIENCE, HOCKET_TUNING="off"))


def main() -> int:
    o = arguments(
        MODULE, __doc__, None, ranks="4,8", delays="0,1", columns=",".join(COLUMNS), sizes=",".join(map(str, SIZES)),
    )  # fmt: skip
    hosts_may_come()
    heading(("p", "ms", "kB", *COLUMNS))
    settings = []
    for size in map(int, o.ranks.split(",")):
        for delay in map(float, o.delays.split(",")):
            settings.append(asked(size, delay / 1e3, [*map(int, o.sizes.split(","))], o.columns.split(",")))
            print("\n".join(settings[-1].rows()), flush=True)
    print("\n" + "\n\n".join("\n".join(each.verdicts()) for each in settings))
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
