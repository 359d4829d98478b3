"""Two binary trees at once, each for one half of the vector.

Half of the ranks are inner nodes of the first tree and leaves of the second, the others the reverse, so
that every rank sends and receives about as much as every other, at logarithmic latency.  Both trees are in
order (left subtree below the node, right subtree above it), which keeps rank order.

Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), as
in NCCL; theirs colour the edges so that a rank receives once a step, here it may receive from both children.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Action, Recv, Schedule, Send


class _Tree(NamedTuple):
    parent: tuple[int | None, ...]
    depth: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    height: int


@lru_cache(maxsize=64)
def _tree(size: int, odd: int) -> _Tree:
    """The in-order tree whose inner nodes are the odd (or even) ranks; the others hang below as leaves."""
    parent: list[int | None] = [None] * size
    depth = [0] * size

    def grow(inner: Sequence[int], above: int | None) -> None:
        if not inner:
            return
        middle = len(inner) // 2
        node = inner[middle]
        parent[node] = above
        depth[node] = 0 if above is None else depth[above] + 1
        grow(inner[:middle], node)
        grow(inner[middle + 1 :], node)

    grow(range(odd, size, 2), None)
    for leaf in range(1 - odd, size, 2):
        neighbours = [node for node in (leaf - 1, leaf + 1) if 0 <= node < size]
        if neighbours:  # of two neighbours in order, the deeper one has the free place between them
            parent[leaf] = max(neighbours, key=depth.__getitem__)
            depth[leaf] = max(depth[node] for node in neighbours) + 1
    children: list[list[int]] = [[] for _ in range(size)]
    for node, above in enumerate(parent):
        if above is not None:
            children[above].append(node)
    return _Tree(tuple(parent), tuple(depth), tuple(map(tuple, children)), max(depth))


def _up(rank: int, size: int) -> Schedule:
    """Both halves climb their tree, level by level."""
    trees = [_tree(size, odd) for odd in (1, 0)]
    for level in range(max(tree.height for tree in trees), 0, -1):
        ops: list[Action] = []
        for half, tree in enumerate(trees):
            above = tree.parent[rank]
            if tree.depth[rank] == level and above is not None:
                ops.append(Send(above, half))
            elif tree.depth[rank] == level - 1:
                ops += [Recv(child, half, reduce=True) for child in tree.children[rank]]
        yield tuple(ops)


@algorithm("allreduce", chunks=lambda size: 2, order="rank", pipeline=True, repeats=False)
def double_binary_tree(rank: int, size: int) -> Schedule:
    """Half the vector up and down each tree.  About 2 log2 p steps of n/2 bytes, at most 3n bytes sent a rank."""
    return then(_up(rank, size), mirror(_up(rank, size)))
