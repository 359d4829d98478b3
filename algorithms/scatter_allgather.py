"""Long vectors to or from one root in twice n bytes, where a tree moves n bytes log2 p times.

Van de Geijn's broadcast and Rabenseifner's reduce, which is the same backwards.
"""

from __future__ import annotations

from hocket.algorithms import recursive, tree
from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Schedule


@algorithm("reduce", chunks=lambda size: size, repeats=False)
def reduce_scatter_gather(rank: int, size: int, root: int) -> Schedule:
    """Recursive-halving reduce-scatter, binomial gather.  2 ceil(log2 p) steps, about 2n(p-1)/p bytes."""
    return then(recursive.reduce_scatter(rank, size), tree.gather(rank, size, root))


@algorithm("broadcast", chunks=lambda size: size, order="rank")
def scatter_allgather(rank: int, size: int, root: int) -> Schedule:
    """Binomial scatter, recursive-doubling allgather.  2 ceil(log2 p) steps, about 2n(p-1)/p bytes."""
    return mirror(reduce_scatter_gather(rank, size, root))
