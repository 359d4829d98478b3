"""Common to the programs here: their options, ranks with a slow cable between them, and their tables."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.bench.harness.environment import describe
from hocket.collectives.measuring.cases import parse_size
from hocket.conformance.jobs.ranks import again, cabled, found_on

PATIENCE = 600.0


def arguments(module: str, doc: str | None, argv: Sequence[str] | None = None, **defaults: Any) -> Any:
    """The options that `python -m module` was given, as attributes; `doc` says what they are.

    `defaults`: by name the value of one that is not given, and so its type: False is a flag, None a text.  Whole
    numbers may be sizes, like 4M.
    """
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=doc, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    kinds: dict[type, Callable[[str], Any]] = {int: parse_size, float: float}
    for name, value in defaults.items():
        word = f"{'-' * min(2, len(name))}{name}"
        if value is False:
            made.add_argument(word, action="store_true")
        else:
            made.add_argument(word, type=kinds.get(type(value), str), default=value, help="(%(default)s)")
    return made.parse_args(argv)


def on_a_cable(module: str, rate: str, words: Sequence[object], **env: str) -> dict[str, Any]:
    """The numbers that rank 0 of `python -m module rank *words` found, with a cable of that rate between two ranks."""
    with cabled(rate, "pfifo_fast") as names:
        found, *_ = found_on(names, 1, again(module, *words), module, PATIENCE, **env)
    return found


def tell(comm: Any, found: dict[str, Any]) -> None:
    """Rank 0 says what was found."""
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def heading(columns: Sequence[str]) -> None:
    """Print the head of a table, under the machine's name."""
    about = describe()
    print(f"{about['processor']}, {about['usable_cores']} cores, load {about['load'][0]:.1f}\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def calibrated(comm: Any, seconds: float) -> int:
    """Floats whose allreduce takes so long: the median of pairs, one right behind the other."""
    n = 50_000
    for turn in range(5):
        x, found = np.ones(n, np.float32), []
        for _ in range(3 + 2 * turn):
            found.append(timed(comm, lambda x=x: [comm.allreduce(x, "avg") for _ in range(2)]) / 2)  # type: ignore[misc]
        slowest = comm.allreduce(np.array([np.median(found)]), "max")[0]
        n = max(1000, int(n * seconds / float(slowest)))
    return n


def timed(comm: Any, call: Callable[[], object]) -> float:
    """Seconds of a call that all ranks begin together."""
    comm.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
