"""In which order the ranks' blocks are added: that of LightGBM's own sockets, so that models have the same bits."""

from __future__ import annotations


def pairs(size: int) -> list[tuple[int, int]]:
    """(into, of): add the block of rank `of` to that of rank `into`, one after the other; the sum ends at rank 0's.

    LightGBM halves recursively.  Where `size` is no power of two, the last ranks first add up in twos.

    >>> pairs(4), pairs(3)
    ([(0, 2), (1, 3), (0, 1)], [(1, 2), (0, 1)])
    """
    half = 1 << (size.bit_length() - 1)
    twos = [(size - 2 * i - 2, size - 2 * i - 1) for i in range(size - half)]
    leaders = sorted(set(range(size)) - {of for _, of in twos})
    found = twos
    while half > 1:
        half //= 2
        found = found + [(leaders[g], leaders[g + half]) for g in range(half)]
    return found
