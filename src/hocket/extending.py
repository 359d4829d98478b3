"""For what builds calls on hocket's, as the frameworks and `hocket.compression` do: what it needs beside the calls.

    at_once         marks a function that needs its result before it returns: it is refused inside `hocket.group()`
    outside_group   a block in which the thread is in no group: for calls whose results the block reads
    drive           drives works, and calls what their `then` was given, before the thread sleeps where it cannot
    put_off         lets works go forward in waits alone, where ranks leave no core free
    before_close    lets the call of a thread end before this rank leaves the job
    pass_over       code in this folder or file is not the user's, and no error names its lines
    hierarchical    an algorithm of two levels, for `algorithm=`: inside groups of ranks, as hosts are, and between them
    check_op        raises ArgumentError where no call reduces this dtype by this op
    fail_at_exit    this process ends with 1, if it would end with 0
    ADJOINTS        by collective, that which carries derivatives back: the law of `allgather` is `reduce_scatter`
    REDUCING        the collectives that have an op
    digest          64 bits that tell bytes apart, of contiguous buffers
    Op, PremulSum   what `op=` may be, and what `hocket.premul_sum` makes
    DTYPES          the table of dtypes: name, itemsize, kind, and what NumPy and torch call them
    TORCH_NAMES     str(tensor.dtype) of those that torch has, too
    Aside           a stream of a GPU's for a thread that works beside the caller's
    InOrder         calls that use what the last one has left on a GPU wait for it there, in whatever streams they are
    in_order        decorates the methods that are such calls
    pinned          host memory that a GPU copies while the caller goes on
    uncaptured      raises ArgumentError where an array's stream is being captured into a CUDA graph
    gpu_of          the number of the GPU that an array is on; HOST, ELSEWHERE: it is on none
    on_host, place  can NumPy see its memory?  And in words, where it is
"""

from __future__ import annotations

import numpy as np

from hocket.algorithms import CONTRACTS, hierarchical
from hocket.collectives.arrays.borrowed import Aside, InOrder, in_order, pinned, uncaptured
from hocket.collectives.arrays.buffers import describe
from hocket.collectives.arrays.places import ELSEWHERE, HOST, gpu_of, on_host, place
from hocket.collectives.base.callsite import pass_over
from hocket.collectives.base.groups import at_once, outside_group
from hocket.collectives.calls.ops import Op, PremulSum, resolve
from hocket.collectives.communicator.ending import before_close
from hocket.collectives.waiting.several import drive, put_off
from hocket.kernels.digest import digest
from hocket.kernels.dtypes import DTYPES, TORCH_NAMES
from hocket.system.exit_code import at_least

__all__ = [
    "ADJOINTS", "DTYPES", "ELSEWHERE", "HOST", "REDUCING", "TORCH_NAMES", "Aside", "InOrder", "Op", "PremulSum",
    "at_once", "before_close", "check_op", "digest", "drive", "fail_at_exit", "gpu_of", "hierarchical", "in_order",
    "on_host", "outside_group", "pass_over", "pinned", "place", "put_off", "uncaptured",
]  # fmt: skip

ADJOINTS: dict[str, str] = {name: row.adjoint for name, row in CONTRACTS.items() if row.adjoint is not None}
REDUCING = frozenset(name for name, row in CONTRACTS.items() if row.reduces)


def check_op(op: Op, dtype: np.dtype[np.generic]) -> None:
    """Raise ArgumentError unless calls reduce arrays of this dtype by `op`; it says which ops or dtypes fit.

    >>> check_op("avg", np.dtype("float32"))
    >>> check_op("band", np.dtype("float32"))
    Traceback (most recent call last):
    hocket.errors.ArgumentError: op 'band' needs integers or bool, got float32
    """
    resolve(op, describe(np.empty(0, dtype)), 1)


def fail_at_exit() -> None:
    """Let this process end with 1, if it would end with 0: what went wrong could be told to nobody else."""
    at_least(1)
