"""The laws of channel.h over MPI, in processes that mpirun has started: `laws.py alone|apart [LAW ...]`.

"alone": one process is both sides, each in a thread, and sends to itself.  "apart": two ranks, one side each; what the
laws share between their sides (results, events) travels over a communicator of the test's own.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hocket.conformance import LAWS, NotOfferedError, Pair, Side, laws
from hocket.conformance.ends import End
from hocket.transports.mpi.channel import MpiPair
from hocket.transports.mpi.library import Mpi

mpi = Mpi(MPI)
tags = iter(range(0, 30000, 4))
laws.STILL = 0.2


def side(comm: Any, peer: int, mine: int, theirs: int) -> Side:
    pair = MpiPair(mpi, comm.handle, peer, theirs, mine)
    return Side(pair.send, pair.recv, pair)


def pair_alone() -> tuple[Side, Side]:
    tag = next(tags)
    return side(ALONE, 0, tag, tag + 2), side(ALONE, 0, tag + 2, tag)


class Event:
    """threading.Event, of which one rank calls `set` and the other `wait`."""

    def set(self) -> None:
        TALK.send(None, 1 - TALK.rank, 7)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not TALK.iprobe(1 - TALK.rank, 7):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        TALK.recv(source=1 - TALK.rank, tag=7)
        return True


def both_apart(pair: Pair, first: Callable[[End], Any], second: Callable[[End], Any]) -> tuple[Any, Any]:
    rank, tag = APART.rank, next(tags)
    mine = side(APART, 1 - rank, tag, tag)
    own = End(rank, [mine if peer != rank else None for peer in range(2)])
    try:
        result = (first, second)[rank](own)
    except BaseException as error:
        result = error
    results = TALK.allgather(result)
    mine.owner.close(0.1)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return results[0], results[1]


def main(how: str, *names: str) -> None:
    chosen = [law for law in LAWS if not names or law.__name__ in names]
    if how == "apart":
        laws.both = both_apart
        laws.threading = type("threading", (), {"Event": Event, "Timer": threading.Timer})  # type: ignore[assignment]
    for law in chosen:
        start = time.monotonic()
        with contextlib.suppress(NotOfferedError):
            law(pair_alone)
        if MPI.COMM_WORLD.rank == 0:
            print(f"{law.__name__} {time.monotonic() - start:.2f}", flush=True)
    print("kept", flush=True)


if __name__ == "__main__":
    ALONE, APART, TALK = MPI.COMM_SELF.Dup(), MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
    main(*sys.argv[1:])
