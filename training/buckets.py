"""Filling buckets: small things of one kind go together, up to so many bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def filled(
    things: Iterable[T], kind: Callable[[T], Hashable | None], nbytes: Callable[[T], int], most: float,
    neighbours: bool = False, least: bool = False,
) -> list[list[T]]:  # fmt: skip
    """The buckets, each where its first thing stood.  A thing of kind None is alone.

    `neighbours`: only things that stand side by side go together, so none overtakes another.  `least`: a bucket is full
    once it has so many bytes, and not before.

    >>> filled("aBbcA", lambda x: x.lower(), lambda x: 1, 2)
    [['a', 'A'], ['B', 'b'], ['c']]
    >>> filled("aBbcA", lambda x: x.lower(), lambda x: 1, 2, neighbours=True)
    [['a'], ['B', 'b'], ['c'], ['A']]
    >>> filled("abcde", lambda x: "", lambda x: 2, 3, least=True)
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    buckets: list[list[T]] = []
    open: dict[Hashable, tuple[list[T], int]] = {}
    for thing in things:
        of, size = kind(thing), nbytes(thing)
        if neighbours and of not in open:
            open.clear()
        bucket, full = open.get(of, ([], 0))
        if not bucket or (full >= most if least else full + size > most):
            bucket, full = [], 0
            buckets.append(bucket)
        bucket.append(thing)
        if of is not None:
            open[of] = bucket, full + size
    return buckets
