"""Which transport leads to each rank, and why not another: what `explain` prints and `hocket doctor --job` compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from hocket.collectives.job.world import World


class Placed(Protocol):
    """A communicator, as far as this asks."""

    rank: int
    world: World

    @property
    def members(self) -> list[int]: ...


class Reach(NamedTuple):
    """This rank's way to another one."""

    rank: int
    transport: str
    detail: str
    """The transport's words about this way; "" if nothing."""
    refusals: tuple[tuple[str, str], ...]
    """Each other transport, best first, and why it is not used."""
    address: str
    """Where the other rank listens, if the transport has addresses; else ""."""


def ways(comm: Placed) -> Iterator[Reach]:
    """The ways to all other ranks of the communicator, in rank order."""
    world = comm.world
    for peer, member in enumerate(comm.members):
        if peer == comm.rank:
            continue
        name = world.transport(member)
        used = world.transports[name]
        others = [each for each in dict.fromkeys([*world.tables, *world.absent]) if each != name]
        refusals = tuple((each, world.refusal(each, member) or f"comes after {name}") for each in others)
        detail = getattr(used, "detail", lambda rank: "")(member)
        yield Reach(peer, name, detail, refusals, getattr(used, "host_of", lambda rank: "")(member))
