"""Metrics that each rank has of its own data become those of all ranks."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from hocket import Communicator

WITHIN = "metrics at the end of an epoch"


def average_logs(comm: Communicator, epoch: int, logs: dict[str, Any] | None) -> None:
    """Make each metric the mean over the ranks that have it, in place.  Ranks without it get it, so all stop alike."""
    mine = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, numbers.Real)}
    told = comm.share([epoch, mine], WITHIN)
    if logs is None:
        return
    for name in dict.fromkeys(name for _, one in told for name in one):
        values = [one[name] for _, one in told if name in one]
        logs[name] = float(np.mean(values))
