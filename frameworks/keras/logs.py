"""Numbers that each rank has of its own data become those of all: metrics, and moving averages."""

from __future__ import annotations

import numbers
from typing import Any

import keras
import numpy as np

from hocket import Communicator
from hocket.keras import alike

WITHIN = "hocket.keras: metrics at the end of an epoch"
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def average_logs(comm: Communicator, epoch: int, logs: dict[str, Any] | None) -> None:
    """Make each metric the mean over the ranks that have it, in place.  Ranks without it get it, so all stop alike."""
    mine = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, numbers.Real)}
    told = comm.share([epoch, mine], WITHIN)
    if logs is None:
        return
    for name in dict.fromkeys(name for _, one in told for name in one):
        values = [one[name] for _, one in told if name in one]
        logs[name] = float(np.mean(values))


def average_state(comm: Communicator, model: Any) -> None:
    """Average what is not trained and differs among ranks: moving averages.  Seeds and counts stay each rank's own."""
    found = [v for v in model.non_trainable_variables if str(v.dtype) in FLOATS and not alike.is_seed(v)]
    values = [np.array(keras.ops.convert_to_numpy(each.value)) for each in found]
    apart = comm.check_equal(values) if values else {}
    chosen = [i for i in range(len(values)) if f"x[{i}]" in apart]
    if chosen:
        comm.allreduce([values[i] for i in chosen], "avg")
        for i in chosen:
            found[i].assign(values[i])
