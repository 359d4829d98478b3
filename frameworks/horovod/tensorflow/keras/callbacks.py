"""Callbacks for fit, of Keras 3 or Keras 2: the first values, metrics, and learning rates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hocket.errors import ArgumentError
from hocket.horovod import job
from hocket.horovod.exceptions import in_horovods_words
from hocket.horovod.tensorflow.variables import broadcast_variables
from hocket.training.logs import average_logs


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]  # TensorFlow is not looked at
    """Give rank `root_rank`'s variables of model and optimizer to all ranks, after the first batch, as Horovod does.

    `local_variables` stay each rank's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank, self.done = root_rank, False
        one = local_variables is not None and hasattr(local_variables, "assign")
        self.local = [local_variables] if one else list(local_variables or [])
        if not all(hasattr(each, "assign") for each in self.local):
            raise ArgumentError("local_variables must be variables")

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, the first time.  In Keras 3 the optimizer's variables are known only then, too."""
        if self.done:
            return
        own = {id(each) for each in self.local}
        variables = [*self.model.variables, *self.model.optimizer.variables]
        broadcast_variables([each for each in variables if id(each) not in own and _number(each)], self.root_rank)
        self.done = True


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Make the metrics of an epoch all ranks' average, for the callbacks behind it."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    @in_horovods_words()
    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the numbers in `logs`, in place."""
        average_logs(job.current().comm, epoch, logs)


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Set the learning rate to initial_lr * multiplier from `start_epoch` until before `end_epoch`.

    `multiplier`: a number, or a function of the epoch.  With `staircase` it changes at the begin of an epoch; without,
    at each batch, and the epoch is epoch + batch / steps_per_epoch.  The momentum of an optimizer is a number in Keras,
    fixed when the step is traced, so it is not corrected; a warning says so where there is one.
    """

    def __init__(
        self, initial_lr: float, multiplier: float | Callable[[Any], float], start_epoch: int = 0,
        end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ArgumentError("initial_lr: pass the learning rate that the optimizer was made with")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.staircase = True
            self.multiplier = lambda epoch: multiplier

    def on_train_begin(self, logs: Any = None) -> None:
        """Learn the number of steps."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ArgumentError("the number of steps of an epoch is unknown: pass steps_per_epoch=")
        if self.momentum_correction and getattr(self.model.optimizer, "momentum", None):
            warnings.warn("the optimizer's momentum is fixed in Keras, and not corrected with the rate", stacklevel=2)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate where it changes."""
        late = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or late:
            return
        if self.staircase and batch == 0:
            self._set(self.current_epoch)
        elif not self.staircase:
            assert self.steps_per_epoch
            self._set(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the rate as `lr`."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def _rate(self) -> float:
        return float(tf.convert_to_tensor(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from initial_lr / size to initial_lr in `warmup_epochs`, a bit at each batch.

    Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            size = job.current().comm.size
            reached = (epoch + 1.0 / self.steps_per_epoch) / warmup_epochs  # 1 behind the last batch
            return (1 + reached * (size - 1)) / size

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Say on rank 0 that the rate is reached."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose and not job.current().comm.rank:
            print(f"\nEpoch {epoch + 1}: the learning rate has reached {self._rate():g}.")


def _number(variable: Any) -> bool:
    """Not a seed: those stay each rank's own."""
    return "seed_generator" not in str(getattr(variable, "path", ""))
