"""`tune`: which lanes, slices, buckets and credit make a program's step short, by trying few of them.

The search is Bayesian, as ByteScheduler's: a Gaussian process of the steps measured so far says for each setting how
long a step may be, and the one with the largest expected improvement is tried next.  The process is scikit-learn's.
Random search is beside it, for those who have no scikit-learn, and to see what the model is worth.

Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP 2019, 5;
expected improvement: Jones, Schonlau, Welch, "Efficient global optimization of expensive black-box functions", 1998.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import choices, whole, wholes
from hocket.errors import ArgumentError, MismatchError


class Setting(NamedTuple):
    """Arguments of `Scheduler`: `Scheduler(comm, **setting._asdict())`."""

    lanes: int
    slice: int
    """Bytes."""
    fuse: int
    """Bytes; 0: none."""
    credit: int = 1
    """Calls of a lane that may be under way at once."""


class Tuned(NamedTuple):
    """The result of `tune`."""

    setting: Setting
    seconds: float
    """Seconds of a step with it, on the slowest rank."""
    tried: list[tuple[Setting, float]]
    """In their order; empty if the setting was kept from an earlier run."""


SPACE = tuple(
    Setting(lanes, 1 << slice, fuse and 1 << fuse, credit)
    for lanes, slice, fuse, credit in itertools.product((1, 2, 4, 8), range(16, 25), (0, *range(14, 23, 2)), (1, 2, 4))
)
"""The settings that are tried: slices of 64 KiB to 16 MiB, buckets of 16 KiB to 4 MiB."""
BEGIN = 4
"""Settings that are tried before the model says anything: far from each other."""
Array = np.ndarray[Any, Any]
Tried = Sequence[tuple[Setting, float]]
Search = Callable[[Sequence[Setting], Tried, random.Random], Setting]


def tune(
    comm: Any, measure: Callable[[Setting], float], *, job: str, path: str | None = None, steps: int = 15,
    search: str = "gaussian", space: Sequence[Setting] = SPACE, seed: int = 0,
) -> Tuned:  # fmt: skip
    """Find the setting with the shortest step.  All ranks call it together.

    `measure`: makes a scheduler with a setting, trains some steps, and returns the seconds of one, on this rank; all
    ranks are called with the same settings, and the slowest rank counts.  `steps`: settings that are tried.  `path`: a
    JSON file of rank 0's, in which the setting is kept for `job`, with so many ranks and hosts; where it is there
    already, nothing is measured.  `search`: "gaussian" (needs scikit-learn: `pip install 'hocket[tune]'`) or "random".
    ArgumentError: no such search, no library for it, a file that `tune` has not written or cannot write, or a step that
    took no time.  MismatchError: other `steps` on some rank.

    >>> import hocket
    >>> from hocket.training import tune
    >>> def far(setting):       # in the place of a training step
    ...     return 1.0 + abs(setting.slice - (1 << 20)) / (1 << 24) + setting.lanes / 100
    >>> with hocket.local_world(1) as world:
    ...     found = world.run(lambda comm: tune(comm, far, job="model", search="random", steps=30))[0]
    >>> len(found.tried), found.seconds < 1.2
    (30, True)
    """
    if search not in SEARCHES:
        raise ArgumentError(f"search={search!r} is unknown; {choices(search, SEARCHES)}")
    if whole(steps, "steps") < 1 or not space:
        raise ArgumentError(f"steps={steps} must be 1 or more, and space={space!r} must not be empty")
    space = list(dict.fromkeys(Setting(*wholes(each, "space")) for each in space))
    steps = min(steps, len(space))
    ranks = comm.share([comm.host, steps], "tune()")
    if any(row[1] != steps for row in ranks):
        raise MismatchError(f"tune(): ranks try {[row[1] for row in ranks]} settings; give all the same space, steps")
    key = f"{job}: {comm.size} ranks on {len({row[0] for row in ranks})} hosts"
    kept = comm.share(_begins(search, path, key) if comm.rank == 0 else None, "tune()")[0]
    if isinstance(kept, str):
        raise ArgumentError(kept)
    if kept is not None:
        return Tuned(Setting(*kept[:-1]), kept[-1], [])

    def cost(setting: Setting) -> float:
        took = float(measure(setting))
        slowest = float(comm.allreduce(np.array([took if 0 < took < math.inf else math.inf]), "max")[0])
        if slowest == math.inf:
            raise ArgumentError(f"tune(): measure({setting}) must return seconds above 0 on all ranks; it gave {took}")
        return slowest

    def propose(tried: Tried) -> Setting:
        mine = SEARCHES[search](space, tried, dice) if comm.rank == 0 else None
        return Setting(*comm.share(mine, "tune()")[0])

    dice = random.Random(seed)
    tried = searched(cost, propose, steps)
    setting, seconds = min(tried, key=lambda each: each[1])
    if comm.rank == 0 and path is not None:
        _keep(path, key, [*setting, seconds])
    return Tuned(setting, seconds, tried)


def searched(
    cost: Callable[[Setting], float], propose: Callable[[Tried], Setting], steps: int
) -> list[tuple[Setting, float]]:
    """Settings and their costs, one after the other."""
    tried: list[tuple[Setting, float]] = []
    for _ in range(steps):
        setting = propose(tried)
        tried.append((setting, cost(setting)))
    return tried


def at_random(space: Sequence[Setting], tried: Tried, dice: random.Random) -> Setting:
    """Any that was not tried."""
    seen = {setting for setting, _ in tried}
    return dice.choice([each for each in space if each not in seen])


def by_gaussian_process(space: Sequence[Setting], tried: Tried, dice: random.Random) -> Setting:
    """The largest expected improvement of the logarithm of the time; at first, those that are far from each other."""
    seen = {setting for setting, _ in tried}
    places = _places(space)
    left = [i for i, each in enumerate(space) if each not in seen]
    known = [i for i, each in enumerate(space) if each in seen]
    if not tried:
        return dice.choice(list(space))
    if len(tried) < BEGIN:
        apart = np.linalg.norm(places[left][:, None] - places[known][None], axis=2).min(axis=1)
        return space[left[int(apart.argmax())]]
    costs = dict(tried)
    y = np.log([costs[space[i]] for i in known])
    mean, deviation = _predicted(places[known], y, places[left])
    gain = y.min() - mean
    z = gain / np.maximum(deviation, 1e-12)
    expected = gain * _below(z) + deviation * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return space[left[int(expected.argmax())]]


SEARCHES: dict[str, Search] = {"gaussian": by_gaussian_process, "random": at_random}


def _library() -> tuple[Any, Any, Any]:
    """Gaussian processes, their kernels, and what limits their threads."""
    try:
        gaussian, kernels = (import_module(f"sklearn.gaussian_process{more}") for more in ("", ".kernels"))
        return gaussian, kernels, import_module("threadpoolctl")  # which scikit-learn needs
    except ImportError as error:
        hint = "pip install 'hocket[tune]', or search=\"random\""
        raise ArgumentError(f'search="gaussian" needs scikit-learn: {hint} ({error})') from None


def _predicted(known: Array, y: Array, left: Array) -> tuple[Array, Array]:
    """The mean and the deviation at the points that are left."""
    gaussian, kernels, threads = _library()
    shape = kernels.Matern([0.3] * known.shape[1], (0.05, 5.0), nu=2.5) + kernels.WhiteKernel(1e-3, (1e-6, 1e-1))
    process = gaussian.GaussianProcessRegressor(shape, normalize_y=True, random_state=0)
    with warnings.catch_warnings(), threads.threadpool_limits(1):  # for a few points threads cost more
        warnings.simplefilter("ignore")  # a parameter that ends at its bound is no fault
        process.fit(known, y)
        mean, deviation = process.predict(left, return_std=True)
    return mean, deviation


def _places(space: Sequence[Setting]) -> Array:
    """Settings as points of a cube, by logarithms; axes that do not vary are left out."""
    points = np.log2(1.0 + np.array(space, np.float64))
    low, high = points.min(axis=0), points.max(axis=0)
    varying = high > low
    if not varying.any():
        return np.zeros((len(space), 1))
    scaled: Array = ((points - low) / np.where(varying, high - low, 1.0))[:, varying]
    return scaled


def _below(z: Array) -> Array:
    """The normal distribution function."""
    return np.array([0.5 * (1.0 + math.erf(each / math.sqrt(2.0))) for each in z])


def _begins(search: str, path: str | None, key: str) -> Any:
    """Rank 0's, before anything is measured: the kept setting, or None; a text: why a search would be in vain."""
    kept = None if path is None else _kept(path, key)
    if kept is None and search == "gaussian":
        try:
            _library()
        except ArgumentError as error:
            return str(error)
    return kept


def _kept(path: str, key: str) -> Any:
    """The file's entry for this key: the setting, and seconds; None: nothing; a text: why it cannot be used.

    One of before there was credit has no number for it.
    """
    if os.path.exists(path):
        try:
            with open(path) as file:
                row = json.load(file).get(key)
            if row is not None and not (len(row) in (4, 5) and all(isinstance(each, int) for each in row[:-1])):
                return f"tune(): {path!r} has {row!r} for {key!r}, which is not a setting; give another path="
        except (OSError, ValueError, AttributeError, TypeError) as error:
            return f"tune(): {path!r} cannot be read as settings: {error}; give another path="
        if row is not None:
            return row
    folder = os.path.dirname(os.path.abspath(path))
    if not os.access(folder, os.W_OK):  # a long search must not be lost at its end
        return f"tune(): the folder {folder!r} cannot be written; give another path="
    return None


def _keep(path: str, key: str, row: list[Any]) -> None:
    rows: dict[str, Any] = {}
    if os.path.exists(path):
        with open(path) as file:
            rows = json.load(file)
    part = f"{path}.{os.getpid()}"
    with open(part, "w") as file:
        json.dump({**rows, key: row}, file, indent=1)
    os.replace(part, path)
