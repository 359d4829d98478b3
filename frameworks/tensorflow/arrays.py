"""Tensors become arrays, and arrays tensors.

TensorFlow's memory is never written: a gradient may be a constant of the graph, or share its buffer with another one.
Results lie in arrays of our own.  They are handed over by DLPack without a copy, and used again when their reference
count says that TensorFlow has dropped them.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import tensorflow as tf

import hocket
from hocket import Communicator

Array = np.ndarray[Any, Any]
SHARED = "fiucb"
"""The kinds of dtypes that DLPack has; of others bfloat16 goes by its bits, and the rest is copied."""
ALIGNED = 64
HELD = 3
"""References to an array that nobody else holds: the list's, the loop's, and the argument of getrefcount."""


def read(tensor: Any) -> Array:
    """The values of an eager tensor, where they lie, to be read only."""
    found: Array = np.asarray(tensor)
    found.flags.writeable = False  # bfloat16 comes writable
    return found


class ArrayPool:
    """Arrays for results, by shape and dtype.  Each begins on a page, so on the 64 bytes that TensorFlow asks for."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = weakref.ref(comm)
        self._arrays: dict[tuple[Any, ...], list[Array]] = defaultdict(list)

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """One that no tensor uses.  Its contents are undefined."""
        mine = self._arrays[shape, dtype]
        for each in mine:
            if sys.getrefcount(each) == HELD:
                return each
        mine.append(hocket.empty(shape, dtype, comm=self._comm()))
        return mine[-1]

    def copies(self, tensors: Any) -> list[Array]:
        """Arrays that hold these eager tensors' values."""
        found: list[Array] = []
        for tensor in tensors:
            values = read(tensor)
            found.append(self.array(values.shape, values.dtype))
            np.copyto(found[-1], values)
        return found


def handed(array: Array) -> Any:
    """A tensor of this memory, which must not be written while TensorFlow holds it; of a copy where that cannot be.

    TensorFlow ends the process if the memory does not begin on its boundary.
    """
    if array.__array_interface__["data"][0] % ALIGNED or not array.flags.c_contiguous:
        return tf.constant(array)
    if array.dtype.kind in SHARED and array.dtype.isnative:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    if array.dtype.name == "bfloat16":
        bits = tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__())
        return tf.bitcast(bits, tf.bfloat16)
    return tf.constant(array)
