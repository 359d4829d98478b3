"""Which algorithm where nothing has been measured: decision tables, as data.  The first row that fits wins.

"a host" rows hold where all ranks share one, "hosts" rows elsewhere.  Rows of a transport inside the host, or across,
come before those: "cuda" for arrays on GPUs that map each other's memory, "cuda kernels" where kernels of all ranks
meet, "long tcp" where a round trip takes milliseconds.
`HOCKET_TUNING=off hocket tune --check` shows how far the table is from the best.  Where the op does not commute, rows
whose algorithm does not keep rank order are passed over, so every table ends in one that keeps it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from hocket.arguments import human
from hocket.collectives.choice.fabric import Fabric

ANY = 1 << 62
KB = 1024

HIERARCHICAL_FROM = 64 * KB
"""Below this one more level costs more steps than the shared links save."""


class UpTo(NamedTuple):
    """Up to that many ranks and bytes, use that algorithm.

    Bytes are a rank's whole vector; for alltoall one block of it.
    """

    ranks: int
    nbytes: int
    name: str

    @property
    def words(self) -> str:
        """Text such as ", up to 4 ranks, up to 8 KiB"."""
        ranks = f", up to {self.ranks} ranks" if self.ranks < ANY else ""
        return ranks + (f", up to {human(self.nbytes)}" if self.nbytes < ANY else "")


def _scan_rows(nbytes: int) -> tuple[UpTo, ...]:
    """Beyond `nbytes`, a chain is better for few ranks."""
    return UpTo(ANY, nbytes, "recursive_doubling"), UpTo(16, ANY, "linear"), UpTo(ANY, ANY, "recursive_doubling")


BY_RANKS = UpTo(16, ANY, "direct"), UpTo(ANY, ANY, "pairwise")
ROWS: dict[tuple[str, str], tuple[UpTo, ...]] = {
    ("allreduce", "a host"): (
        UpTo(2, 8 * KB, "one_shot"),
        UpTo(4, 4 * KB, "one_shot"),
        UpTo(8, 2 * KB, "one_shot"),
        UpTo(16, ANY, "direct"),
        UpTo(ANY, 8 * KB, "recursive_doubling"),
        UpTo(ANY, 512 * KB, "halving_doubling"),
        UpTo(ANY, ANY, "ring"),
        UpTo(ANY, ANY, "double_binary_tree"),
    ),
    # Measured only where two and four ranks share one GPU.  A rank issues 4 p - 2 copies, waits and so on for one_shot
    # and 10 p - 8 for direct (tests/collectives/gpu/test_collectives.py counts them), some microseconds each; one_shot
    # moves more, which takes a few more microseconds up to here.
    ("allreduce", "cuda"): (UpTo(8, 1024 * KB, "one_shot"), UpTo(ANY, 64 * KB, "recursive_doubling")),
    # Measured on one GPU under MPS only (docs/gpu.md).  Up to 1 MiB a kernel of each rank does all of it (meeting.pyx).
    # From these sizes on vLLM's kernel takes two shots (its csrc/custom_all_reduce.cuh), as `direct` does.
    ("allreduce", "cuda kernels"): (
        UpTo(2, 1024 * KB, "one_shot"),
        UpTo(4, 512 * KB, "one_shot"),
        UpTo(8, 256 * KB, "one_shot"),
    ),
    # `one_shot` has one step less than `direct`, but p / 2 times the bytes: it pays below 0.67 (4 ranks), 0.19 (8) of
    # a link's latency times its rate, which is 4 KB (1 Gbit/s, 30 us) to 50 KB (25 Gbit/s, 15 us).
    ("allreduce", "hosts"): (
        UpTo(2, 64 * KB, "one_shot"),
        UpTo(4, 8 * KB, "one_shot"),
        UpTo(8, 2 * KB, "one_shot"),
        UpTo(8, 4096 * KB, "direct"),
        UpTo(ANY, 8 * KB, "recursive_doubling"),
        UpTo(ANY, 512 * KB, "halving_doubling"),
        UpTo(ANY, ANY, "ring"),
        UpTo(16, ANY, "direct"),
        UpTo(ANY, ANY, "double_binary_tree"),
    ),
    # On long links a step costs more than bytes do, and two ranks need one: `one_shot` moves as many bytes each way as
    # `direct` does.  With more ranks it moves p / 2 times as many.  What stands here adds in the same order as the rows
    # of "hosts" for such sizes, or adds nothing: bits must not depend on a measured round trip.
    ("allreduce", "long tcp"): (
        UpTo(2, 256 << 20, "one_shot"),
        UpTo(4, 64 * KB, "one_shot"),
        UpTo(8, 16 * KB, "one_shot"),
    ),
    ("allgather", "long tcp"): (UpTo(16, ANY, "direct"),),
    ("alltoall", "long tcp"): (UpTo(16, ANY, "direct"),),
    ("broadcast", "long tcp"): (UpTo(8, 256 * KB, "direct"),),
    ("reduce_scatter", "a host"): (
        UpTo(16, ANY, "direct"),
        UpTo(ANY, 512 * KB, "recursive_halving"),
        UpTo(ANY, ANY, "ring"),
        UpTo(ANY, ANY, "direct"),
    ),
    ("reduce_scatter", "hosts"): (
        UpTo(8, 512 * KB, "direct"),
        UpTo(ANY, 512 * KB, "recursive_halving"),
        UpTo(ANY, ANY, "ring"),
        UpTo(ANY, ANY, "direct"),
    ),
    ("allgather", "a host"): (
        UpTo(16, ANY, "direct"),
        UpTo(ANY, 512 * KB, "recursive_doubling"),
        UpTo(ANY, ANY, "ring"),
    ),
    ("allgather", "hosts"): (
        UpTo(8, 512 * KB, "direct"),
        UpTo(ANY, 8 * KB, "bruck"),
        UpTo(ANY, 512 * KB, "recursive_doubling"),
        UpTo(ANY, ANY, "ring"),
    ),
    ("broadcast", "a host"): (UpTo(ANY, ANY, "direct"),),
    ("broadcast", "hosts"): (
        UpTo(2, ANY, "direct"),
        UpTo(4, 32 * KB, "direct"),
        UpTo(16, 32 * KB, "binomial"),
        UpTo(16, ANY, "chain"),
        UpTo(ANY, 64 * KB, "binomial"),
        UpTo(ANY, ANY, "scatter_allgather"),
    ),
    ("reduce", "a host"): (
        UpTo(16, ANY, "direct"),
        UpTo(ANY, 64 * KB, "binomial"),
        UpTo(ANY, ANY, "reduce_scatter_gather"),
        UpTo(ANY, ANY, "binomial"),
    ),
    ("reduce", "hosts"): (
        UpTo(2, ANY, "direct"),
        UpTo(4, 64 * KB, "direct"),
        UpTo(ANY, 64 * KB, "binomial"),
        UpTo(ANY, ANY, "reduce_scatter_gather"),
        UpTo(ANY, ANY, "binomial"),
    ),
    ("gather", "a host"): (UpTo(ANY, ANY, "direct"),),
    ("gather", "hosts"): (UpTo(8, ANY, "direct"), UpTo(ANY, 64 * KB, "binomial"), UpTo(ANY, ANY, "direct")),
    ("scatter", "a host"): (UpTo(ANY, ANY, "direct"),),
    ("scatter", "hosts"): (UpTo(8, ANY, "direct"), UpTo(ANY, 64 * KB, "binomial"), UpTo(ANY, ANY, "direct")),
    ("alltoall", "a host"): BY_RANKS,
    ("alltoall", "hosts"): (UpTo(ANY, 256, "bruck"), UpTo(ANY, ANY, "pairwise")),
    # No rank knows how much the others send, so the bytes do not decide, and none may pass on what others sent.
    ("alltoallv", "a host"): BY_RANKS,
    ("alltoallv", "hosts"): BY_RANKS,
    ("scan", "a host"): _scan_rows(64 * KB),
    ("scan", "hosts"): _scan_rows(512 * KB),
    ("exscan", "a host"): _scan_rows(64 * KB),
    ("exscan", "hosts"): _scan_rows(512 * KB),
}


def usual(collective: str, nbytes: int, layout: Fabric, able: Container[str]) -> UpTo:
    """The row of the algorithm to use, one of `able`.  `nbytes` is a rank's whole vector, all blocks together."""
    if "hierarchical" in able and nbytes >= HIERARCHICAL_FROM:
        return UpTo(ANY, ANY, "hierarchical")
    one = len(layout.groups) == 1
    rows = ROWS[collective, "a host" if one else "hosts"]
    rows = ROWS.get((collective, layout.inside if one else layout.across), ()) + rows
    measure = nbytes // layout.size if collective == "alltoall" else nbytes
    return next(row for row in rows if layout.size <= row.ranks and measure <= row.nbytes and row.name in able)
