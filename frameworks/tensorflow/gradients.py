"""All ranks' gradients of a step: one py_function, inside the tf.function of the step or outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hocket import Communicator
from hocket.tensorflow.arrays import Array
from hocket.tensorflow.calls import carried, gathered, pool_of
from hocket.training.flags import Flags

Code = Callable[[list[Array], list[str], float], None]
"""Averages float32 arrays in place, by their variables' names and the learning rate."""


def averages(
    comm: Communicator, grads: Sequence[Any], variables: Sequence[Any], op: str = "avg", code: Code | None = None,
    rate: Any = 1.0,
) -> list[Any]:  # fmt: skip
    """All ranks' averages (op "sum": sums); None stays None where all ranks have none.

    IndexedSlices, which embeddings have, stay such: rows of all ranks one after the other, as in one process.
    Raises MismatchError on all ranks if some lack a gradient, or have other variables.
    """
    flags = Flags(grads, variables)
    sparse = [i for i, grad in enumerate(grads) if isinstance(grad, tf.IndexedSlices)]
    dense = {
        i: tf.zeros(variable.shape, variable.dtype) if grad is None else tf.convert_to_tensor(grad)
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)) if i not in set(sparse)
    }  # fmt: skip
    share = comm.size if op == "avg" else 1
    rows = [part for i in sparse for part in (grads[i].values / share, grads[i].indices)]
    rates = [] if code is None else [tf.cast(rate, tf.float32)]

    def run(tensors: Sequence[Any]) -> list[Array]:
        arrays: list[Array] = pool_of(comm).copies(tensors[: len(dense)])
        own = flags.values.copy()
        coded = [] if code is None else [i for i, each in enumerate(arrays) if each.dtype == np.float32]
        with flags.named():
            comm.allreduce([*(each for i, each in enumerate(arrays) if i not in coded), own], op)
        flags.check(own / (comm.size if op == "sum" else 1), comm)
        if code is not None and coded:
            names = [flags.names[each] for each in dense]
            code([arrays[i] for i in coded], [names[i] for i in coded], float(tensors[-1]))
        return [*arrays, *gathered(tensors[len(dense) : len(dense) + len(rows)], comm)]

    specs = [tf.TensorSpec(each.shape, each.dtype) for each in dense.values()]
    specs += [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in rows]
    means = iter(carried([*dense.values(), *rows, *rates], run, specs))
    found = {i: next(means) for i in dense}
    found |= {i: tf.IndexedSlices(next(means), next(means), grads[i].dense_shape) for i in sparse}
    return [None if grad is None else found[i] for i, grad in enumerate(grads)]
