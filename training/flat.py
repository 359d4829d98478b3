"""Named arrays as one vector, and back; and digests of vectors.

`Flat` takes NumPy arrays, CuPy's, and torch tensors.  An adapter for others (`hocket.torch.training`) is a subclass
with its own `read` and `write`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.arguments import choices, kind, unmasked
from hocket.compression.memory import (
    alike,
    cast,
    contiguous,
    dtype_of,
    empty,
    fetched,
    namespace,
    numbered,
    put,
    size,
    zeros,
)
from hocket.errors import ArgumentError
from hocket.extending import digest as of_bytes
from hocket.extending import gpu_of, on_host, place
from hocket.training.held import Held

Array = Any
"""NumPy's, or one of a library's on a GPU."""
FLOATS = ("float16", "float32", "float64")
KEEP = ("gpu", "host")
EXACT = 2**53 - 1
"""The bits of a whole number that a float64 holds."""
ODD, MOST = -0x61C8864680B583EB, 1 << 22
"""2^64 over the golden ratio, as an int64; and elements that are summed together: 100 MB of whole numbers."""


class Flat:
    """Named arrays of floats; some of them, or all, are copied to a vector, and back.

    `arrays`: by name, NumPy arrays, CuPy's or torch tensors, writable.  The vector's dtype, `dtype`, is float64 if
    all arrays are, else float32: 16-bit floats are widened, and rounded when they are written back.  float64 beside
    others is refused with ArgumentError, as are other dtypes, no arrays, and names that are no texts.

    Vectors lie where the arrays do, if that is one GPU for all of them; else, and with `keep="host"`, in host memory.

    >>> flat = Flat({"b": np.zeros(2, np.float32), "w": np.ones((1, 2), np.float32)})
    >>> flat.vector().tolist(), flat.size
    ([0.0, 0.0, 1.0, 1.0], 4)
    >>> flat.write(["w"], np.array([3, 4], np.float32))
    >>> flat.arrays["w"].tolist()
    [[3.0, 4.0]]
    """

    def __init__(self, arrays: Mapping[str, Any], keep: str = "gpu") -> None:
        if keep not in KEEP:
            raise ArgumentError(f"keep={keep!r}: {choices(keep, KEEP)}")
        if not isinstance(arrays, Mapping) or not arrays or any(not isinstance(name, str) for name in arrays):
            raise ArgumentError(f"parameters must be arrays by name, at least one; got {kind(arrays)}")
        self.held = Held(arrays)
        self.arrays = {name: self.taken(name, array) for name, array in arrays.items()}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(each.shape) for name, each in self.arrays.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.size = sum(self.sizes.values())
        self.dtype = self.widest()
        there = {gpu_of(each) for each in self.arrays.values()}
        self.like: Any = None
        """An array of the GPU where vectors lie; None: in host memory."""
        if keep == "gpu" and len(there) == 1 and max(there) >= 0:
            self.like = next(iter(self.arrays.values()))
            namespace(self.like)

    def taken(self, name: str, array: Any) -> Any:
        """The array that is kept for an array: memory that `read` and `write` know."""
        unmasked(array, f"parameter {name!r}")
        there, tensor = gpu_of(array) >= 0, hasattr(array, "detach")
        if tensor:
            try:
                array = array.detach() if there and dtype_of(array) in FLOATS else array.detach().numpy()
            except (TypeError, RuntimeError):  # it is sparse, or on another device, or of a dtype that NumPy has not
                got = f"{array.dtype}, {array.layout}, on {array.device}"
                how = "hocket.torch.training.parameters(module) takes dense ones of every dtype and device"
                raise ArgumentError(f"parameter {name!r} must be of a dtype of NumPy's; got {got}: {how}") from None
        known = (there or isinstance(array, np.ndarray)) and dtype_of(array) in FLOATS
        if not known or not getattr(getattr(array, "flags", None), "writeable", True):
            got = f"{array.dtype}{tuple(array.shape)}" if there or isinstance(array, np.ndarray) else kind(array)
            raise ArgumentError(f"parameter {name!r} must be a writable array of float16, 32 or 64; got {got}")
        return array

    def widest(self) -> np.dtype[Any]:
        """The vector's dtype."""
        double = [name for name, each in self.arrays.items() if dtype_of(each) == "float64"]
        if double and len(double) < len(self.arrays):
            other = next(name for name in self.arrays if name not in double)
            raise ArgumentError(f"parameter {double[0]!r} is float64 and {other!r} is not: give all in one dtype")
        return np.dtype(np.float64 if double else np.float32)

    def stay(self) -> None:
        """Vectors lie in host memory from now on."""
        self.like = None

    def empty(self, count: int) -> Array:
        """Memory for so many elements of a vector, where those lie."""
        return np.empty(count, self.dtype) if self.like is None else empty(self.like, count, self.dtype.name)

    def zeros(self, count: int) -> Array:
        """The same, of zeros."""
        return np.zeros(count, self.dtype) if self.like is None else zeros(self.like, count, self.dtype.name)

    def elsewhere(self, array: Any) -> str:
        """In words, that an array lies where vectors on a GPU could not be read from it; "": it does not."""
        if self.like is None or gpu_of(array) == gpu_of(self.like):
            return ""
        return f"{place(array)}, the parameters {place(self.like)}"

    def count(self, names: Iterable[str]) -> int:
        """Elements of these arrays."""
        return sum(self.sizes[name] for name in names)

    def parts(self, names: Sequence[str], vector: Array) -> list[Array]:
        """Views of `vector`, which holds these arrays one behind the other, each in its shape."""
        ends = itertools.accumulate((self.sizes[name] for name in names), initial=0)
        spans = zip(names, itertools.pairwise(ends), strict=True)
        return [vector[begin:end].reshape(self.shapes[name]) for name, (begin, end) in spans]

    def read(self, names: Sequence[str], out: Array, arrays: Mapping[str, Any] | None = None) -> None:
        """Copy these arrays, or others of their names and shapes, into a vector, one behind the other."""
        source = self.arrays if arrays is None else arrays
        for name, part in zip(names, self.parts(names, out), strict=True):
            put(part, source[name])

    def write(self, names: Sequence[str], vector: Array) -> None:
        """Copy a vector into these arrays."""
        for name, part in zip(names, self.parts(names, vector), strict=True):
            put(self.arrays[name], part)

    def piece(self, name: str, first: int, count: int) -> Array:
        """So many elements of an array, as the vector has them; to be read."""
        part = self.arrays[name].reshape(-1)[first : first + count]
        return cast(fetched(part) if self.like is None else part, self.dtype.name)

    def exact(self) -> bool:
        """Do the arrays show all bits of what is written into them?"""
        return all(dtype_of(each) == self.dtype.name for each in self.arrays.values())

    def rounded(self, name: str, part: Array) -> Array:
        """The values that are read again after `part` was written into this array."""
        return cast(cast(part, dtype_of(self.arrays[name])), self.dtype.name)

    def forget(self) -> None:
        """Keep names, shapes and sizes, and no array."""
        self.arrays, self.held = {}, Held({})
        self.like = None if self.like is None else alike(self.like, 0)

    def vector(self) -> Array:
        """All arrays, in a new vector."""
        vector = self.empty(self.size)
        self.read([*self.arrays], vector)
        return vector


def flat(arrays: Any) -> Flat:
    """`arrays` by name as a `Flat`, or the `Flat` of an adapter as it is."""
    return arrays if isinstance(arrays, Flat) else Flat(arrays)


def digest(*arrays: Array) -> int:
    """53 bits that tell copies apart which should be the same: of XXH64 (`hocket.extending.digest`).

    Those of arrays on a GPU are other bits: a sum that is made there, of which the host reads 8 bytes, and waits.

    >>> digest(np.zeros(2)) == digest(np.zeros(1), np.zeros(1)) != digest(np.ones(2))
    True
    """
    here = [array for array in arrays if on_host(array)]
    there = [array for array in arrays if not on_host(array)]
    found = of_bytes(*(np.ascontiguousarray(array).view(np.uint8) for array in here)) if here or not there else 0
    return (found + int(_summed(there))) & EXACT


def _summed(arrays: Sequence[Array]) -> Any:
    """The sum of all elements' bits, each times an odd number of its place: no change of a single one is missed."""
    total, at = 0, 0
    for array in arrays:
        flat = contiguous(array).reshape(-1)
        bits = flat.view(getattr(namespace(flat), f"int{8 * flat.dtype.itemsize}"))
        for begin in range(0, size(flat), MOST):
            part = cast(bits[begin : begin + MOST], "int64")
            total = total + (part * ((numbered(part, size(part)) + at + begin) * ODD | 1)).sum()
        at += size(flat)
    return total
