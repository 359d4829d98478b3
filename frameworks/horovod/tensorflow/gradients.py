"""Averages of gradients, under Horovod's options: those of a tape, and of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hocket.errors import ArgumentError
from hocket.horovod.basics import OPS, Average, Sum
from hocket.horovod.exceptions import UnsupportedError
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.basics import of_set
from hocket.horovod.tensorflow.compression import Compression
from hocket.tensorflow import gradients

LOCAL = "leave the variables that are each rank's own out of what is averaged"


class GradientReduction:
    """The way in which gradients of all ranks become one."""

    def __init__(
        self, compression: Any = Compression.none, sparse_as_dense: bool = False, op: int = Average,
        gradient_predivide_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    ) -> None:  # fmt: skip
        if op not in (Average, Sum):
            raise ArgumentError(f"op={op!r} must be hvd.Average or hvd.Sum")
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ArgumentError("gradient_predivide_factor is for op=hvd.Average")
        self.compression, self.dense, self.op, self.factor = compression, sparse_as_dense, op, gradient_predivide_factor
        self.process_set = process_set

    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """All ranks' gradients.  None stays None where all ranks have none."""
        comm = of_set(self.process_set)
        packed: list[Any] = []
        contexts: list[Any] = []
        for grad in grads:
            if self.dense and isinstance(grad, tf.IndexedSlices):
                grad = tf.convert_to_tensor(grad)
            whole = grad is not None and not isinstance(grad, tf.IndexedSlices)
            if whole and self.factor != 1:
                grad = grad / self.factor  # and the average is multiplied: Horovod's order, for float16's sake
            sent, context = self.compression.compress(grad) if whole else (grad, None)
            packed.append(sent)
            contexts.append(context)
        found = gradients.averages(comm, packed, variables, OPS[self.op])
        return [self._taken(each, context) for each, context in zip(found, contexts, strict=True)]

    def _taken(self, grad: Any, context: Any) -> Any:
        if grad is None or isinstance(grad, tf.IndexedSlices):
            return grad
        made = self.compression.decompress(grad, context)
        return made if self.factor == 1 else made * self.factor


class DistributedGradientTape:
    """A tf.GradientTape whose `gradient` is all ranks' average.

    `compression`, `sparse_as_dense`, `op` (Average or Sum) and `gradient_predivide_factor` as with Horovod; devices,
    groups and names change nothing.  IndexedSlices stay such unless `sparse_as_dense`.  All ranks call `gradient` for
    the same sources; if some lack one, all of them raise HorovodInternalError's text with variable and rank.
    """

    def __init__(
        self, gradtape: Any, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Any = None, process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True,
    ) -> None:  # fmt: skip
        self._tape = gradtape
        self._reduction = GradientReduction(compression, sparse_as_dense, op, gradient_predivide_factor, process_set)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("register_local_"):
            raise UnsupportedError(f"{name} is not there: {LOCAL}")
        return getattr(self._tape, name)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tape.__exit__(*error)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **how: Any) -> Any:
        """The tape's, averaged, in the structure of `sources`."""
        grads = tf.nest.flatten(self._tape.gradient(target, sources, output_gradients, **how))
        flat = tf.nest.flatten(sources)
        return tf.nest.pack_sequence_as(sources, self._reduction(grads, flat))
