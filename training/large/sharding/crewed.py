"""A crew whose optimizer is in shards: ranks die and come, and the others go on with shards that are cut anew.

    state = CrewShards(lambda comm, states: Sharded(Adam(1e-3), comm, parameters, states=states))
    crew = Crew(hocket.init(elastic=True))
    while state.steps < steps:
        crew.boundary(state)
        try:
            with crew.attempt(state):
                sharded = state.on(crew)                # of those who are here: shards move if they are others
                sharded.step(gradients(state.steps))
                state.keep()
        except Again:
            continue

Each rank keeps its shards of the last two `keep`s, and those of another rank, on another host where there is one.  So
when one is lost, what it held is there: all go back to the last `keep` that is whole, and the shards go from those who
have them to those who want them, by `redistribute`.  No rank ever has all of them.
Cost: a `keep` sends a rank's shards once, and takes 4 times their memory.
Source: in-memory checkpoints, Wang et al., "Gemini", SOSP 2023.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket import Layout
from hocket.errors import Error
from hocket.training.flat import Array
from hocket.training.large.sharding import checkpoints
from hocket.training.outer import members

Vectors = dict[str, Array]


class StepShards(NamedTuple):
    """The shards of this rank and of another one at a step."""

    cut: str
    """A token: steps of one cut have the same shards, and follow each other."""
    step: int
    size: int
    states: list[dict[str, Any]]


class CrewShards:
    """A `Replica` in shards, for `hocket.training.Crew`.

    `make(comm, states)`: a `Sharded` of these ranks that begins with these states; None: from the start, or from a
    checkpoint.  `steps` goes back to the last `keep` when a rank is lost: choose data by it.  `position` counts rounds,
    for the crew.

    >>> import hocket, numpy as np
    >>> from hocket.training import SGD, CrewShards, Sharded
    >>> def program(comm):
    ...     theta = {"w": np.zeros(3, np.float32)}
    ...     state = CrewShards(lambda comm, states: Sharded(SGD(lr=1.0), comm, theta, states=states))
    ...     state.on(comm).step({"w": np.ones(3, np.float32)})     # a communicator is a crew that stays as it is
    ...     state.keep()
    ...     return theta["w"].tolist(), state.position
    >>> hocket.local_world(2).run(program)[1]
    ([-1.0, -1.0, -1.0], 1)
    """

    patient = True
    """The others wait for who is late, as it has shards."""

    def __init__(self, make: Callable[[Any, Sequence[dict[str, Any]] | None], Any]) -> None:
        self.make, self.position, self.steps = make, 0, 0
        self.sharded: Any = None
        self._comm: Any = None
        self._kept: list[StepShards] = []
        self._cut, self._of = "", 0
        self._copies: list[tuple[Vectors, Any]] = []
        """Memory for this rank's shards, and the plan that brings another's: of every other `keep`."""

    def on(self, crew: Any) -> Any:
        """The `Sharded` of those who have come to this round (`crew.present`).

        Raises Error on all of them, if a rank and the one that kept its shards were lost together: begin again, from a
        checkpoint.
        """
        comm = members.crew(crew).present()
        if comm is not self._comm:
            self._move(comm)
        return self.sharded

    def keep(self) -> None:
        """The round has ended; keep its shards.  All call it, after each round or after some."""
        self._keep()
        self.position, self.steps = self.position + 1, self.sharded.steps

    # --- what a crew asks

    def arrays(self) -> dict[str, Array]:
        """No array is moved from one to all."""
        return {}

    def numbers(self) -> dict[str, Any]:
        """The progress, for those behind."""
        return {"position": self.position, "steps": self.steps}

    def load(self, numbers: dict[str, Any]) -> None:
        """Take another's progress; shards come by `on`."""
        self.position, self.steps = int(numbers["position"]), int(numbers["steps"])

    # --- shards

    def _move(self, comm: Any) -> None:
        """Cut the shards anew, for these ranks."""
        told = [[each.cut, each.step, each.size, [one["rank"] for one in each.states]] for each in self._kept]
        rows = comm.share([secrets.token_hex(8), told], "CrewShards")
        chosen, lost = _newest(rows)
        if lost:
            raise Error(f"ranks {lost} are lost, and those who kept their shards: begin again, from a checkpoint")
        self._comm = None  # until all is done
        self._kept = [each for each in self._kept if (each.cut, each.step) == chosen]
        mine = [one for each in self._kept for one in each.states]
        self.sharded = self.make(comm, None if chosen is None else mine)
        self.steps = self.sharded.steps
        self._cut, self._copies = rows[0][0], self._memory()
        self._keep()
        self._comm = comm

    def _memory(self) -> list[tuple[Vectors, Any]]:
        """Twice the room for shards, and a plan that brings those of the rank whose keeper this is."""
        sharded = self.sharded
        comm, size = sharded.inside, sharded.inside.size
        apart = max(comm.share(comm.local_size, "CrewShards"))
        apart = apart if apart < size else 1
        counts = comm.share(sharded.size, "CrewShards")
        held = Layout.cut((sum(counts),), size, lengths=counts)
        kept = Layout(held.shape, [held.boxes[(rank - apart) % size] for rank in range(size)])
        self._of = (comm.rank - apart) % size
        tree = {what: [vector] for what, vector in sharded.vectors.items()}
        return [
            ({what: np.empty_like(vector) for what, vector in sharded.vectors.items()},
             comm.prepare_redistribute(tree, held, kept))
            for _ in range(2)
        ]  # fmt: skip

    def _keep(self) -> None:
        sharded, (own, plan) = self.sharded, self._copies[0]
        self._kept = self._kept[-1:]  # the memory of the one before is written now
        for what, vector in sharded.vectors.items():
            own[what][...] = vector
        other = {what: arrays[0] for what, arrays in plan().items()}
        found = [checkpoints.saved(sharded, sharded.inside.rank, own), checkpoints.saved(sharded, self._of, other)]
        self._kept.append(StepShards(self._cut, sharded.steps, sharded.inside.size, found))
        self._copies.reverse()


def _newest(rows: Sequence[Any]) -> tuple[tuple[str, int] | None, list[int]]:
    """The cut and the step that all go on from, None if nobody has kept any; or the ranks whose shards are lost."""
    there: dict[tuple[int, str], set[int]] = {}
    sizes: dict[tuple[int, str], int] = {}
    for _, told in rows:
        for cut, step, size, ranks in told:
            there.setdefault((step, cut), set()).update(ranks)
            sizes[step, cut] = size
    whole = [key for key, ranks in there.items() if len(ranks) == sizes[key]]
    if not there:
        return None, []
    if not whole:
        newest = max(there)
        return None, sorted({*range(sizes[newest])} - there[newest])
    step, cut = max(whole)
    return (cut, step), []
