"""The table from a call's text, which is all that a compiled program holds of it, to a function.

The text names the communicator and the call's parameters, and is the same in every run of a program: compiled programs
may come from JAX's cache on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from hocket import Communicator
from hocket.extending import pass_over
from hocket.jax import handler, order

TARGET = "hocket"
XLA_TYPES: dict[int, Any] = {
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16, 8: np.uint32,
    9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64, 15: np.complex64, 16: ml_dtypes.bfloat16,
    18: np.complex128, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e4m3fn,
}  # fmt: skip
"""XLA_FFI_DataType: those that hocket has."""
DTYPES = frozenset(np.dtype(each) for each in XLA_TYPES.values())
_names: dict[Communicator, str] = {}
_failed = False

handler.dtypes.update({number: np.dtype(each) for number, each in XLA_TYPES.items()})
jax.ffi.register_ffi_target(TARGET, handler.capsule(), platform="cpu")
pass_over(os.path.dirname(jax.__file__))


def name_of(comm: Communicator) -> str:
    """A communicator's name, with a number if another communicator of this process has used that before."""
    if comm not in _names:
        if _failed:  # and this one comes in place of one that cannot be used any more
            begin_anew()
        same = sum(each.name == comm.name for each in _names)
        _names[comm] = comm.name if not same else f"{comm.name}#{same + 1}"
    return _names[comm]


def has_failed() -> None:
    """A call has."""
    global _failed
    _failed = True


def begin_anew() -> None:
    """Let later calls run, though one has failed."""
    global _failed
    _failed = False
    order.forget()


def known() -> list[Communicator]:
    """All communicators that have been used here."""
    return list(_names)


def add(comm: Communicator, what: str, run: Callable[..., object]) -> str:
    """The text of a call; run(arguments, results) is called for it."""
    text = f"{name_of(comm)}: {what}"
    handler.calls[text.encode()] = run
    return text
