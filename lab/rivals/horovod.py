"""The cost of an allreduce by name, beside Gloo's and beside hocket's own, in the same processes in turns.

    hocket run -n 2 -- python -m hocket.lab.rivals.horovod

A call of Horovod's interface is agreed on by all ranks first: rank 0 hears of the tensor from each, and answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import hocket
import hocket.horovod.torch as hvd
from hocket.lab.program import arguments

Row = tuple[str, Callable[[], object], Callable[[], object], Callable[[], object]]


def rows(comm: hocket.Communicator) -> list[Row]:
    """The measured calls: its name, by hvd, by Gloo, by hocket without names."""
    one = torch.zeros(2)
    small = [torch.zeros(256) for _ in range(64)]
    large = torch.zeros(4 << 20)

    def each_hvd() -> None:
        for handle in [hvd.allreduce_async_(x, name=f"small.{i}", op=hvd.Sum) for i, x in enumerate(small)]:
            hvd.synchronize(handle)

    def each_gloo() -> None:
        for work in [dist.all_reduce(x, async_op=True) for x in small]:
            work.wait()

    def each_hocket() -> None:
        for x in small:
            comm.allreduce(x)

    return [
        ("8 B", lambda: hvd.allreduce_(one, name="one", op=hvd.Sum), lambda: dist.all_reduce(one),
         lambda: comm.allreduce(one)),
        ("64 tensors of 1 KiB", each_hvd, each_gloo, each_hocket),
        ("16 MiB", lambda: hvd.allreduce_(large, name="large", op=hvd.Sum), lambda: dist.all_reduce(large),
         lambda: comm.allreduce(large)),
    ]  # fmt: skip


def microseconds(call: Callable[[], object], seconds: float, comm: hocket.Communicator) -> list[float]:
    """Microseconds of each call, for about so long; equally many on all ranks."""
    began = time.perf_counter()
    call()
    once = comm.allreduce(time.perf_counter() - began, "max")
    times = []
    for _ in range(max(5, min(2000, int(seconds / once)))):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def main() -> None:
    options = arguments("hocket.lab.rivals.horovod", __doc__, None, seconds=0.5, rounds=5)
    hvd.init()
    comm = hocket.init()
    dist.init_process_group("gloo")
    if hvd.rank() == 0:
        print(f"{'microseconds, medians':24} {'hvd':>10} {'Gloo':>10} {'hocket':>10}   (the lowest tenth)")
    for name, *calls in rows(comm):
        for call in calls:
            call()
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(options.rounds):
            for call, found in zip(calls, times, strict=True):
                found += microseconds(call, options.seconds, comm)
        if hvd.rank() == 0:
            middle, low = ([sorted(found)[int(len(found) * part)] for found in times] for part in (0.5, 0.1))
            lowest = ", ".join(f"{each:.1f}" for each in low)
            print(f"{name:24} " + " ".join(f"{each:10.1f}" for each in middle) + f"   ({lowest})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
