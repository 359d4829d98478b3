"""Collectives that another library carries out: an algorithm like the others to whoever chooses, but no schedule.

What is known of such an algorithm is how the ranks meet before it: `steps` exchanges nothing but empty messages, which
carry what all must agree on, so that ranks who call different things, come late or are gone are found here, and with
our errors.  What the library does then is its own affair: there is nothing to prove, draw or simulate.  They are in no
catalogue (registry.names), like "hierarchical".
"""

from __future__ import annotations

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Recv, Schedule, Send

LIBRARIES = ("mpi",)
"""Names of such algorithms, which are also the libraries'."""


def meet(rank: int, size: int, root: int = 0) -> Schedule:
    """A barrier: ceil(log2 p) steps; in step k, empty messages to rank r + 2^k and from r - 2^k.

    No rank passes it before it has heard of every other one: all are there, and all are in the same call.
    """
    distance = 1
    while distance < size:
        yield Send((rank + distance) % size, 0), Recv((rank - distance) % size, 0)
        distance *= 2


MEETING = Algorithm("allreduce", "meeting", meet, lambda size: 1)
"""Lowered by the rules of a vector of which every rank has its own."""


def library(collective: str, name: str) -> Algorithm:
    """The algorithm `name` of LIBRARIES for a collective."""
    return Algorithm(
        collective, name, meet, lambda size: 1, order="rank" if CONTRACTS[collective].ordered else "any", library=name,
        doc=f"{name}'s own {collective}, after a meeting of ceil(log2 p) steps.  Waits there as {name} waits.",
    )  # fmt: skip
