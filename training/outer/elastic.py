"""`Elastic`: the members of an elastic job as a crew.  Who is lost is done without, and newcomers come in.

Nobody is left out for being late: a round waits for all members that live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.errors import MismatchError, PeerLostError
from hocket.training.outer.members import Again, Replica


class Elastic:
    """`comm`: what `hocket.init(elastic=True)` returned, or `hocket.init(join=)` on a newcomer.

    Before each round members look together whether newcomers wait, and let them in.  A loss inside a round: those who
    live go on with the state of the most advanced of them, and make the round again; who was behind drops what it has
    trained since its last round.  `least`, `timeout`: of `comm.renew`.  Cost: one allreduce of 8 bytes a round.
    """

    left_out = ()

    def __init__(self, comm: Any, *, least: int = 1, timeout: float = 10.0) -> None:
        self.comm, self.least, self.timeout = comm, least, timeout
        self._new = True
        self._stranger = comm.generation > 0

    def boundary(self, state: Replica) -> bool:
        """Let newcomers in.  True: ranks are new to each other."""
        if self._stranger:  # the members' renewal, which let this rank in, goes on with this
            self._stranger = False
            self._heal(state)
        elif not self._new and self.comm.allreduce(np.array([self.comm.waiting]), "max")[0]:
            self._renew(state)
        new, self._new = self._new, False
        return new

    @contextlib.contextmanager
    def attempt(self, state: Replica) -> Iterator[None]:
        """A loss inside the block: go on with those who live, and raise `Again`."""
        try:
            yield
        except PeerLostError as lost:
            self._renew(state)
            raise Again(f"a round was lost: {lost}") from lost

    def present(self) -> Any:
        return self.comm

    def _renew(self, state: Replica) -> None:
        """The next generation, on one state; a loss meanwhile begins it again."""
        while True:
            self.comm, self._new = self.comm.renew(least=self.least, timeout=self.timeout), True
            try:
                return self._heal(state)
            except PeerLostError:
                continue

    def _heal(self, state: Replica) -> None:
        """Who is behind takes the state of the lowest of the most advanced."""
        comm, told = self.comm, self.comm.share([state.position, state.digest()])
        positions = [position for position, _ in told]
        lead = positions.index(max(positions))
        digests = {digest: r for r, (position, digest) in enumerate(told) if position == positions[lead]}
        if len(digests) > 1:
            raise MismatchError(f"ranks {sorted(digests.values())} hold different states of one position")
        if min(positions) == max(positions):
            return
        numbers = comm.share(state.numbers() if comm.rank == lead else None)[lead]
        behind = positions[comm.rank] < positions[lead]
        own = state.arrays()
        received = own if comm.rank == lead else {name: np.empty_like(array) for name, array in own.items()}
        for array in received.values():
            comm.broadcast(array, lead)
        if behind:  # when all of it is here
            for name, array in own.items():
                array[...] = received[name]
            state.load(numbers)
