"""`setup(comm)`: LightGBM's collectives in this thread go over a communicator of hocket's."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
import numpy.typing as npt
from lightgbm.basic import _LIB, LightGBMError

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.lightgbm.callbacks import addresses, current
from hocket.lightgbm.halving import pairs

Bytes = npt.NDArray[np.uint8]
log = logging.getLogger("hocket")
UNUSED = (
    "rank %d: LightGBM exchanged no histogram, so this rank trained alone, or not at all: give it network.params, and "
    "train in the thread that called hocket.lightgbm.setup"
)
THROW = "_ZSt21__throw_runtime_errorPKc"
"""std::__throw_runtime_error(char const*)"""


class Network:
    """The network that `setup` returns.  `free`, or the end of a `with`, ends it."""

    def __init__(self, comm: Communicator) -> None:
        if getattr(current, "network", None) is not None:
            raise ArgumentError("this thread has a network for LightGBM already: free() it first")
        self.comm = comm.dup()
        self.rank, self.size, self.order = comm.rank, comm.size, pairs(comm.size)
        self.error: BaseException | None = None
        """The first one of hocket's calls; LightGBM's error has its text."""
        self.sums = 0
        """The number of reduce-scatters."""
        self._text = b""
        self._blocks = [np.empty(0, np.uint8)] * 2
        _begin(self)
        current.network = self

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that LightGBM needs to train on all ranks: num_machines, and tree_learner, which may be
        changed."""
        return {"num_machines": self.size, "tree_learner": "data", "pre_partition": True}

    # Calls without counts find their plan in the communicator's table, 0.4 us; those with counts make it, 70 us (two
    # ranks of an AMD EPYC).  There is one for each leaf of each tree, so blocks of like length are made equal.

    def allgather(self, mine: bytes, counts: list[int], out: memoryview) -> None:
        """For callbacks.pyx: all ranks' blocks, of counts[r] bytes."""
        x, result = np.frombuffer(mine, np.uint8), np.frombuffer(out, np.uint8)
        if min(counts) == max(counts):
            self.comm.allgather(x, result)
        else:
            self.comm.allgatherv(x, counts, result)

    def exchange(self, x: memoryview, counts: list[int]) -> Bytes:
        """For callbacks.pyx: block `rank` of all ranks' x, each at its part of what is returned.

        The memory is that of the last call.
        """
        self.sums += 1
        flat, most, mine = np.frombuffer(x, np.uint8), max(counts), counts[self.rank]
        if most * self.size > 2 * sum(counts):  # they differ too much
            return self.comm.alltoallv(flat, counts, [mine] * self.size, self._memory(1, mine))  # type: ignore[no-any-return]
        if min(counts) < most:
            flat = self._padded(flat, counts, most)
        return self.comm.alltoall(flat, self._memory(1, most))  # type: ignore[no-any-return]

    def _padded(self, flat: Bytes, counts: list[int], most: int) -> Bytes:
        made, begin = self._memory(0, most), 0
        for rank, count in enumerate(counts):
            made[rank * most : rank * most + count] = flat[begin : begin + count]
            begin += count
        return made

    def _memory(self, which: int, block: int) -> Bytes:
        """For a block of each rank."""
        if self._blocks[which].size < block * self.size:
            self._blocks[which] = np.zeros(block * self.size, np.uint8)
        return self._blocks[which][: block * self.size]

    def failed(self, error: BaseException) -> bytes:
        """For callbacks.pyx: keep it, and say what LightGBM's error is to tell."""
        if self.error is None:
            self.error = error
            self._text = f"hocket: {type(error).__name__}: {error}".encode(errors="replace").replace(b"\0", b" ")
        return self._text

    def free(self) -> None:
        """LightGBM has no network any more.  All ranks call it, in the threads that called `setup`."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        if getattr(current, "network", None) is not self:
            raise ArgumentError("this network is not the one of this thread, or was freed before")
        current.network = None
        _LIB.LGBM_NetworkFree()
        if error is None and self.size > 1 and not self.sums:
            log.warning(UNUSED, self.rank)
        self.comm.__exit__(type(error), error, None)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._leave(error)
        if self.error is not None and error is not self.error:
            raise self.error


def setup(comm: Communicator) -> Network:
    """Let LightGBM train on all ranks of `comm`, each with rows of its own.  All ranks call it.

        with hocket.lightgbm.setup(comm) as network:
            model = lightgbm.train({"objective": "binary", **network.params}, lightgbm.Dataset(x, y))

    Everything is as with LightGBM's own network: it belongs to the thread that calls this, `Dataset` (made inside, too)
    agrees on bins, and all ranks get the same model.  Validation sets have to be the same on all ranks, as each
    evaluates its own.

    LightGBM's calls use a duplicate of `comm`.  If one fails, training ends with LightGBMError on this rank, and the
    end of the `with` raises hocket's error.  A rank that leaves the `with` by an error of its own is told to the
    others.  Raises ArgumentError if the thread has such a network.

    Cost: a reduce-scatter of n bytes moves n(p-1)/p per rank, in p-1 messages; LightGBM's allgathers as hocket's.
    """
    return Network(comm)


def _begin(network: Network) -> None:
    try:
        throw = ctypes.cast(getattr(_LIB, THROW), ctypes.c_void_p).value
    except AttributeError:
        raise ArgumentError("this build of LightGBM hides its C++ library, which hocket needs for errors") from None
    scatter, gather = addresses(throw or 0)
    where = ctypes.c_void_p(scatter), ctypes.c_void_p(gather)
    if _LIB.LGBM_NetworkInitWithFunctions(network.size, network.rank, *where):
        raise LightGBMError(_LIB.LGBM_GetLastError().decode())
