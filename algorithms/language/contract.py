"""The promise of each collective, as data: who brings what, and what must stand where at the end.

A contribution is a rank's own input for a chunk.  `wants` names contributions by rank, always in rank
order: that is what a chunk must hold, each exactly once.  Verification, lowering, the choice of algorithms and
the calls read this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Contract(NamedTuple):
    """One collective.

    blocks: True when chunk c means a block: rank c's (reduce_scatter, allgather, gather, scatter: exactly
    `size` chunks), or for alltoall chunk s*size+d the block from rank s to rank d.  False when the
    algorithm chooses how many near-equal pieces the vector is cut into.
    """

    collective: str
    holds: Callable[[int, int, int, int], bool]
    """(rank, size, root, chunk): does this rank bring input for that chunk?"""
    wants: Callable[[int, int, int, int], tuple[int, ...] | None]
    """(rank, size, root, chunk): whose contributions must stand there at the end; None: not wanted."""
    blocks: bool = False
    rooted: bool = False
    reduces: bool = False
    """Does it combine contributions by an op?"""
    ordered: bool = False
    """Does the result of each rank depend on the order of ranks, whatever the op?"""
    in_place: bool = False
    """Does it work in place where no out= is given?"""
    traffic: str = "one way"
    """Bytes between two ranks at one time: "one way"; or both ways, "moved" only or "reduced"."""
    joins: bool = False
    """Is its result the blocks of all ranks, one behind the other?"""
    takes: tuple[str, ...] = ()
    """Besides one array: a "codec"; a "residual", where each rank encodes what it has in each call; "trees"."""
    tuned: bool = False
    """Is its algorithm chosen by length, so that `explain` tells it without being asked?"""
    adjoint: str | None = None
    """The collective of the derivatives: what each rank has of those by its result becomes those by its input, of a
    loss that is the sum over all ranks.  Of sums, and by a sum.  None: frameworks offer none."""


def _all(size: int) -> tuple[int, ...]:
    return tuple(range(size))


CONTRACTS: dict[str, Contract] = {
    row.collective: row
    for row in (
        Contract(
            "allreduce",
            lambda r, p, root, c: True,
            lambda r, p, root, c: _all(p),
            reduces=True,
            in_place=True,
            traffic="reduced",
            takes=("codec", "residual", "trees"),
            tuned=True,
            adjoint="allreduce",
        ),
        Contract(
            "reduce_scatter",
            lambda r, p, root, c: True,
            lambda r, p, root, c: _all(p) if c == r else None,
            blocks=True,
            reduces=True,
            traffic="reduced",
            takes=("codec", "residual"),
            tuned=True,
            adjoint="allgather",
        ),
        Contract(
            "allgather",
            lambda r, p, root, c: c == r,
            lambda r, p, root, c: (c,),
            blocks=True,
            traffic="moved",
            joins=True,
            takes=("codec", "residual"),
            tuned=True,
            adjoint="reduce_scatter",
        ),
        Contract(
            "broadcast",
            lambda r, p, root, c: r == root,
            lambda r, p, root, c: (root,),
            rooted=True,
            in_place=True,
            takes=("codec", "trees"),
            tuned=True,
            adjoint="reduce",
        ),
        Contract(
            "reduce",
            lambda r, p, root, c: True,
            lambda r, p, root, c: _all(p) if r == root else None,
            rooted=True,
            reduces=True,
            tuned=True,
            adjoint="broadcast",
        ),
        Contract(
            "gather",
            lambda r, p, root, c: c == r,
            lambda r, p, root, c: (c,) if r == root else None,
            blocks=True,
            rooted=True,
            joins=True,
            adjoint="scatter",
        ),
        Contract(
            "scatter",
            lambda r, p, root, c: r == root,
            lambda r, p, root, c: (root,) if c == r else None,
            blocks=True,
            rooted=True,
            adjoint="gather",
        ),
        Contract(
            "alltoall",
            lambda r, p, root, c: c // p == r,
            lambda r, p, root, c: (c // p,) if c % p == r else None,
            blocks=True,
            traffic="moved",
            takes=("codec", "residual"),
            tuned=True,
            adjoint="alltoall",
        ),
        Contract(
            "scan",
            lambda r, p, root, c: True,
            lambda r, p, root, c: _all(r + 1),
            reduces=True,
            ordered=True,
            in_place=True,
        ),
        Contract(
            "exscan",
            lambda r, p, root, c: True,
            lambda r, p, root, c: _all(r) if r else None,
            reduces=True,
            ordered=True,
            in_place=True,
        ),
    )
}


def takers(of: str) -> tuple[str, ...]:
    """The collectives that take a "codec", a "residual", or "trees", in the table's order."""
    return tuple(row.collective for row in CONTRACTS.values() if of in row.takes)


def reduces(collective: str) -> bool:
    """Has it an op?  Not a barrier, which has no contract of its own."""
    return collective in CONTRACTS and CONTRACTS[collective].reduces


def block_count(contract: Contract, size: int) -> int:
    """The number of chunks of a blocks collective: size, or size*size for alltoall."""
    return size * size if contract.collective == "alltoall" else size
