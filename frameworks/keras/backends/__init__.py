"""The backend of Keras: what differs among the three.  Only that of the backend in use is imported.

Each module has

    averages(averaging, grads, variables)   all ranks' averages; None stays None where all ranks have none
    check_compress(compress)                raises ArgumentError where `compress=` is not there
    problem(model)                          what of this backend cannot work, in words; ""
    cause(error)                            hocket's own error behind the backend's
    stale                                   are programs compiled that must be made anew when the optimizer changes?
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from hocket.errors import ArgumentError

KNOWN = ("tensorflow", "jax", "torch")


def of_keras() -> Any:
    """The module of the backend that Keras uses."""
    name = keras.backend.backend()
    if name not in KNOWN:
        raise ArgumentError(f"KERAS_BACKEND is {name!r}, which hocket.keras does not know: use {', '.join(KNOWN)}")
    return importlib.import_module(f"hocket.keras.backends.{name}")
