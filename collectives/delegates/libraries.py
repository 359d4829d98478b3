"""Collectives that another library carries out: chosen like other algorithms, but without a schedule.

Only the meeting of the ranks before it is known: `steps` exchanges empty messages, which carry what all must agree on.
So a rank that calls something else, comes late or is gone is found here, with our errors.  What the library does then
cannot be proven, drawn or simulated.  Like "hierarchical", such algorithms are in no catalogue (registry.names).
"""

from __future__ import annotations

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Recv, Schedule, Send

LIBRARIES, CHOSEN = ("mpi", "nccl"), ("mpi",)
"""Names of such algorithms, which are also the libraries'; and those among which calls choose by themselves."""


def meet(rank: int, size: int, root: int = 0) -> Schedule:
    """A barrier: ceil(log2 p) steps; in step k, empty messages to rank r + 2^k and from r - 2^k.

    No rank passes it before it has heard of every other one: all are there, and all are in the same call.
    """
    distance = 1
    while distance < size:
        yield Send((rank + distance) % size, 0), Recv((rank - distance) % size, 0)
        distance *= 2


MEETING = Algorithm("allreduce", "meeting", meet, lambda size: 1)
"""For lowering it is an allreduce: every rank has a vector of its own."""


def library(collective: str, name: str) -> Algorithm:
    """The algorithm `name` of LIBRARIES for a collective."""
    return Algorithm(
        collective, name, meet, lambda size: 1, order="rank" if CONTRACTS[collective].ordered else "any", library=name,
        doc=f"{name}'s own {collective}, after a meeting of ceil(log2 p) steps.  Waits there as {name} waits.",
    )  # fmt: skip
