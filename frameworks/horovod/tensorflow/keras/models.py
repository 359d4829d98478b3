"""Models from disk, and collectives of values outside of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hocket.horovod.basics import Average
from hocket.horovod.tensorflow import calls, rows
from hocket.horovod.tensorflow.compression import Compression
from hocket.horovod.tensorflow.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_optimizers: Any = None, custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none, legacy_opts: bool = False,
) -> Any:  # fmt: skip
    """A saved model, with its optimizer as a DistributedOptimizer again, and the state that was saved of it."""
    known = {each.__name__: each for each in custom_optimizers or ()} | (custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known or None)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: int | None = None, compression: Any = Compression.none,
) -> Any:  # fmt: skip
    """All ranks' average (or `op`) of what a tensor can be made of."""
    how = compression, op, prescale_factor, postscale_factor
    return calls.allreduce(_tensor(value), average, "", "", *how)


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' rows."""
    return calls.allgather(_tensor(value))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Rank `root_rank`'s value."""
    return calls.broadcast(_tensor(value), root_rank)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's share of the rows of all ranks' average, or `op`."""
    return rows.reducescatter(_tensor(value), op=op)


def _tensor(value: Any) -> Any:
    return tf.constant(np.asarray(value))
