"""Random programs of a Compressor: in units of what parameters move by, what was given is what came and what is owed.

Whatever the method, the shapes, the rates, how often a NaN spoils a step, and how many ranks the job has from time to
time.  What fails is told with its seed: `program(seed)` is all of it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import (
    DGC,
    FP8,
    Compressor,
    DoubleSqueeze,
    Int,
    Method,
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    Threshold,
    TopK,
    TwoBits,
)

Array = np.ndarray[Any, Any]
SHAPES = ((0,), (1,), (2, 3), (255,), (257,), (16, 17), (3, 5, 7), (64, 64), (1000,), (), (5, 0))
RATES = (1.0, 0.5, 0.1, 0.01)


class Step(NamedTuple):
    rates: list[float | None]
    """The rate of each key.  None: as in the step before."""
    calls: list[list[int]]
    """The keys, by their numbers, that go together."""
    bad: int | None
    """Whose vector has a NaN, if one has."""
    who: int
    """The rank that has it, modulo the ranks."""
    whole: bool
    """Do the calls count together?"""


class Program(NamedTuple):
    method: Method
    shapes: list[tuple[int, ...]]
    sizes: list[int]
    """The ranks of the job, which go on from each other's states."""
    steps: list[list[Step]]
    """The steps of each job."""
    scale: float
    density: float
    op: str


def method(dice: np.random.Generator) -> Method:
    """One that loses nothing but what it owes; of DGC without momentum, which makes more of what it is given."""
    half = (None, "fp16", "bf16")[dice.integers(3)]
    block = 64 * int(dice.integers(1, 5))
    codec = (Int(int(dice.integers(2, 9)), block), FP8(block), Sign(block), OneBit(block))[dice.integers(4)]
    density, chunk = float(dice.choice([0.01, 0.1, 0.5, 1])), (None, 7, 64)[dice.integers(3)]
    return (
        TopK(density, chunk, half), Threshold(float(dice.choice([0.1, 1, 3])), half), RandomK(density),
        PowerSGD(int(dice.integers(1, 4)), (None, "bf16")[dice.integers(2)]), DoubleSqueeze(codec), NonZero(block),
        DGC(density, momentum=0.0, codec=half), TwoBits(density, block),
    )[dice.integers(8)]  # fmt: skip


def program(seed: int) -> Program:
    dice = np.random.default_rng(seed)
    shapes = [SHAPES[i] for i in dice.integers(len(SHAPES), size=dice.integers(1, 5))]
    keys, jobs = range(len(shapes)), []
    for job in range(int(dice.integers(1, 4))):
        there = [key for key in keys if dice.random() < 0.8 or (job and key == 0)] or [0]  # some are new later
        steps = []
        for _ in range(int(dice.integers(1, 5))):
            cuts = sorted({0, *dice.integers(0, len(there), 2).tolist(), len(there)})
            calls = [there[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
            bad = int(dice.choice(there)) if dice.random() < 0.3 else None
            rates = [float(dice.choice(RATES)) if dice.random() < 0.9 else None for _ in keys]
            steps.append(Step(rates, calls, bad, int(dice.integers(9)), bool(dice.random() < 0.5)))
        jobs.append(steps)
    used = method(dice)
    scale = float(dice.choice([1e-3, 1, 1 if "fp16" in used.name else 1e3]))  # what is owed must not exceed 65504
    sizes = [int(size) for size in dice.integers(1, 5, len(jobs))]
    return Program(used, shapes, sizes, jobs, scale, float(dice.choice([0.1, 1])), str(dice.choice(["avg", "sum"])))


class Told(NamedTuple):
    """By a rank, of one job: all in units of what parameters move by, by key."""

    given: list[Array]
    came: list[Array]
    owed: list[Array]
    """The debt as a part of the average: all ranks' together are what is owed."""
    most: list[float]
    state: dict[str, Any]


def job(what: Program, seed: int, number: int, states: list[dict[str, Any]], comm: Communicator) -> Told:
    c, p = Compressor(comm, what.method), comm.size
    if states:
        c.load_state_dict(states)
    given, came = ([np.zeros(shape) for shape in what.shapes] for _ in range(2))
    most = [0.0] * len(what.shapes)
    for at, step in enumerate(what.steps[number]):
        dice = np.random.default_rng([seed, number, at, comm.rank])
        xs = [np.asarray(dice.standard_normal(s) * what.scale * (dice.random(s) < what.density), np.float32)
              for s in what.shapes]  # fmt: skip
        own = [x.astype(float) for x in xs]
        bad = step.bad if step.bad is not None and xs[step.bad].size else None
        if bad is not None and comm.rank == step.who % p:
            xs[bad].reshape(-1)[-1] = (np.nan, np.inf)[at % 2]
        before = c.state_dict()["entries"]
        with c.step() if step.whole else contextlib.nullcontext():
            for keys in step.calls:
                rates = [step.rates[k] or (None if before.get(str(k), {}).get("lr") else 1.0) for k in keys]
                c.allreduce_all([xs[k] for k in keys], [str(k) for k in keys], what.op, rates)
        after = c.state_dict()["entries"]
        for k in (k for keys in step.calls for k in keys):
            bits = comm.allgather(xs[k].reshape(1, -1).view(np.uint32))
            assert (bits == bits[0]).all(), "the ranks' results differ"
            spoilt = bool(np.isnan(xs[k]).any())
            if bad is not None and (k == bad or step.whole):
                assert np.isnan(xs[k]).all(), "a NaN was not everywhere"
            assert not spoilt or bad is not None, "a NaN came from nowhere"
            if spoilt or (step.whole and bad is not None):
                assert _same(before.get(str(k)), after[str(k)]), "a step with a NaN has changed what is owed"
                continue
            rate = after[str(k)]["lr"]
            given[k] += rate * own[k] / p
            came[k] += rate * xs[k] / (p if what.op == "sum" else 1)
            most[k] = max(most[k], rate * float(np.abs(own[k]).max(initial=0)))
    state = c.state_dict()
    owed = [np.zeros(shape) for shape in what.shapes]
    for k, shape in enumerate(what.shapes):
        entry = state["entries"].get(str(k))
        if entry:
            kept, rate = entry["kept"], entry["lr"] or 1.0
            whole = (entry["residual"] + kept.get("v", 0)).astype(float) / p
            if "owned" in kept:
                every = np.zeros((p, kept["owned"].size))
                every[comm.rank] = kept["owned"]
                whole += every.reshape(-1)[: whole.size].reshape(shape)
            owed[k] = rate * whole
            most[k] = max(most[k], float(np.abs(owed[k]).max(initial=0)))
    return Told(given, came, owed, most, state)


def _same(before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    """Compare the debts, and what a method keeps."""
    if before is None:
        return not after["residual"].any() and not after["kept"]
    pairs = [(before["kept"][name], array) for name, array in after["kept"].items()] if before["kept"] else []
    return all(np.array_equal(*pair) for pair in [(before["residual"], after["residual"]), *pairs])


def check(seed: int) -> None:
    what, states = program(seed), list[dict[str, Any]]()
    given, came = ([np.zeros(shape) for shape in what.shapes] for _ in range(2))
    most, steps = [1e-30] * len(what.shapes), sum(map(len, what.steps))
    for number, size in enumerate(what.sizes):
        told = hocket.local_world(size).run(partial(job, what, seed, number, states))
        states = [each.state for each in told]
        for k, shape in enumerate(what.shapes):
            given[k] += sum(each.given[k] for each in told)
            came[k] += told[0].came[k]
            owed = np.asarray(sum(each.owed[k] for each in told)).reshape(shape)
            most[k] = max(most[k], *(each.most[k] for each in told))
            off = float(np.abs(given[k] - came[k] - owed).max(initial=0))
            assert off <= 1e-5 * steps * most[k], (seed, what.method.name, k, shape, number, off, most[k])


def test_nothing_is_lost_in_random_programs() -> None:
    for seed in range(30):
        check(seed)


@pytest.mark.more
def test_nothing_is_lost_in_more_of_them() -> None:
    for seed in range(30, 300):
        check(seed)
