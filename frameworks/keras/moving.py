"""Moving averages, which each rank has of its own data, become those of all."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hocket import Communicator
from hocket.keras import alike

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


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
