"""Reasons not to begin, in words: training would fail elsewhere, or on wrong numbers."""

from __future__ import annotations

from typing import Any

import keras

import hocket
from hocket import Communicator
from hocket.arguments import kind
from hocket.errors import ArgumentError
from hocket.keras import backends


def checked_comm(comm: Any) -> Communicator:
    """`comm`, or that of hocket.init."""
    if comm is None:
        return hocket.communicator()
    if type(comm).__name__ == "Scheduler":
        raise ArgumentError(
            "comm is a Scheduler: Keras hands over all gradients of a step at once, so there is nothing to schedule; "
            "pass its communicator"
        )
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"comm is {kind(comm)}: pass a hocket communicator")
    return comm


def no_optimizer(optimizer: Any) -> str:
    """Why this cannot be wrapped; ""."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return ""
    if isinstance(optimizer, str):
        return f"the optimizer is the text {optimizer!r}: pass keras.optimizers.get({optimizer!r})"
    return f"the optimizer is {kind(optimizer)}: pass one of keras.optimizers"


def problem(model: Any, optimizer: Any) -> str:
    """Why this model cannot be trained by all ranks; ""."""
    if not isinstance(model, keras.Model):
        return f"the model is {kind(model)}: pass a keras.Model"
    if optimizer is None:
        return "the model has no optimizer: call model.compile(optimizer=...) first, or pass it"
    if why := no_optimizer(optimizer):
        return why
    if not model.built:
        return "the model has no variables yet: call it on a batch, or model.build((None, ...)), before fit"
    if keras.distribution.distribution() is not None:
        return (
            "keras.distribution spreads the model over devices, and is not aware of hocket's ranks: leave "
            "keras.distribution.set_distribution out"
        )
    found: str = backends.of_keras().problem(model)
    return found
