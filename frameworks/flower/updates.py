"""An array's update, what a client's training adds to the array it was sent, as one of Flower's Arrays.

Its `stype` names the method, so that an update is never taken for an array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array

from hocket.codecs import Codec
from hocket.compression import decode, encode, resolved
from hocket.errors import ArgumentError

Floats = npt.NDArray[np.float32]
Method = str | Codec | Any


def name(method: Method) -> str:
    """The method's name in the Arrays' stype.  ArgumentError: it is not a method, or none that a client can do by
    itself."""
    encode(np.zeros(1, np.float32), method)
    return f"hocket.compression:{resolved(method).name}"


def is_one(array: Array) -> bool:
    """Only float32 is encoded; the rest (counters of a batch norm, say) goes as it is."""
    return bool(array.dtype == "float32" and array.stype == "numpy.ndarray" and math.prod(array.shape) > 0)


def pack(update: Floats, method: Method, key: int) -> Array:
    return Array("float32", update.shape, name(method), encode(update, method, key))


def unpack(array: Array, method: Method, base: Array) -> Array:
    """`base`, and the update that `array` is of it.  ArgumentError: it is none, or of other things."""
    if array.stype != name(method) or tuple(array.shape) != tuple(base.shape):
        raise ArgumentError(
            f"a client sent {array.stype} of shape {tuple(array.shape)}; the server expects {name(method)} of shape "
            f"{tuple(base.shape)}: give hocket.flower.encoded and Decoding the same method"
        )
    return Array(base.numpy() + decode(array.data, method, tuple(base.shape)))
