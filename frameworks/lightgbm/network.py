"""`setup(comm)`: LightGBM's collectives in this thread go over a communicator of hocket's."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
import numpy.typing as npt
from lightgbm.basic import _LIB, LightGBMError

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.lightgbm.callbacks import addresses, current
from hocket.lightgbm.halving import pairs

log = logging.getLogger("hocket")
UNUSED = (
    "rank %d: LightGBM exchanged no histogram, so this rank trained alone, or not at all: give it network.params, and "
    "train in the thread that called hocket.lightgbm.setup"
)
THROW = "_ZSt21__throw_runtime_errorPKc"
"""std::__throw_runtime_error(char const*)"""


class Network:
    """What `setup` returns.  `free`, or the end of a `with`, ends it."""

    def __init__(self, comm: Communicator) -> None:
        if getattr(current, "network", None) is not None:
            raise ArgumentError("this thread has a network for LightGBM already: free() it first")
        self.comm = comm.dup()
        self.rank, self.size, self.order = comm.rank, comm.size, pairs(comm.size)
        self.error: BaseException | None = None
        """The first one of hocket's calls; LightGBM's error has its text."""
        self.sums = 0
        """How many reduce-scatters there were."""
        self._text = b""
        self._blocks = np.empty(0, np.uint8)
        _begin(self)
        current.network = self

    @property
    def params(self) -> dict[str, Any]:
        """What LightGBM has to be told to train on all ranks: num_machines, and tree_learner, which may be changed."""
        return {"num_machines": self.size, "tree_learner": "data", "pre_partition": True}

    def allgather(self, mine: bytes, counts: list[int], out: memoryview) -> None:
        """For callbacks.pyx: all ranks' blocks, of counts[r] bytes."""
        self.comm.allgatherv(mine, counts, out)

    def exchange(self, x: memoryview, counts: list[int]) -> npt.NDArray[np.uint8]:
        """For callbacks.pyx: block `rank` of all ranks' x.  The memory is that of the last call."""
        self.sums += 1
        length = counts[self.rank]
        if self._blocks.size < length * self.size:
            self._blocks = np.empty(length * self.size, np.uint8)
        out = self._blocks[: length * self.size]
        self.comm.alltoallv(x, counts, [length] * self.size, out)
        return out

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
        raise ArgumentError("this build of LightGBM hides its C++ library, in which hocket raises errors") from None
    scatter, gather = addresses(throw or 0)
    where = ctypes.c_void_p(scatter), ctypes.c_void_p(gather)
    if _LIB.LGBM_NetworkInitWithFunctions(network.size, network.rank, *where):
        raise LightGBMError(_LIB.LGBM_GetLastError().decode())
