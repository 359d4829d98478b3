"""The decision table, where nothing was measured: complete, and true to its promises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hocket.algorithms import CONTRACTS, get, hierarchical, names
from hocket.algorithms.proof.verify import verify
from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.fabric import Fabric
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.communicator.planner import NO_OP, Planner
from hocket.errors import ArgumentError

KB = 1024
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 100)
BYTES = (0, 1, 8, 256, 2 * KB, 4 * KB, 8 * KB, 64 * KB, 600 * KB, 1 << 30, 1 << 50)


def one_host(size: int, inside: str = "shm") -> Fabric:
    return Fabric((size,), inside, "", 64 * KB)


def alone(size: int) -> Fabric:
    return Fabric((1,) * size, "", "tcp", 256 * KB)


def long(size: int) -> Fabric:
    """Links with a long round trip."""
    return Fabric((1,) * size, "", "long tcp", 16 << 20)


def pairs(size: int) -> Fabric:
    return Fabric((2,) * (size // 2) + (1,) * (size % 2), "shm", "tcp", 256 * KB)


def usual(collective: str, nbytes: int, layout: Fabric, commutative: bool = True) -> str:
    choice = choose(Tuning(), collective, nbytes, layout, commutative)
    assert choice.why.startswith("the built-in table" + ", for long links" * layout.long) and choice.seconds is None
    return choice.name


@pytest.mark.parametrize(
    ("size", "nbytes", "name"),
    [
        (2, 8 * KB, "one_shot"), (2, 8 * KB + 1, "direct"),
        (3, 4 * KB, "one_shot"), (4, 4 * KB, "one_shot"), (4, 4 * KB + 1, "direct"),
        (8, 2 * KB, "one_shot"), (8, 2 * KB + 1, "direct"), (9, 8, "direct"), (16, 1 << 30, "direct"),
        (17, 8 * KB, "recursive_doubling"), (17, 100 * KB, "halving_doubling"), (17, 1 << 20, "ring"),
    ],
)  # fmt: skip
def test_allreduce_on_one_host(size: int, nbytes: int, name: str) -> None:
    assert usual("allreduce", nbytes, one_host(size)) == name


@pytest.mark.parametrize(
    ("size", "nbytes", "name"),
    [
        (4, 1024 * KB, "one_shot"), (4, 1024 * KB + 1, "direct"), (8, 8, "one_shot"), (16, 8, "recursive_doubling"),
        (9, 8, "recursive_doubling"), (9, 1 << 20, "direct"), (17, 1 << 20, "ring"),
    ],
)  # fmt: skip
def test_allreduce_between_gpus_of_one_host(size: int, nbytes: int, name: str) -> None:
    gpus = one_host(size, "cuda")
    assert usual("allreduce", nbytes, gpus) == name
    assert usual("allgather", nbytes, gpus) == usual("allgather", nbytes, one_host(size))
    between = alone(size)._replace(inside="cuda")
    assert usual("allreduce", nbytes, between) == usual("allreduce", nbytes, alone(size))


@pytest.mark.parametrize(("size", "most"), [(2, 1024 * KB), (4, 512 * KB), (8, 256 * KB)])
def test_one_kernel_takes_one_shot_for_as_much_as_vllms(size: int, most: int) -> None:
    gpus = one_host(size, "cuda kernels")
    assert usual("allreduce", most, gpus) == "one_shot" and usual("allreduce", most + 1, gpus) == "direct"


@pytest.mark.parametrize(
    ("size", "nbytes", "name"),
    [
        (2, 64 * KB, "one_shot"), (2, 64 * KB + 1, "direct"),
        (4, 8 * KB, "one_shot"), (4, 8 * KB + 1, "direct"), (8, 2 * KB, "one_shot"), (8, 2 * KB + 1, "direct"),
        (8, 4096 * KB, "direct"), (8, 4096 * KB + 1, "ring"),
        (9, 8 * KB, "recursive_doubling"), (9, 512 * KB, "halving_doubling"), (9, 1 << 20, "ring"),
    ],
)  # fmt: skip
def test_allreduce_between_hosts(size: int, nbytes: int, name: str) -> None:
    assert usual("allreduce", nbytes, alone(size)) == name


@pytest.mark.parametrize(
    ("size", "nbytes", "name"),
    [
        (2, 1, "one_shot"), (2, 64_000_000, "one_shot"), (2, (256 << 20) + 1, "ring"), (4, 64 * KB, "one_shot"),
        (4, 64 * KB + 1, "direct"), (8, 16 * KB, "one_shot"), (8, 16 * KB + 1, "direct"), (9, 1 << 20, "ring"),
    ],
)  # fmt: skip
def test_allreduce_over_long_links(size: int, nbytes: int, name: str) -> None:
    assert usual("allreduce", nbytes, long(size)) == name


def test_a_measured_round_trip_changes_no_bits() -> None:
    """Where it changes the algorithm of a sum, the two combine all contributions at once, or there are only two."""
    assert usual("allgather", 1 << 30, long(4)) == "direct" != usual("allgather", 1 << 30, alone(4))
    for collective in ("allreduce", "reduce_scatter", "reduce", "scan", "exscan"):
        for size in SIZES:
            for nbytes in BYTES:
                names = {usual(collective, nbytes, where(size)) for where in (alone, long)}
                assert len(names) == 1 or size == 2 or names == {"direct", "one_shot"}, (collective, size, nbytes)
    assert long(3).short == alone(3)._replace(segment=16 << 20) and long(3).long and not alone(3).long


def test_two_hosts_need_one_step_between_them() -> None:
    """Where links are long; but where a codec rounds, bits stay those of other links."""
    planner, groups = Planner.__new__(Planner), ((0, 1), (2, 3))
    for across, codec, wanted in (("long tcp", "", "one_shot"), ("long tcp", "int8", "ring"), ("tcp", "", "ring")):
        queue: Any = SimpleNamespace(layout=Fabric((2, 2), "shm", across, 1 << 20), groups=groups)
        call: Any = SimpleNamespace(contract=CONTRACTS["allreduce"], codec=codec)
        found = planner._named(queue, call, NO_OP, "hierarchical")
        assert f"allreduce ({wanted}) between" in found.doc
        verify(found, 4)


def test_two_levels_where_hosts_share_links_and_bytes_are_many() -> None:
    for collective in CONTRACTS:
        picked = usual(collective, 1 << 20, pairs(8))
        known = collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")
        assert (picked == "hierarchical") == known
        assert not known or hierarchical(collective, pairs(8).ranks).requires(8) is None
        assert usual(collective, 1 * KB, pairs(8)) != "hierarchical"
        assert usual(collective, 1 << 20, alone(8)) != "hierarchical"
        assert usual(collective, 1 << 20, one_host(8)) != "hierarchical"


@pytest.mark.parametrize("collective", CONTRACTS)
@pytest.mark.parametrize("hosts", [one_host, alone, pairs, long])
def test_always_a_registered_algorithm_that_keeps_the_order_if_it_must(collective: str, hosts: object) -> None:
    assert callable(hosts)
    for size in SIZES:
        for nbytes in BYTES:
            name = usual(collective, nbytes, hosts(size))
            assert name in names(collective) or name == "hierarchical"
            ordered = usual(collective, nbytes, hosts(size), commutative=False)
            reducing = collective in ("allreduce", "reduce_scatter", "reduce", "scan", "exscan")
            assert not reducing or get(collective, ordered).order == "rank"


def test_alltoall_goes_by_the_size_of_a_block() -> None:
    assert usual("alltoall", 256 * 100, alone(100)) == "bruck"
    assert usual("alltoall", 257 * 100, alone(100)) == "pairwise"


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no collective 'allreduced'; known: allreduce"):
        choose(Tuning(), "allreduced", 8, one_host(2))
