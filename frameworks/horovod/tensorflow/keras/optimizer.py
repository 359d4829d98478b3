"""DistributedOptimizer for optimizers of Keras 3 and of Keras 2: its call that applies gradients averages them first.

The object stays what it was, with an attribute of its own, so it is saved and loaded without Horovod.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hocket.arguments import kind, whole
from hocket.errors import ArgumentError
from hocket.horovod.basics import Average
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.compression import Compression
from hocket.horovod.tensorflow.gradients import GradientReduction

SCALED = (
    "mixed_float16 puts a LossScaleOptimizer around a DistributedOptimizer, and calls it only on ranks whose own "
    "gradients are finite: wrap a LossScaleOptimizer instead, hvd.DistributedOptimizer("
    "tf.keras.mixed_precision.LossScaleOptimizer(optimizer)), or use hocket.keras.Average()"
)


def DistributedOptimizer(
    optimizer: Any, name: str | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
    op: int = Average, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
    num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:  # fmt: skip
    """Let this optimizer average all ranks' gradients before it applies them.  Returns the same object.

    `backward_passes_per_step`: so many calls are added up here, and averaged and applied by the last of them; divided
    by their number if `average_aggregated_gradients`.  The rest as with Horovod; names, devices and groups change
    nothing.  Raises ArgumentError under mixed_float16 unless it is a LossScaleOptimizer.
    """
    if not hasattr(optimizer, "apply_gradients"):
        raise ArgumentError(f"optimizer is {kind(optimizer)}: pass one of tf.keras.optimizers")
    passes = whole(backward_passes_per_step, "backward_passes_per_step")
    if passes < 1:
        raise ArgumentError(f"backward_passes_per_step={passes} must be 1 or more")
    scaling = "LossScaleOptimizer" in type(optimizer).__name__
    if tf.keras.mixed_precision.global_policy().name == "mixed_float16" and not scaling:
        raise ArgumentError(SCALED)
    reduction = GradientReduction(compression, sparse_as_dense, op, gradient_predivide_factor, process_set)
    Distributed(optimizer, reduction, passes, average_aggregated_gradients)
    return optimizer


class Distributed:
    """The state of an optimizer that averages.  In Keras 3 all goes through `apply`, in Keras 2 `apply_gradients`."""

    def __init__(self, optimizer: Any, reduction: GradientReduction, passes: int, mean: bool) -> None:
        self.optimizer, self.reduce, self.passes, self.mean = optimizer, reduction, passes, mean
        self.counter: Any = None
        """Calls since the last step, where there are several in one."""
        self.sums: list[Any] = []
        if hasattr(type(optimizer), "apply"):
            optimizer.apply = self.apply
        else:
            optimizer.apply_gradients = self.apply_gradients

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Keras 3's."""
        variables = list(trainable_variables or self.optimizer._trainable_variables)
        self._step(list(grads), variables, lambda means: type(self.optimizer).apply(self.optimizer, means, variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **how: Any) -> Any:
        """Keras 2's."""
        how.pop("experimental_aggregate_gradients", None)
        grads, variables = zip(*list(grads_and_vars), strict=True)

        def applied(means: list[Any]) -> None:
            pairs = list(zip(means, variables, strict=True))
            type(self.optimizer).apply_gradients(self.optimizer, pairs, *args, **how)

        self._step(list(grads), list(variables), applied)
        return self.optimizer.iterations

    def _step(self, grads: list[Any], variables: list[Any], applied: Any) -> None:
        if self.passes == 1:
            applied(self.reduce(grads, variables))
            return
        here = [i for i, grad in enumerate(grads) if grad is not None]
        self._prepare([variables[i] for i in here], variables)
        for total, i in zip(self.sums, here, strict=True):
            total.assign_add(tf.convert_to_tensor(grads[i]))
        self.counter.assign_add(1)

        def step() -> None:
            found: list[Any] = [None] * len(grads)
            for total, i in zip(self.sums, here, strict=True):
                found[i] = total.read_value() / (self.passes if self.mean else 1)
            applied(self.reduce(found, variables))
            for total in self.sums:
                total.assign(tf.zeros_like(total))
            self.counter.assign(0)

        def wait() -> None:
            self.optimizer.iterations.assign_add(1)

        if tf.executing_eagerly():
            step() if int(self.counter) == self.passes else wait()
            return

        def taken(branch: Any) -> Any:
            def call() -> Any:
                branch()
                return tf.constant(0)

            return call

        tf.cond(tf.equal(self.counter, self.passes), taken(step), taken(wait))

    def _prepare(self, summed: list[Any], variables: list[Any]) -> None:
        """Variables are made outside of the graph, once."""
        if self.counter is not None:
            return
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False)
            self.sums = [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in summed]
            if hasattr(self.optimizer, "build") and not getattr(self.optimizer, "built", False):
                self.optimizer.build(variables)
