"""Where the ranks of a mesh are: its last axis inside hosts, then the one before it, as far as the hosts' sizes allow.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021:
tensor parallelism inside a host, pipelines between hosts, data parallelism outermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """Ranks that share their coordinates on the axes so far, and their host; None: they are on several."""

    ranks: list[int]
    host: int | None


def placed(host_of: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """The rank at each place of a mesh of these lengths, the last axis fastest.  `host_of`: by rank.

    >>> placed([0, 1, 0, 1], [2, 2])        # ranks 0 and 2 share a host: they are neighbours on the last axis
    [0, 2, 1, 3]
    """
    blocks = [Block([rank], host) for rank, host in enumerate(host_of)]
    for length in reversed(lengths):
        blocks = joined(blocks, length)
    return blocks[0].ranks


def joined(blocks: Sequence[Block], length: int) -> list[Block]:
    """Blocks of `length` blocks each: those of one host first, then what is left over, in order."""
    here: dict[int | None, list[Block]] = {}
    for block in blocks:
        here.setdefault(block.host, []).append(block)
    rest = here.pop(None, [])
    groups = []
    for host, own in here.items():
        whole = len(own) // length * length
        groups += [Block(_ranks(own[i : i + length]), host) for i in range(0, whole, length)]
        rest += own[whole:]
    rest.sort()
    groups += [Block(_ranks(rest[i : i + length]), None) for i in range(0, len(rest), length)]
    return sorted(groups, key=lambda block: block.ranks)


def _ranks(blocks: Sequence[Block]) -> list[int]:
    return [rank for block in blocks for rank in block.ranks]
