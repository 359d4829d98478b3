"""The same model on all ranks, from the same values, with an optimizer that averages: before the first step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hocket import Communicator
from hocket.arguments import rank_in
from hocket.errors import ArgumentError
from hocket.keras import alike, backends, refusing
from hocket.keras.averaging import Averaging, averaging_of


def distribute(
    model: Any, optimizer: Any = None, comm: Communicator | None = None, *, root: int = 0, compress: str | None = None
) -> Any:
    """Let all ranks train `model` together, in a loop of one's own; in `fit` the callback `Average` does this.

    It compares the ranks' models, builds the optimizer, gives all ranks rank `root`'s values of model and optimizer,
    but for the seeds of random layers, and makes the optimizer average (as `DistributedOptimizer`).  `optimizer`: by
    default the model's.  Returns it.  In a loop of JAX call it before the variables' values are taken out.  Collective;
    cost: a broadcast of the model.

    Raises on all ranks MismatchError where models, settings or versions differ, and ArgumentError for what cannot work.
    """
    begin(model, optimizer, comm, root, compress)
    return model.optimizer if optimizer is None else optimizer


def begin(
    model: Any, optimizer: Any, comm: Communicator | None, root: int, compress: str | None = None, wrap: bool = True,
    also: dict[str, Any] | None = None,
) -> Communicator:  # fmt: skip
    """`distribute`, with `wrap=False` without the averaging.  `also`: what else all ranks must have alike."""
    comm = refusing.checked_comm(comm)
    root = rank_in(comm.size, root, "root")
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    wrong = refusing.problem(model, optimizer)
    try:
        backends.of_keras().check_compress(compress)
    except ArgumentError as error:
        wrong = wrong or str(error)
    told = {} if wrong else {**alike.describe(model, optimizer), "compress": compress, **(also or {})}
    alike.compare(comm, wrong, told)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    spread(comm, [*model.variables, *optimizer.variables], root)
    if wrap:
        _wrap(model, optimizer, comm, compress)
    return comm


def spread(comm: Communicator, variables: list[Any], root: int) -> None:
    """Give all ranks the root's values, but for seeds."""
    chosen = [each for each in variables if not alike.is_seed(each)]
    values = [np.array(keras.ops.convert_to_numpy(each.value)) for each in chosen]
    comm.broadcast(values, root)
    if comm.rank != root:
        for each, value in zip(chosen, values, strict=True):
            each.assign(value)


def averages(model: Any) -> bool:
    """Is the model's optimizer, or one inside it, a DistributedOptimizer?"""
    return getattr(model, "optimizer", None) is not None and averaging_of(model.optimizer) is not None


def _wrap(model: Any, optimizer: Any, comm: Communicator, compress: str | None) -> None:
    before = averaging_of(optimizer)
    if before is not None and compress is None:
        compress = before.compress
    if before is None or before.optimizer is not optimizer or before.comm is not comm or before.compress != compress:
        before = Averaging(comm, compress)
        before.wrap(optimizer)
        fits = optimizer is getattr(model, "optimizer", None) and model.train_function is not None
        if fits and backends.of_keras().stale:
            model.make_train_function(force=True)  # what was traced before would go on without the averages
    before.outermost = True
