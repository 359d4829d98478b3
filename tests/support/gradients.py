"""Gradients whose averages are known, for schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.collectives.communicator.communicator import Communicator

SIZES = {f"layer{i}": n for i, n in enumerate([1, 10, 0, 1000, 20_000, 100_000, 7, 300_000, 5])}

PATTERN = np.arange(max(SIZES.values()), dtype=np.float32) % 50


def gradients(comm: Communicator, step: int) -> dict[str, Any]:
    """Small whole numbers, whose averages over 1, 2 or 4 ranks are exact."""
    return {name: PATTERN[:n] * (comm.rank + 1) + step for name, n in SIZES.items()}


def averages(comm: Communicator, step: int, ranks: int | None = None) -> dict[str, Any]:
    """The averages of the first `ranks` ranks' gradients, and zeros of the others."""
    count = comm.size if ranks is None else ranks
    total = PATTERN * sum(range(1, count + 1)) + count * step
    return {name: total[:n] / np.float32(comm.size) for name, n in SIZES.items()}


def raised(call: Callable[[], object], kinds: type[BaseException] | tuple[type[BaseException], ...]) -> str:
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError("nothing was raised")
