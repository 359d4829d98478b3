"""Steps of training where ranks, threads and neighbours outnumber the cores, on hocket and on Gloo.

    python -m hocket.bench.shared_cores [--ranks 2,4,8] [--busy 0,1,2] [--threads 1,2] [--transport shm,tcp]

Both backends are groups of the same processes and take turns, some steps at a time.  A step is a forward and backward
pass and the optimizer's step of three linear layers (0.8 million parameters) under DistributedDataParallel.  `busy`:
the number of processes that compute beside the ranks.  A step ends when its slowest rank has ended it.  CPU: all ranks
and all their threads, per step.  Switches: the involuntary ones of a rank, per step.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hocket.bench.harness import environment
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank

TURNS, STEPS = 12, 10
PATIENCE = 300.0
NAMES = ("hocket", "gloo")
HEADER = """\
| ranks | busy | threads | transport | hocket ms: median, p90, p99 | gloo | ratio: median | p90 | p99 | CPU | switches |
|---|---|---|---|---|---|---|---|---|---|---|"""


def run(ranks: int, busy: int, threads: int, transport: str, turns: int) -> dict[str, Any]:
    """Run a job; the numbers that rank 0 found.  All ranks are gone afterwards."""
    words = again("hocket.bench.shared_cores", warns=False)
    more = {"OMP_NUM_THREADS": str(threads), "HOCKET_TRANSPORT": transport, "TURNS": str(turns)}
    with _neighbours(busy):
        (found,) = found_here(words, ranks, "shared_cores", PATIENCE, GLOO_SOCKET_IFNAME="lo", **more)
        return found


@contextlib.contextmanager
def _neighbours(busy: int) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for neighbour in made:
            neighbour.kill()
            neighbour.wait()


# --------------------------------------------------------------------------------------------- a rank


def rank() -> None:
    """Measure, with the others; rank 0 prints a line of JSON."""
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    size = int(os.environ["WORLD_SIZE"])
    place = f"file://{os.environ['PLACE']}/store"
    dist.init_process_group("hocket", init_method=place, rank=int(os.environ["RANK"]), world_size=size)
    steps = {"hocket": _training(dist.group.WORLD), "gloo": _training(dist.new_group(backend="gloo"))}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    used = {name: [0.0, 0.0] for name in steps}
    for turn in range(int(os.environ["TURNS"]) + 1):  # the first warms up
        for name in NAMES if turn % 2 else reversed(NAMES):
            dist.barrier()
            before = _used()
            for _ in range(STEPS):
                begin = time.perf_counter()
                steps[name]()
                if turn:
                    seconds[name].append(time.perf_counter() - begin)
            if turn:
                used[name] = [a + b - c for a, b, c in zip(used[name], _used(), before, strict=True)]
    found = {name: _over_ranks(seconds[name], used[name]) for name in steps}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _training(group: Any) -> Callable[[], object]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    model = nn.parallel.DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(32, 256), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def _used() -> list[float]:
    """CPU seconds and involuntary switches of all of this process's threads."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return [now.ru_utime + now.ru_stime, now.ru_nivcsw]


def _over_ranks(seconds: Sequence[float], used: Sequence[float]) -> dict[str, Any]:
    """Quantiles of the slowest rank's seconds, and what a step used of all ranks' CPUs; switches of one rank."""
    import torch
    import torch.distributed as dist

    slowest, sums = torch.tensor(seconds, dtype=torch.float64), torch.tensor(used, dtype=torch.float64) / len(seconds)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(sums)
    return {
        "ms": [float(slowest.quantile(q)) * 1e3 for q in (0.5, 0.9, 0.99)],
        "cpu_ms": float(sums[0]) * 1e3,
        "switches": float(sums[1]) / dist.get_world_size(),
    }


# --------------------------------------------------------------------------------------------- the table


def line(case: Sequence[object], found: dict[str, Any]) -> str:
    ours, theirs = (found[name] for name in NAMES)
    times = [", ".join(f"{ms:.1f}" for ms in each["ms"]) for each in (ours, theirs)]
    ratios = [f"{a / b:.2f}" for a, b in zip(ours["ms"], theirs["ms"], strict=True)]
    cpu = f"{ours['cpu_ms']:.1f} / {theirs['cpu_ms']:.1f} = {ours['cpu_ms'] / theirs['cpu_ms']:.2f}"
    switches = f"{ours['switches']:.0f} / {theirs['switches']:.0f}"
    return "| " + " | ".join([*map(str, case), *times, *ratios, cpu, switches]) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    prog = "python -m hocket.bench.shared_cores"
    made = argparse.ArgumentParser(prog=prog, description=__doc__.split("\n")[0], allow_abbrev=False)
    for name, usual in (("ranks", "2,4,8"), ("busy", "0,1,2"), ("threads", "1,2"), ("transport", "shm,tcp")):
        made.add_argument(f"--{name}", default=usual, metavar="A,B", help=f"({usual})")
    made.add_argument("--turns", type=int, default=TURNS, help=f"of {STEPS} steps with each backend ({TURNS})")
    options = made.parse_args(argv)
    about = environment.describe()
    print(f"{about['processor']}, {about['usable_cores']} usable cores, load {about['load'][0]:.2f} at the start\n")
    print(HEADER)
    given = options.ranks, options.busy, options.threads
    ranks, busy, threads = ([int(n) for n in each.split(",")] for each in given)
    for case in itertools.product(ranks, busy, threads, options.transport.split(",")):
        print(line(case, run(*case, options.turns)), flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
