"""Clocks of servers on a real model: accuracy and time of 1.07 million parameters on Fashion-MNIST.  Root.

    python -m hocket.lab.server.fashion [--rate 1gbit] [--workers 1,2,4] [--ways ...] [--seeds 1] [--steps 469] [--late]

The pictures are Debian's (dataset-fashion-mnist), 60,000 of 784 pixels; the network is 784-1024-256-10.  A server and
each worker are hosts at a switch.  A step of all workers is 128 pictures, whatever their number is; each worker sleeps
20 ms beside its own work, or with --late in one step of ten 80 ms.

    sequential          one process, by the mean of the same parts of a batch: what bsp has to be to the last digit
    bsp, ssp:2, async   hocket.torch.Served, SGD with momentum on the server; without "bsp" a worker's push counts
                        1 / workers
    downpour:adagrad    hocket.training.Downpour with n_push = n_fetch = 5 and Adagrad, on servers and workers
    downpour:sgd        the same with SGD: what Adagrad has to be better than

Rows: accuracy on 10,000 other pictures at the end, the mean and the range of all seeds; seconds of a step of all, and
until 80 % of 2,000 of these; staleness: other workers' pushes between a worker's pull and its own push.  The ranks are
this file again, with the argument `rank`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_on, hosts_may_come, main_or_rank
from hocket.lab.outer import large_batch
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.switch import switch
from hocket.training import SGD, Adagrad, Client, Downpour, Range, serve

MODULE = "hocket.lab.server.fashion"
PLACE = str(large_batch.FOLDER)
BATCH, RATE, MOMENTUM, TALKS = 128, 0.05, 0.9, 5
UNIT, LATE, OFTEN = 0.02, 4, 0.1
"""Seconds of a step beside its own work; how many of them a late one takes, and how often."""
EVERY, GOOD, SOME = 20, 0.8, 2000
WAYS = ("sequential", "bsp", "ssp:2", "async", "downpour:adagrad", "downpour:sgd")
PATIENCE = 3600.0


def pictures(place: str, kind: str) -> tuple[Any, Any]:
    """Pixels from -0.5 to 0.5, and labels, as torch has them."""
    import torch

    images, shown = large_batch.pictures(kind, Path(place))
    return torch.from_numpy(images / np.float32(255) - np.float32(0.5)), torch.from_numpy(shown)


def network(seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    nn = torch.nn
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))


class WorkerBatches:
    """A worker's batches, and what it finds."""

    def __init__(self, place: str, seed: int, workers: int, late: bool) -> None:
        self.seed, self.workers, self.late = seed, workers, late
        self.x, self.y = pictures(place, "train")
        self.others = pictures(place, "t10k")
        self.good: float | None = None
        self._spent, self._began = 0.0, time.perf_counter()

    def start(self) -> None:
        self._began = time.perf_counter()

    def backward(self, model: Any, step: int, worker: int) -> None:
        import torch

        chosen = np.random.default_rng((self.seed, step)).integers(0, len(self.x), BATCH)
        part = torch.from_numpy(chosen.reshape(self.workers, -1)[worker])
        torch.nn.functional.cross_entropy(model(self.x[part]), self.y[part]).backward()  # type: ignore[no-untyped-call]
        is_late = self.late and np.random.default_rng((self.seed, step, worker)).random() < OFTEN
        time.sleep(UNIT * (LATE if is_late else 1))

    def right(self, model: Any, count: int) -> float:
        import torch

        with torch.no_grad():
            return float((model(self.others[0][:count]).argmax(1) == self.others[1][:count]).float().mean())

    def look(self, model: Any, step: int) -> None:
        """Is it good by now?  The time of looking is not counted."""
        began = time.perf_counter()
        if self.good is None and step % EVERY == 0 and self.right(model, SOME) >= GOOD:
            self.good = began - self._began - self._spent
        self._spent += time.perf_counter() - began

    def took(self) -> float:
        return time.perf_counter() - self._began - self._spent


def rank(place: str, way: str, workers: str, seed: str, steps: str, late: str) -> None:
    """Measure; rank 0 serves and prints a line of JSON."""
    import torch

    torch.set_num_threads(1)
    count = int(workers)
    with hocket.init(timeout=PATIENCE) as comm:
        work = WorkerBatches(place, int(seed), count, late == "late") if comm.rank or way == "sequential" else None
        found: dict[str, Any] = {}
        if way == "sequential":
            found = _alone(work, int(steps)) if comm.rank == 0 else {}  # type: ignore[arg-type]
        else:
            found = _served(comm, way, work, int(seed), count, int(steps))
        said = comm.share(found)
        if comm.rank == 0:
            print(json.dumps(next(filter(None, said))))


def _alone(work: WorkerBatches, steps: int) -> dict[str, Any]:
    """All workers' gradients, their mean, and the optimizer of the servers."""
    import torch

    model, optimizer = network(work.seed), SGD(RATE, MOMENTUM)
    params = list(model.parameters())
    slots = [{"momentum": np.zeros(p.numel(), np.float32)} for p in params]
    work.start()
    for step in range(steps):
        gathered = [np.zeros(tuple(p.shape)) for p in params]
        for worker in range(work.workers):
            model.zero_grad()
            work.backward(model, step, worker)
            for total, p in zip(gathered, params, strict=True):
                total += p.grad.numpy()
        with torch.no_grad():
            for p, total, slot in zip(params, gathered, slots, strict=True):
                gradient = (total / work.workers).astype(np.float32).reshape(-1)
                optimizer.apply(p.view(-1).numpy(), gradient, slot, step + 1)
        work.look(model, step)
    return {"right": work.right(model, 10_000), "step": work.took() / steps, "good": work.good, "stale": 0.0}


def _served(comm: Any, way: str, work: WorkerBatches | None, seed: int, workers: int, steps: int) -> dict[str, Any]:
    from hocket.torch import Served

    rate = RATE if way == "bsp" else RATE / workers
    optimizer: Any = Adagrad(0.01) if way == "downpour:adagrad" else SGD(rate, 0.0 if "downpour" in way else MOMENTUM)
    tables = Served.tables(network(seed), optimizer, mean=way == "bsp", slice=1 << 17)
    tables["pushes"] = Range(1)
    if work is None:
        serve(comm, tables, on=[0], clock="async" if "downpour" in way else way).wait()
        return {}
    model = network(seed)
    with Client(comm, tables) as client:
        stale = list(_steps(way, client, model, work, optimizer, comm.rank - 1, steps))
        took = work.took()
        for _ in range(3):
            client.tick()
    if comm.rank != 1:
        return {}
    return {"right": work.right(model, 10_000), "step": took / steps, "good": work.good, "stale": mean(stale)}


def _steps(
    way: str, client: Client, model: Any, work: WorkerBatches, optimizer: Any, worker: int, steps: int
) -> Iterator[float]:  # fmt: skip
    """Train; after each step how many pushes of others came between a pull and a push."""
    from hocket.torch import Served
    from hocket.torch.training import parameters

    one, downpour, seen = np.ones(1, np.float32), None, 0.0
    if way.startswith("downpour"):
        downpour = Downpour(client, parameters(model), optimizer=copy.copy(optimizer), n_push=TALKS, n_fetch=TALKS)
    else:
        served = Served(model, client)
    work.start()
    for step in range(steps):
        model.zero_grad()
        work.backward(model, step, worker)
        now = float(client.push_pull("pushes", one)[0])
        if downpour is not None:
            downpour.step({name: p.grad for name, p in model.named_parameters()})
            client.tick()
        else:
            served.step()
        if step:  # with bsp all pushes of a clock are one
            yield max(0.0, now - seen - (work.workers if way == "bsp" else 1))
        if downpour is None or step % TALKS == TALKS - 1:
            seen = float(client.pull("pushes")[0])
        if worker == 0:
            work.look(model, step)
    if downpour is not None:
        downpour.finish()


def asked(place: str, rate: str, way: str, workers: int, seed: int, steps: int, late: bool) -> dict[str, Any]:
    words = again(MODULE, place, way, workers, seed, steps, "late" if late else "alike")
    with switch(1 if way == "sequential" else workers + 1, rate) as made:
        (found,) = found_on(made.hosts, 1, [*map(str, words)], "fashion", PATIENCE)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    o = arguments(
        MODULE, __doc__, argv, rate="1gbit", workers="1,2,4", ways=",".join(WAYS), seeds=1, steps=469, late=False,
        data=PLACE,
    )  # fmt: skip
    large_batch.pictures("t10k", Path(o.data))  # or an error
    hosts_may_come(o.rate)
    heading(("way", "workers", "accuracy", "of all seeds", "s a step", "s until 80 %", "staleness"))
    for workers in map(int, o.workers.split(",")):
        for way in o.ways.split(","):
            rows = [asked(o.data, o.rate, way, workers, seed, o.steps, o.late) for seed in range(o.seeds)]
            right = [100 * row["right"] for row in rows]
            good = [row["good"] for row in rows if row["good"] is not None]
            until = f"{mean(good):.1f}" if len(good) == len(rows) else f"{len(good)} of {len(rows)} did"
            step, stale = mean(row["step"] for row in rows), mean(row["stale"] for row in rows)
            cells = f"{mean(right):.2f} | {min(right):.2f} to {max(right):.2f} | {step:.3f} | {until} | {stale:.1f}"
            print(f"| {way} | {workers} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
