"""Programs that ranks run, on whichever backend KERAS_BACKEND names: `run("name")` on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import hocket
import hocket.keras

CASES: dict[str, Callable[[Any], None]] = {}
BATCH, ROWS, FEATURES = 32, 256, 16


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Runs on every rank, as function(comm)."""
    CASES[function.__name__] = function
    return function


def run(name: str) -> None:
    with hocket.init() as comm:
        CASES[name](comm)


def rows(n: int = ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, FEATURES)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(FEATURES, 1)).astype("float32"))


def small(name: str = "a") -> Any:
    return keras.Sequential([
        keras.Input((FEATURES,)), keras.layers.Dense(32, "tanh", name=name), keras.layers.Dense(1),
    ])  # fmt: skip


def weights(model: Any) -> Any:
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


def trained(comm: Any, alone: bool, model: Any = None, epochs: int = 3, data: Any = None, **compiled: Any) -> Any:
    """The model after 8 steps an epoch of Adam: on all ranks, or on this one with the whole batch."""
    keras.utils.set_random_seed(1 if alone else comm.rank + 1)
    model = small() if model is None else model()
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", **compiled})
    x, y = data or rows()
    callbacks = []
    if not alone:
        x, y = hocket.keras.shard((x, y), comm)
        callbacks = [hocket.keras.Average(comm)]
    size = 1 if alone else comm.size
    model.fit(x, y, batch_size=BATCH // size, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def same_on_all(comm: Any, model: Any) -> None:
    apart = comm.check_equal([np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables])
    assert apart == {}, apart


def near_one_process(comm: Any, tolerance: float = 1e-6, **how: Any) -> Any:
    """Trained by all ranks, a model has equal bits everywhere, and is what one process makes of the whole batch."""
    both = trained(comm, alone=False, **how)
    same_on_all(comm, both)
    if comm.rank == 0:
        apart = np.abs(weights(both) - weights(trained(comm, alone=True, **how))).max()
        assert apart < tolerance, apart
    return both


@case
def whole_batch(comm: Any) -> None:
    near_one_process(comm)
