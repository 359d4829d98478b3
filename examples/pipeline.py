"""Disk, computation and network, one after the other and at once; and the share of each.

    HOCKET_TRANSPORT=tcp hocket run -n 2 examples/pipeline.py

Each rank reads its batches from a file, computes gradients of a layer, and averages them with all ranks.  At once: a
thread reads the next batch, and the average of a step travels while the next one is computed, so it moves the weights a
step later.  Where CuPy finds a card, the card computes, and a batch is copied there first: a stage more.
"""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hocket
from hocket.training import Scheduler

try:
    import cupy

    card = cupy if cupy.is_available() else None
except ImportError:
    card = None
STEPS, ROWS, WIDTH = 16, 256, 1024
BATCH = ROWS * WIDTH * 4
STAGES = ("reading", "copying", "computing", "averaging")


def read(path, step):
    """A batch, from the disk and not from the system's cache."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, step * BATCH, BATCH, os.POSIX_FADV_DONTNEED)
    found = np.frombuffer(os.pread(file, BATCH, step * BATCH), np.float32).reshape(ROWS, WIDTH)
    os.close(file)
    return found


def copied(x):
    """x where it is computed with."""
    return x if card is None else card.asarray(x)


def gradient(w, x):
    """The gradient of |x w - x|^2 / 2, which learns the identity."""
    found = x.T @ (x @ copied(w) - x) / ROWS
    return found if card is None else found.get()


def one_by_one(comm, path, w):
    """Seconds of each stage, and of all."""
    seconds, began = np.zeros(len(STAGES)), time.perf_counter()
    stages = (lambda step: read(path, step), copied, lambda x: gradient(w, x), lambda grad: comm.allreduce(grad, "avg"))
    for step in range(STEPS):
        made, times = step, [time.perf_counter()]
        for stage in stages:
            made = stage(made)
            times.append(time.perf_counter())
        w -= np.float32(0.1) * made
        seconds += np.diff(times)
    return seconds, time.perf_counter() - began


def at_once(comm, path, w):
    """Seconds of all."""
    scheduler = Scheduler(comm, finite=False)
    scheduler.declare("w", w)
    scheduler.seal()
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(lambda: copied(read(path, 0)))
        for step in range(STEPS):
            x = batch.result()
            batch = thread.submit(lambda step=step: copied(read(path, (step + 1) % STEPS)))
            grad = gradient(w, x)
            if step:
                w -= np.float32(0.1) * scheduler.wait("w")
            scheduler.ready("w", grad)
            scheduler.step()
        w -= np.float32(0.1) * scheduler.wait("w")
    return time.perf_counter() - began


if __name__ == "__main__":
    with hocket.init() as comm, tempfile.NamedTemporaryFile() as file:
        np.random.default_rng(comm.rank).normal(size=(STEPS * ROWS, WIDTH)).astype(np.float32).tofile(file.name)
        os.fsync(file.fileno())
        seconds, together = one_by_one(comm, file.name, np.zeros((WIDTH, WIDTH), np.float32))
        overlapped = at_once(comm, file.name, np.zeros((WIDTH, WIDTH), np.float32))
        found = comm.allreduce(np.array([*seconds, together, overlapped]), "max")
        if comm.rank == 0:
            shares = ", ".join(f"{name} {part / found[-2]:.0%}" for name, part in zip(STAGES, found, strict=False))
            print(f"{comm.size} ranks, computing on {'a card' if card else 'cores'}: {shares}")
            gain = f"{found[-2] / found[-1]:.2f} times as fast"
            print(f"one after the other {found[-2]:.3f} s, at once {found[-1]:.3f} s: {gain}")
