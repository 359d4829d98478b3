"""Arrays in memory that every local rank has mapped: collectives on them skip the staging copies."""

from __future__ import annotations

import math
import reprlib
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from hocket.arguments import choices, kind, whole, wholes
from hocket.collectives.arrays import shared
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.start import default
from hocket.errors import ArgumentError
from hocket.errors import MemoryError as NoMemory
from hocket.kernels import dtypes

ALIGNED = 64
"""Bytes of a boundary on which arrays begin, but on no page's: NumPy's begin 16 behind one, and a copy to 1 to 31 bytes
behind in their pages is slow on some CPUs (system/copy.h)."""
LEAST, SHORTEST = 1 << 16, 1 << 12
"""Bytes of an array from which on `shared_arrays` shares it, where nobody says; and the fewest that may be said."""


def empty(
    shape: int | Sequence[int], dtype: Any = numpy.float32, *, like: Any = None, comm: Communicator | None = None
) -> Any:
    """Make an array whose memory the other local ranks can read.  Its contents are undefined.

    It is a NumPy array, or a torch tensor if `like` is one (whose dtype is then the default).  It begins on a boundary
    of 64 bytes, as TensorFlow asks of memory that it shares.  Without local ranks it is ordinary memory.  The call is
    local; the memory is given back when the array is dropped.  A rank's window holds 64 GiB of addresses.  Raises
    MemoryError.

    >>> import hocket
    >>> hocket.local_world(2).run(lambda comm: hocket.empty((2, 3)).shape)
    [(2, 3), (2, 3)]
    """
    if comm is None:
        comm = default.communicator()
    elif not isinstance(comm, Communicator):
        raise ArgumentError(f"comm is {kind(comm)}: pass a Communicator")
    comm.reporter.usable()
    if like is not None and not hasattr(like, "dtype"):
        raise ArgumentError(f"like is {kind(like)}: pass a NumPy array or a torch tensor")
    torch_like = hasattr(like, "data_ptr")
    row = _numpy_dtype(like.dtype if torch_like and dtype is numpy.float32 else dtype)
    array = _allocate(comm, _shape(shape), row)
    return _as_torch(array, like if dtype is numpy.float32 else dtype) if torch_like else array


def zeros(
    shape: int | Sequence[int], dtype: Any = numpy.float32, *, like: Any = None, comm: Communicator | None = None
) -> Any:
    """`empty`, filled with zeros."""
    array = empty(shape, dtype, like=like, comm=comm)
    array[...] = 0
    return array


class shared_arrays:
    """NumPy's own arrays in memory that all local ranks can read, from `least` bytes on: `with` this, or `on`, `off`.

    What NumPy makes then, also results of its functions and temporaries, is like an array of `empty`: broadcast,
    allgather, alltoall and the like copy once.  It is freed and used again as NumPy's own memory is; up to 256 MiB of
    freed memory are kept for the next arrays.  Where there is no shared memory (none left, no other rank on this host),
    it is ordinary memory, and `explain` says so.  Arrays stay where they are when it ends.

    NumPy keeps its handler in a context variable: threads that are started meanwhile do not have it, tasks of asyncio
    that are made meanwhile do.  What a child of fork writes is its own, and what it makes is ordinary; but it sees what
    its parent writes later, in pages that it has not written.  HOCKET_SHARED_ARRAYS=64K does this from `init` on, in
    the thread that calls it.  Raises ArgumentError.

    >>> import hocket, numpy
    >>> with hocket.init(), hocket.shared_arrays(1 << 16):
    ...     float(numpy.ones(100000).sum())
    100000.0
    """

    def __init__(self, least: int = LEAST, *, comm: Communicator | None = None) -> None:
        if comm is not None and not isinstance(comm, Communicator):
            raise ArgumentError(f"comm is {kind(comm)}: pass a Communicator")
        self.least, self.comm = whole(least, "least"), comm
        if self.least < SHORTEST:
            raise ArgumentError(f"least={least} is too short: from {SHORTEST} bytes on an array may be shared")
        self._before: Any = None

    def on(self) -> shared_arrays:
        """Begin; without shared memory this does nothing."""
        comm = default.communicator() if self.comm is None else self.comm
        comm.reporter.usable()
        window = shared.window_of(comm.world.transports.values())
        if self._before is not None:
            raise ArgumentError("it is on already: make another shared_arrays() to nest them")
        if window is not None and window.fd >= 0:
            self._before = shared.begin(window, self.least)
        return self

    def off(self) -> None:
        """End, in the thread that has begun."""
        before, self._before = self._before, None
        if before is not None:
            shared.end(before)

    def __enter__(self) -> shared_arrays:
        return self.on()

    def __exit__(self, *error: object) -> None:
        self.off()


def _shape(shape: Any) -> tuple[int, ...]:
    """`shape` as NumPy would take it: lengths, or one of them."""
    lengths = tuple(wholes(shape if isinstance(shape, Iterable) else [shape], "shape"))
    if any(n < 0 for n in lengths):
        raise ArgumentError(f"shape={shape!r} must not have a negative length")
    return lengths


def _allocate(comm: Communicator, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Any:
    nbytes = math.prod(shape) * dtype.itemsize
    window = shared.window_of(comm.world.transports.values())
    try:
        if nbytes == 0:
            return numpy.empty(shape, dtype)
        if window is None:
            raw = numpy.empty(nbytes + ALIGNED, numpy.uint8)
            start = -raw.__array_interface__["data"][0] % ALIGNED
            return raw[start : start + nbytes].view(dtype).reshape(shape)
        offset = window.alloc(nbytes + ALIGNED)
    except (MemoryError, OverflowError, ValueError) as why:  # NumPy's ValueError: too long, or too many lengths
        raise NoMemory(
            f"an array of shape {shape} takes {nbytes} bytes, which cannot be allocated ({why}): make it smaller, "
            "or drop arrays that are not needed"
        ) from None
    memory = numpy.frombuffer(window.view(offset + ALIGNED, nbytes), numpy.uint8)
    weakref.finalize(memory, window.release, offset, nbytes + ALIGNED)  # views keep `memory` alive as their base
    return memory.view(dtype).reshape(shape)


def _numpy_dtype(dtype: Any) -> numpy.dtype[Any]:
    name: Any = dtype
    if str(dtype).startswith("torch."):
        row = dtypes.from_torch_name(str(dtype))
        name = row.numpy if hasattr(numpy, row.numpy) else f"uint{8 * row.itemsize}"  # ml_dtypes need not be there
    try:
        numpy_dtype: numpy.dtype[Any] = numpy.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # SyntaxError: of a text that could be a structure
        known = (row.numpy for row in dtypes.DTYPES if row.numpy)
        raise ArgumentError(f"dtype={reprlib.repr(dtype)} is unknown; {choices(dtype, known)}") from None
    if numpy_dtype.hasobject:
        raise ArgumentError(f"dtype={dtype!r} holds Python objects, which other ranks cannot read")
    return numpy_dtype


def _as_torch(array: Any, like: Any) -> Any:
    import torch

    wanted = like.dtype if hasattr(like, "dtype") else like
    tensor = torch.from_numpy(array)
    return tensor if not isinstance(wanted, torch.dtype) or tensor.dtype == wanted else tensor.view(wanted)
