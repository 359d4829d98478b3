"""Named arrays as one vector, and back; and digests of vectors.

`Flat` takes NumPy arrays and torch tensors in host memory.  An adapter for others (`hocket.torch.training`) is a
subclass with its own `room`, or its own `read` and `write`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.arguments import kind, unmasked
from hocket.errors import ArgumentError
from hocket.extending import digest as of_bytes
from hocket.training.held import Held

Array = np.ndarray[Any, Any]
FLOATS = (np.float16, np.float32, np.float64)
EXACT = 2**53 - 1
"""The bits of a whole number that a float64 holds."""


class Flat:
    """Named arrays of floats; some of them, or all, are copied to a vector, and back.

    `arrays`: by name, NumPy arrays or torch tensors on the CPU, writable.  The vector's dtype, `dtype`, is float64 if
    all arrays are, else float32: 16-bit floats are widened, and rounded when they are written back.  float64 beside
    others is refused with ArgumentError, as are other dtypes, no arrays, and names that are no texts.

    >>> flat = Flat({"b": np.zeros(2, np.float32), "w": np.ones((1, 2), np.float32)})
    >>> flat.vector().tolist(), flat.size
    ([0.0, 0.0, 1.0, 1.0], 4)
    >>> flat.write(["w"], np.array([3, 4], np.float32))
    >>> flat.arrays["w"].tolist()
    [[3.0, 4.0]]
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if not isinstance(arrays, Mapping) or not arrays or any(not isinstance(name, str) for name in arrays):
            raise ArgumentError(f"parameters must be arrays by name, at least one; got {kind(arrays)}")
        self.held = Held(arrays)
        self.arrays = {name: self.taken(name, array) for name, array in arrays.items()}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(each.shape) for name, each in self.arrays.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.size = sum(self.sizes.values())
        self.dtype = self.widest()

    def taken(self, name: str, array: Any) -> Any:
        """The array that is kept for an array: memory that `read` and `write` know."""
        unmasked(array, f"parameter {name!r}")
        if hasattr(array, "detach"):
            try:
                array = array.detach().numpy()
            except (TypeError, RuntimeError):  # it is sparse, or on a GPU, or of a dtype that NumPy has not
                got = f"{array.dtype}, {array.layout}, on {array.device}"
                how = "hocket.torch.training.parameters(module) takes dense ones of every dtype and device"
                raise ArgumentError(f"parameter {name!r} must be of a dtype of NumPy's; got {got}: {how}") from None
        if not isinstance(array, np.ndarray) or array.dtype.type not in FLOATS or not array.flags.writeable:
            got = f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else kind(array)
            raise ArgumentError(f"parameter {name!r} must be a writable array of float16, 32 or 64; got {got}")
        return array

    def widest(self) -> np.dtype[Any]:
        """The vector's dtype."""
        double = [name for name, each in self.arrays.items() if each.dtype == np.float64]
        if double and len(double) < len(self.arrays):
            other = next(name for name in self.arrays if name not in double)
            raise ArgumentError(f"parameter {double[0]!r} is float64 and {other!r} is not: give all in one dtype")
        return np.dtype(np.float64 if double else np.float32)

    def count(self, names: Iterable[str]) -> int:
        """Elements of these arrays."""
        return sum(self.sizes[name] for name in names)

    def parts(self, names: Sequence[str], vector: Array) -> list[Array]:
        """Views of `vector`, which holds these arrays one behind the other, each in its shape."""
        ends = np.cumsum([self.sizes[name] for name in names])[:-1]
        return [part.reshape(self.shapes[name]) for name, part in zip(names, np.split(vector, ends), strict=True)]

    def read(self, names: Sequence[str], out: Array, arrays: Mapping[str, Any] | None = None) -> None:
        """Copy these arrays, or others of their names and shapes, into a vector, one behind the other."""
        source = self.arrays if arrays is None else arrays
        for name, part in zip(names, self.parts(names, out), strict=True):
            part[...] = source[name]

    def write(self, names: Sequence[str], vector: Array) -> None:
        """Copy a vector into these arrays."""
        for name, part in zip(names, self.parts(names, vector), strict=True):
            self.arrays[name][...] = part

    def piece(self, name: str, first: int, count: int) -> Array:
        """So many elements of an array, as the vector has them; to be read."""
        return np.ravel(self.arrays[name])[first : first + count].astype(self.dtype, copy=False)

    def exact(self) -> bool:
        """Do the arrays show all bits of what is written into them?"""
        return all(each.dtype == self.dtype for each in self.arrays.values())

    def rounded(self, name: str, part: Array) -> Array:
        """The values that are read again after `part` was written into this array."""
        return part.astype(self.arrays[name].dtype, copy=False).astype(self.dtype, copy=False)

    def forget(self) -> None:
        """Keep names, shapes and sizes, and no array."""
        self.arrays, self.held = {}, Held({})

    def vector(self) -> Array:
        """All arrays, in a new vector."""
        vector = np.empty(self.size, self.dtype)
        self.read([*self.arrays], vector)
        return vector


def flat(arrays: Any) -> Flat:
    """`arrays` by name as a `Flat`, or the `Flat` of an adapter as it is."""
    return arrays if isinstance(arrays, Flat) else Flat(arrays)


def digest(*arrays: Array) -> int:
    """53 bits that tell copies apart which should be the same: of XXH64 (`hocket.extending.digest`).

    >>> digest(np.zeros(2)) == digest(np.zeros(1), np.zeros(1)) != digest(np.ones(2))
    True
    """
    return of_bytes(*(np.ascontiguousarray(array).view(np.uint8) for array in arrays)) & EXACT
