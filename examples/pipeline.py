"""Reading from disk, computing and averaging, one after the other and at once; and which share each of them has.

hocket run -n 2 -- python pipeline.py

Each rank reads its batches from a file, computes gradients, and averages them with all ranks.  At once: a thread reads
the next batch, and the average of a step travels while the next one computes, so it moves the weights a step later.  A
device would compute, with this core free for the rest, so here it is a sleep; on a core that also computes, nothing can
be hidden.
"""

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hocket
from hocket.training import Scheduler

STEPS, ROWS, WIDTH = 16, 512, 1024
DEVICE = 0.02  # seconds of a step
BATCH = ROWS * WIDTH * 8


def read(path, step):
    """A batch, from the disk and not from the system's cache."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, step * BATCH, BATCH, os.POSIX_FADV_DONTNEED)
    found = np.frombuffer(os.pread(file, BATCH, step * BATCH)).reshape(ROWS, WIDTH)
    os.close(file)
    return found


def gradient(w, x):
    time.sleep(DEVICE)
    return w * x.mean()


def one_by_one(comm, path, w):
    """Seconds of reading, computing and averaging, and of all."""
    seconds, began = np.zeros(3), time.perf_counter()
    for step in range(STEPS):
        times = [time.perf_counter()]
        x = read(path, step)
        times.append(time.perf_counter())
        grad = gradient(w, x)
        times.append(time.perf_counter())
        w -= 0.01 * comm.allreduce(grad, "avg")
        seconds += np.diff([*times, time.perf_counter()])
    return seconds, time.perf_counter() - began


def at_once(comm, path, w):
    """Seconds of all."""
    scheduler = Scheduler(comm, finite=False)
    scheduler.declare("w", w)
    scheduler.seal()
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as thread:
        batch = thread.submit(read, path, 0)
        for step in range(STEPS):
            x = batch.result()
            batch = thread.submit(read, path, (step + 1) % STEPS)
            grad = gradient(w, x)
            if step:
                w -= 0.01 * scheduler.wait("w")
            scheduler.ready("w", grad)
            scheduler.step()
        w -= 0.01 * scheduler.wait("w")
    return time.perf_counter() - began


if __name__ == "__main__":
    with hocket.init() as comm, tempfile.NamedTemporaryFile() as file:
        np.random.default_rng(comm.rank).normal(size=(STEPS * ROWS, WIDTH)).tofile(file.name)
        os.fsync(file.fileno())
        seconds, together = one_by_one(comm, file.name, np.ones((ROWS, WIDTH)))
        overlapped = at_once(comm, file.name, np.ones((ROWS, WIDTH)))
        found = comm.allreduce(np.array([*seconds, together, overlapped]), "max")
        if comm.rank == 0:
            reading, computing, averaging = found[:3] / found[3]
            print(f"{comm.size} ranks: reading {reading:.0%}, computing {computing:.0%}, averaging {averaging:.0%}")
            gain = f"{found[3] / found[4]:.2f} times as fast"
            print(f"one after the other {found[3]:.3f} s, at once {found[4]:.3f} s: {gain}")
