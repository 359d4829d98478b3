"""A communicator, as far as measuring needs it: the one that users hold stands above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hocket.collectives.calls.ask import Ask
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.job.world import World
from hocket.collectives.members.members import Members

Call = Callable[..., Any]


class Runs(Protocol):
    """The communicator's runner."""

    size: int
    members: Members

    def general(self, x: Any, out: Any, ask: Ask) -> Any: ...
    def retune(self, tuning: Tuning, only: tuple[str, str] | None = None) -> None: ...


class Comm(Protocol):
    """The communicator."""

    rank: int
    size: int
    world: World
    membership: Members

    @property
    def runner(self) -> Runs: ...
    @property
    def host(self) -> int: ...
    @property
    def tuning(self) -> Tuning: ...
    @property
    def barrier(self) -> Call: ...
    @property
    def allreduce(self) -> Call: ...
    @property
    def reduce(self) -> Call: ...
    @property
    def reduce_scatter(self) -> Call: ...
    @property
    def broadcast(self) -> Call: ...
    @property
    def allgather(self) -> Call: ...
    @property
    def gather(self) -> Call: ...
    @property
    def scatter(self) -> Call: ...
    @property
    def alltoall(self) -> Call: ...
    @property
    def scan(self) -> Call: ...
    @property
    def exscan(self) -> Call: ...
