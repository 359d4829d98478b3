"""Callbacks for `model.fit`: all ranks call fit, each with data of its own."""

from __future__ import annotations

from typing import Any

import keras

from hocket import Communicator
from hocket.keras import moving, refusing, starting
from hocket.training.logs import average_logs

WITHIN = "hocket.keras: the end of fit"


class Average(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not looked at
    """Train one model on all ranks: `model.fit(x, y, callbacks=[hocket.keras.Average()])`.

    Before the first step it does what `distribute` does: it compares the ranks' models, optimizers and numbers of
    steps, gives all ranks rank `root`'s values, and makes the outermost optimizer average gradients.  At the end of an
    epoch it averages metrics over the ranks that have them, and the moving averages of BatchNormalization.  So it
    stands before callbacks that read metrics (EarlyStopping, ReduceLROnPlateau).

    `comm`: hocket's communicator, by default that of `hocket.init`.  `compress`: a method of hocket.compression, for
    float32 gradients on TensorFlow and torch.  `metrics=False`: metrics stay each rank's own.

    Gradients of ranks count alike: give all ranks batches of one size.  The optimizer goes on averaging after `fit`, so
    all ranks call the next one too.  Cost of a step: an allreduce of all gradients; of an epoch: small allgathers; of
    the begin: a broadcast of model and optimizer.

    Raises on all ranks ArgumentError for what cannot work, and MismatchError where ranks differ.  An error in a step
    has the class of the backend's: `hocket.keras.cause(error)` is hocket's own.
    """

    def __init__(
        self, comm: Communicator | None = None, *, root: int = 0, compress: str | None = None, metrics: bool = True
    ) -> None:
        super().__init__()
        self.comm = None if comm is None else refusing.checked_comm(comm)
        self.root, self.compress, self.metrics = root, compress, metrics
        self._used: Communicator | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compare, broadcast, and wrap the optimizer."""
        plan = {name: (self.params or {}).get(name) for name in ("steps", "epochs")}
        plan |= {"metrics": self.metrics, "steps_per_execution": getattr(self.model, "steps_per_execution", 1)}
        self._used = starting.begin(self.model, None, self.comm, self.root, self.compress, also=plan)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average metrics and moving averages.  Ranks with other numbers of steps are told here, or in a step."""
        assert self._used is not None
        average_logs(self._used, epoch, logs if self.metrics else None)
        moving.average_state(self._used, self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Notice ranks that train on."""
        if self._used is not None:
            self._used.share("end", WITHIN)


class Broadcast(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not looked at
    """Begin with the same values on all ranks: rank `root`'s, of model and optimizer, after comparing the models.

    For a model whose optimizer is a `DistributedOptimizer`; `Average` does all of it.
    """

    def __init__(self, comm: Communicator | None = None, *, root: int = 0) -> None:
        super().__init__()
        self.comm, self.root = comm, root

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compare and broadcast; a DistributedOptimizer inside a LossScaleOptimizer is moved outside."""
        starting.begin(self.model, None, self.comm, self.root, wrap=starting.averages(self.model))


class MetricAverage(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not looked at
    """Make the metrics of an epoch those of all ranks: the mean over the ranks that have them.

    It stands before callbacks that read them.  `Average` does this, too.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        super().__init__()
        self.comm = comm

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the numbers in `logs`, in place."""
        average_logs(refusing.checked_comm(self.comm), epoch, logs)
