"""Which algorithm for which call: a decision table, as data, read from the top; the first row that fits wins.

"shm" rows hold when all ranks share one host, "tcp" rows otherwise; "cuda" rows come before the "shm" ones for arrays
on GPUs that map each other's memory, and "cuda kernels" ones where each rank has a GPU of its own.  The table
chooses where nothing has been measured (choose.py); `HOCKET_TUNING=off hocket tune --check` shows how far it is from
the best.  Where the op does not commute, rows whose algorithm does not keep rank order are passed over, so every
table ends in one that keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import get, names
from hocket.errors import ArgumentError

ANY = 1 << 62
KB = 1024

HIERARCHICAL_FROM = 64 * KB
"""Below this one more level costs more steps than the shared links save."""


class Row(NamedTuple):
    """Up to that many ranks and bytes, use that algorithm.

    Bytes are a rank's whole vector; for alltoall one block of it.
    """

    ranks: int
    nbytes: int
    name: str


def _scan_rows(nbytes: int) -> tuple[Row, ...]:
    """Beyond `nbytes`, a chain is better for few ranks."""
    return Row(ANY, nbytes, "recursive_doubling"), Row(16, ANY, "linear"), Row(ANY, ANY, "recursive_doubling")


TABLE: dict[tuple[str, str], tuple[Row, ...]] = {
    ("allreduce", "shm"): (
        Row(2, 8 * KB, "one_shot"),
        Row(4, 4 * KB, "one_shot"),
        Row(8, 2 * KB, "one_shot"),
        Row(16, ANY, "direct"),
        Row(ANY, 8 * KB, "recursive_doubling"),
        Row(ANY, 512 * KB, "halving_doubling"),
        Row(ANY, ANY, "ring"),
        Row(ANY, ANY, "double_binary_tree"),
    ),
    # Not measured.  A rank issues 4 p - 2 copies, waits and so on for one_shot and 10 p - 8 for direct
    # (tests/collectives/gpu/test_collectives.py counts them), some microseconds each; one_shot moves more, which takes
    # a few more microseconds up to here.
    ("allreduce", "cuda"): (Row(8, 1024 * KB, "one_shot"), Row(ANY, 64 * KB, "recursive_doubling")),
    # Not measured here.  Up to 1 MiB a kernel of each rank does all of it (meeting.pyx).  From these sizes on vLLM's
    # kernel takes two shots (its csrc/custom_all_reduce.cuh), as `direct` does.
    ("allreduce", "cuda kernels"): (
        Row(2, 1024 * KB, "one_shot"),
        Row(4, 512 * KB, "one_shot"),
        Row(8, 256 * KB, "one_shot"),
    ),
    ("allreduce", "tcp"): (
        Row(2, 64 * KB, "one_shot"),
        Row(8, 16 * KB, "one_shot"),
        Row(8, 4096 * KB, "direct"),
        Row(ANY, 8 * KB, "recursive_doubling"),
        Row(ANY, 512 * KB, "halving_doubling"),
        Row(ANY, ANY, "ring"),
        Row(16, ANY, "direct"),
        Row(ANY, ANY, "double_binary_tree"),
    ),
    ("reduce_scatter", "shm"): (
        Row(16, ANY, "direct"),
        Row(ANY, 512 * KB, "recursive_halving"),
        Row(ANY, ANY, "ring"),
        Row(ANY, ANY, "direct"),
    ),
    ("reduce_scatter", "tcp"): (
        Row(8, 512 * KB, "direct"),
        Row(ANY, 512 * KB, "recursive_halving"),
        Row(ANY, ANY, "ring"),
        Row(ANY, ANY, "direct"),
    ),
    ("allgather", "shm"): (Row(16, ANY, "direct"), Row(ANY, 512 * KB, "recursive_doubling"), Row(ANY, ANY, "ring")),
    ("allgather", "tcp"): (
        Row(8, 512 * KB, "direct"),
        Row(ANY, 8 * KB, "bruck"),
        Row(ANY, 512 * KB, "recursive_doubling"),
        Row(ANY, ANY, "ring"),
    ),
    ("broadcast", "shm"): (Row(ANY, ANY, "direct"),),
    ("broadcast", "tcp"): (
        Row(2, ANY, "direct"),
        Row(4, 32 * KB, "direct"),
        Row(16, 32 * KB, "binomial"),
        Row(16, ANY, "chain"),
        Row(ANY, 64 * KB, "binomial"),
        Row(ANY, ANY, "scatter_allgather"),
    ),
    ("reduce", "shm"): (
        Row(16, ANY, "direct"),
        Row(ANY, 64 * KB, "binomial"),
        Row(ANY, ANY, "reduce_scatter_gather"),
        Row(ANY, ANY, "binomial"),
    ),
    ("reduce", "tcp"): (
        Row(2, ANY, "direct"),
        Row(4, 64 * KB, "direct"),
        Row(ANY, 64 * KB, "binomial"),
        Row(ANY, ANY, "reduce_scatter_gather"),
        Row(ANY, ANY, "binomial"),
    ),
    ("gather", "shm"): (Row(ANY, ANY, "direct"),),
    ("gather", "tcp"): (Row(8, ANY, "direct"), Row(ANY, 64 * KB, "binomial"), Row(ANY, ANY, "direct")),
    ("scatter", "shm"): (Row(ANY, ANY, "direct"),),
    ("scatter", "tcp"): (Row(8, ANY, "direct"), Row(ANY, 64 * KB, "binomial"), Row(ANY, ANY, "direct")),
    ("alltoall", "shm"): (Row(16, ANY, "direct"), Row(ANY, ANY, "pairwise")),
    ("alltoall", "tcp"): (Row(ANY, 256, "bruck"), Row(ANY, ANY, "pairwise")),
    ("scan", "shm"): _scan_rows(64 * KB),
    ("scan", "tcp"): _scan_rows(512 * KB),
    ("exscan", "shm"): _scan_rows(64 * KB),
    ("exscan", "tcp"): _scan_rows(512 * KB),
}


def select(
    collective: str, size: int, nbytes: int, groups: Sequence[Sequence[int]], commutative: bool = True,
    inside: str = "shm",
) -> str:  # fmt: skip
    """The name of the algorithm to use; "hierarchical" means `hierarchical(collective, groups)`.

    `groups` are the ranks of each host (none given: all on one), `inside` the transport there; `nbytes` is a rank's
    whole vector, all blocks together.  All ranks must give the same arguments.
    """
    names(collective)  # refuses an unknown collective
    if groups and sum(map(len, groups)) != size:
        raise ArgumentError(f"groups hold {sum(map(len, groups))} ranks, but size={size}")
    ordered = CONTRACTS[collective].reduces and not commutative
    shared = len(groups) > 1 and any(len(group) > 1 for group in groups)
    if shared and not ordered and nbytes >= HIERARCHICAL_FROM and collective in STAGES:
        return "hierarchical"
    measure = nbytes // size if collective == "alltoall" else nbytes
    rows = TABLE[collective, "tcp" if len(groups) > 1 else "shm"]
    if len(groups) <= 1 and inside.startswith("cuda"):
        rows = TABLE.get((collective, inside), ()) + rows
    for row in rows:
        algorithm = get(collective, row.name)
        usable = algorithm.requires(size) is None and (algorithm.order == "rank" or not ordered)
        if size <= row.ranks and measure <= row.nbytes and usable:
            return row.name
    raise ArgumentError(f"no {collective} algorithm in the table for {size} ranks, {nbytes} bytes; name one yourself")
