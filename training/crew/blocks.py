"""A state in blocks: a digest of each, so that what is alike here and there is told from what is not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hocket.errors import ArgumentError
from hocket.training.flat import Array, digest

BLOCK = 1 << 20
"""Bytes."""
PIECE = 8 * BLOCK
"""Bytes that are sent by one call: over a link of 10 Mbit/s it ends in 7 s."""
THREADS = min(4, os.cpu_count() or 1)
"""A few cores read as fast as memory gives."""


def views(arrays: Mapping[str, Array]) -> list[Array]:
    """The bytes of each array, in the order of their names."""
    if wrong := [name for name, array in arrays.items() if not array.flags.c_contiguous]:
        raise ArgumentError(f"arrays {wrong} of the state must be contiguous: give copies")
    return [array.reshape(-1).view(np.uint8) for _, array in sorted(arrays.items())]


def blocks(arrays: Mapping[str, Array]) -> list[Array]:
    """All of their bytes, in pieces of BLOCK at most."""
    return [view[begin : begin + BLOCK] for view in views(arrays) for begin in range(0, view.size, BLOCK)]


def digests(arrays: Mapping[str, Array]) -> Array:
    """The digest of each block, 53 bits.

    >>> len(digests({"x": np.zeros(BLOCK + 1, np.uint8)}))
    2
    """
    pieces = blocks(arrays)
    with ThreadPoolExecutor(THREADS) as pool:
        return np.fromiter(pool.map(digest, pieces), np.int64, len(pieces))


def runs(arrays: Mapping[str, Array], chosen: Array) -> list[Array]:
    """The bytes of these blocks (a flag for each), those that follow each other in an array as one piece.

    >>> [piece.size >> 20 for piece in runs({"x": np.zeros(4 << 20, np.uint8)}, np.array([1, 1, 0, 1]))]
    [2, 1]
    """
    pieces, at = [], 0
    for view in views(arrays):
        count = -(-view.size // BLOCK)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen[at : at + count].astype(np.int8), [0]])))
        pieces += [view[begin * BLOCK : end * BLOCK] for begin, end in edges.reshape(-1, 2)]
        at += count
    return pieces


def cut(arrays: Sequence[Array]) -> Iterator[Array]:
    """The arrays' bytes, in pieces of PIECE at most; what is not contiguous as a whole.

    >>> [piece.nbytes >> 20 for piece in cut([np.zeros(9 << 20, np.uint8), np.zeros((2, 1 << 20))[:, ::2]])]
    [8, 1, 8]
    """
    for array in arrays:
        if array.flags.c_contiguous:
            view = array.reshape(-1).view(np.uint8)
            yield from (view[begin : begin + PIECE] for begin in range(0, view.size, PIECE))
        else:
            yield array
