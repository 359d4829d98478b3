"""`encode` and `decode`: a vector as bytes, for carriers that are not hocket's.  Each vector by itself; no state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hocket.arguments import human, kind, unmasked, whole
from hocket.codecs import Codec
from hocket.compression.choice.names import resolved
from hocket.compression.dense import Coded
from hocket.compression.memory import Array, hosted
from hocket.compression.method import Method
from hocket.compression.sparse import pairs
from hocket.compression.sparse.methods import Sparse
from hocket.errors import ArgumentError

FLOAT = np.dtype(np.float32)


def encode(x: Any, method: str | Codec | Method, key: int = 0) -> bytes:
    """The bytes that stand for x, a float32 array of any shape.

    `method`: a codec of blocks ("int8", "fp8", "int4", "sign", or one that quantizers.py makes), or "topk:..." or
    "threshold:..."; what else a `Compressor` has needs several ranks.  `key`: of the random numbers, where a codec
    rounds at random; give each call another one.

    Length: that of the codec (docs/codecs.md); of top-k 6 bytes for each element that is sent, with fp16 4.  What
    the bytes lose is x - decode(...): add it to the next x.  Raises ArgumentError: other dtypes and methods.

    >>> from hocket.compression import encode, decode
    >>> x = np.array([[4, 0.5], [-1, 0]], np.float32)
    >>> wire = encode(x, "topk:0.5")
    >>> len(wire), decode(wire, "topk:0.5", (2, 2)).tolist()
    (12, [[4.0, 0.0], [-1.0, 0.0]])
    """
    unmasked(x, "x")
    hosted(x, "encode's x")
    array = np.ascontiguousarray(x)
    if array.dtype != FLOAT:
        raise ArgumentError(f"encode takes float32, got {array.dtype}")
    flat, coder = array.reshape(-1), _alone(method)
    if isinstance(coder, Sparse):
        indices = coder.chosen(flat)
        return pairs.packed((indices, flat[indices]), 0, coder.codec).tobytes()
    return coder.encode(flat, whole(key, "key")).tobytes()


def decode(data: bytes, method: str | Codec | Method, shape: int | tuple[int, ...]) -> Array:
    """The float32 array of this shape that `data` stands for: a new one.

    `data` may come from a stranger: ArgumentError if it is not as long as the method's, or tells of elements that the
    array does not have.
    """
    count = math.prod(shape) if isinstance(shape, tuple) else whole(shape, "shape")
    coder = _alone(method)
    wire = np.frombuffer(data, np.uint8)
    if isinstance(coder, Sparse):
        floats = _scattered(wire, coder, count)
    else:
        if wire.size != coder.nbytes(count):
            wanted = human(coder.nbytes(count))
            raise ArgumentError(f"{count} floats encoded as {coder} take {wanted}, got {human(wire.size)}")
        floats = coder.decode(wire, count)
    return floats.reshape(shape)


def _scattered(wire: Array, method: Sparse, count: int) -> Array:
    size = pairs.itemsize(FLOAT, method.codec)
    if wire.size % size:
        raise ArgumentError(f"pairs of {method.name} take {size} bytes each, and {human(wire.size)} is not a multiple")
    indices, values = pairs.unpacked(wire.reshape(-1, size), FLOAT, 0, method.codec)
    if len(indices) and not 0 <= indices[0] <= indices[-1] < count:
        raise ArgumentError(f"a pair names element {indices[-1]} of {count}")
    floats = np.zeros(count, np.float32)
    floats[indices] = values
    return floats


def _alone(method: str | Codec | Method) -> Codec | Sparse:
    """The codec or sparse method that one rank can use without the others."""
    chosen = resolved(method)
    if isinstance(chosen, Coded):
        return chosen.codec
    if isinstance(chosen, Sparse):
        return chosen
    name = getattr(chosen, "name", None) or kind(chosen)
    raise ArgumentError(f"{name} cannot encode one vector; codecs of blocks, topk and threshold can")
