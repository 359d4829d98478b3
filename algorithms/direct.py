"""Direct: everybody talks to everybody at once.

As few steps as there can be, p-1 messages a rank: for shared memory, where a message is a store and all
sends of one chunk are one copy in memory that every peer reads, and for small jobs over TCP.  Reductions
are one k-way reduction in rank order.
"""

from __future__ import annotations

from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm, cyclic
from hocket.algorithms.language.schedule import Recv, Schedule, Send


def _others(rank: int, size: int) -> list[int]:
    """All peers, beginning right of this rank, so that not everybody starts with rank 0."""
    return [(rank + i) % size for i in range(1, size)]


@algorithm("allreduce", order="rank", period=cyclic)
def one_shot(rank: int, size: int) -> Schedule:
    """Everybody sends the whole vector to all and reduces all.  1 step, n(p-1) bytes."""
    others = _others(rank, size)
    yield (*(Send(peer, 0) for peer in others), *(Recv(peer, 0, reduce=True) for peer in others))


@algorithm("reduce_scatter", "direct", order="rank", period=cyclic, repeats=False)
def reduce_scatter(rank: int, size: int) -> Schedule:
    """Every block goes straight to its owner, which reduces all p.  1 step, n(p-1)/p bytes."""
    others = _others(rank, size)
    yield (*(Send(peer, peer) for peer in others), *(Recv(peer, rank, reduce=True) for peer in others))


@algorithm("allgather", "direct", order="rank", period=cyclic)
def allgather(rank: int, size: int) -> Schedule:
    """Everybody sends its block to all.  1 step, n(p-1)/p bytes."""
    return mirror(reduce_scatter(rank, size))


@algorithm(
    "allreduce", "direct", chunks=lambda size: size, order="rank", pipeline=True, even=True, period=cyclic,
    added=lambda size: 1, repeats=False,
)  # fmt: skip
def allreduce(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then allgather.  2 steps, 2n(p-1)/p bytes."""
    return then(reduce_scatter(rank, size), allgather(rank, size))


@algorithm("reduce", "direct", order="rank", repeats=False)
def reduce(rank: int, size: int, root: int) -> Schedule:
    """Everybody sends to the root, which reduces all p.  1 step; the root takes n(p-1) bytes."""
    if rank == root:
        yield tuple(Recv(peer, 0, reduce=True) for peer in _others(rank, size))
    else:
        yield (Send(root, 0),)


@algorithm("broadcast", "direct", order="rank", pipeline=True)
def broadcast(rank: int, size: int, root: int) -> Schedule:
    """The root sends to all.  1 step, n(p-1) bytes; over shared memory one copy that all read."""
    return mirror(reduce(rank, size, root))


@algorithm("gather", "direct", order="rank")
def gather(rank: int, size: int, root: int) -> Schedule:
    """Everybody sends its block to the root.  1 step; the root takes n(p-1)/p bytes."""
    if rank == root:
        yield tuple(Recv(peer, peer) for peer in _others(rank, size))
    else:
        yield (Send(root, rank),)


@algorithm("scatter", "direct", order="rank")
def scatter(rank: int, size: int, root: int) -> Schedule:
    """The root sends everybody its block.  1 step, n(p-1)/p bytes from the root."""
    return mirror(gather(rank, size, root))


@algorithm("alltoall", "direct", order="rank", period=cyclic)
def alltoall(rank: int, size: int) -> Schedule:
    """All blocks at once.  1 step, n(p-1)/p bytes; p-1 messages at a time fall on each rank."""
    others = _others(rank, size)
    yield (
        *(Send(peer, rank * size + peer) for peer in others),
        *(Recv(peer, peer * size + rank) for peer in others),
    )
