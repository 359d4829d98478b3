"""Random orders on four ranks, and random deaths: no deadlock, exact sums, and a lost rank is named by all.

    python -m hocket.conformance.orders [--steps 100000] [--seed 0]           make orders

Each job has settings of its own, by its seed: the policy, lanes, slices, buckets, and the transport.  In each step
every rank makes its gradients ready in an order of its own, from two threads, and waits for them in another.  In every
second job a rank is killed at a random moment of a random step of the first half: the others must raise PeerLostError,
which names it and a tensor, within three seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.collectives.start.local_world import in_threads
from hocket.conformance.jobs.ranks import again, main_or_rank, on_this_machine, started
from hocket.training import Scheduler

MODULE = "hocket.conformance.orders"
RANKS = 4
SIZES = {f"layer{i}": n for i, n in enumerate([1, 10, 1000, 20_000, 100_000, 7, 50_000, 5])}
PATIENCE, NAMED = 300.0, 3.0
"""Seconds in which a job ends, and in which a lost rank is named."""


def settings(dice: random.Random) -> dict[str, Any]:
    """Draw the settings of one job."""
    return {
        "order": dice.choice(["fifo", "priority", "tic", "agreed"]), "lanes": dice.randint(1, 8),
        "slice": dice.choice([None, 4096, 65536]), "fuse": dice.choice([0, 4096, 65536]),
        "credit": dice.choice([1, 1, 2, 3]),
    }  # fmt: skip


def rank(seed: str, steps: str, dies: str, when: str) -> None:
    """`dies`: the rank that is killed, "" for none, in step `when`."""
    dice = random.Random(int(seed))
    options = settings(dice)
    with contextlib.suppress(hocket.PeerLostError), hocket.init(transport=dice.choice(["shm", "tcp"])) as comm:
        mine, done = random.Random(1000 * int(seed) + comm.rank), 0
        s = Scheduler(comm, **options)
        for name, n in SIZES.items() if options["order"] != "agreed" else ():
            s.declare(name, np.empty(n, np.float32))
        s.seal()
        try:
            for step in range(int(steps)):
                if dies == str(comm.rank) and step == int(when):
                    threading.Timer(mine.uniform(0.0, 0.01), _perish).start()
                _step(comm, s, step, mine)
                done += 1
            s.close()
        except hocket.PeerLostError as error:
            told = {"at": time.monotonic(), "ranks": error.ranks, "text": str(error), "steps": done}
            print(json.dumps(told), flush=True)
            raise
        print(json.dumps({"steps": done}), flush=True)


def _perish() -> None:
    print(json.dumps({"at": time.monotonic()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _step(comm: Any, s: Scheduler, step: int, mine: random.Random) -> None:
    grads = {name: np.full(n, comm.rank + 4 * (step % 7) + i, np.float32) for i, (name, n) in enumerate(SIZES.items())}
    names = mine.sample(list(grads), len(grads))

    def make(some: Sequence[str]) -> None:
        for name in some:
            s.ready(name, grads[name])

    in_threads(make, [names[i::2] for i in range(2)])
    s.step()
    for name in mine.sample(names, len(names)):
        s.wait(name)
    for i, grad in enumerate(grads.values()):
        assert (grad == (RANKS - 1) / 2 + 4 * (step % 7) + i).all(), f"a wrong average in step {step}"


def job(seed: int, steps: int) -> tuple[str, bool]:
    """Run one: what is wrong with it, "" if nothing is; and was a rank lost?"""
    dice = random.Random(f"death {seed}")
    dies = str(dice.randrange(RANKS)) if seed % 2 else ""
    words = again(MODULE, seed, steps, dies, dice.randrange(1, steps // 2))
    deadline = time.monotonic() + PATIENCE
    with (
        tempfile.TemporaryDirectory(prefix="hocket-orders-") as place,
        started(on_this_machine(words, RANKS, place)) as ranks,
    ):
        try:
            outs = [each.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for each in ranks]
        except subprocess.TimeoutExpired:
            return f"it has not ended in {PATIENCE:g} s", False
    told = [json.loads(out.splitlines()[-1]) if out else {} for out in outs]
    if all(each == {"steps": steps} for each in told):
        return "", False
    if not dies or "at" not in told[int(dies)]:
        return f"it failed: {told}", False
    for r, each in enumerate(told):
        if r != int(dies) and (each.get("ranks") != [int(dies)] or not each["text"].startswith("layer")):
            return f"rank {r} said {each}, when rank {dies} was killed", True
        if (late := each["at"] - told[int(dies)]["at"]) > NAMED:
            return f"rank {r} named rank {dies} after {late:.1f} s", True
    return "", True


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, allow_abbrev=False)
    made.add_argument("--steps", type=int, default=100_000, help="in all jobs together (100000)")
    made.add_argument("--each", type=int, default=1000, help="steps of a job (1000)")
    made.add_argument("--seed", type=int, default=0, help="of the first job; each next one has the next (0)")
    given = made.parse_args(argv)
    jobs = range(given.seed, given.seed + max(1, given.steps // given.each))
    wrong = kills = 0
    for seed in jobs:
        why, killed = job(seed, given.each)
        kills += killed
        if why:
            wrong += 1
            print(f"--seed {seed} --steps {given.each}: {settings(random.Random(seed))}: {why}", flush=True)
    steps = given.each * len(jobs)
    print(f"{steps} steps in {len(jobs)} jobs of {RANKS} ranks, {kills} with a kill: {wrong} went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    main_or_rank(main, rank)
