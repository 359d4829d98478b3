"""The check finds wrong results, and nothing else."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy
import pytest

import hocket
from hocket.bench.harness import check
from hocket.bench.harness.measure import Effort, measure
from hocket.bench.harness.worker import Order, Ordinary, Worker
from hocket.collectives.measuring.cases import COLLECTIVES, Case, call_of, numpy_dtype

SIZE = 3
CHECKED = [name for name in COLLECTIVES if name != "barrier"]


class Rank(Ordinary):
    """A subject: one rank of a local world, whose result `spoil` may change."""

    name, about = "rank", "a thread"

    def __init__(self, comm: Any, spoil: Callable[[Any], None] = lambda result: None) -> None:
        self.comm, self.rank, self.size, self.spoil = comm, comm.rank, comm.size, spoil

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        call = call_of(self.comm, case, given, result)

        def spoilt() -> None:
            call()
            self.spoil(given if result is None else result)

        return spoilt

    def barrier(self) -> None:
        self.comm.barrier()

    def chosen(self) -> dict[str, str]:
        return {}


def wrong_elements(case: Case, spoil: Callable[[Any], None] = lambda result: None) -> list[int]:
    """By rank, as the workers report it; `spoil` acts on the last rank's result."""

    def one(comm: Any) -> int:
        worker = Worker(Rank(comm, spoil) if comm.rank == SIZE - 1 else Rank(comm))
        for order in ({"do": "prepare", **asdict(case)}, {"do": "time", "iterations": 2}):
            assert "error" not in worker.perform(order)
        return int(worker.perform({"do": "check"})["wrong"])

    with hocket.local_world(SIZE) as world:
        return world.run(one)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("collective", CHECKED)
def test_right_results_pass(collective: str, dtype: str) -> None:
    assert wrong_elements(Case(collective, SIZE, 37, dtype, root=SIZE - 1)) == [0] * SIZE


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("float64", "prod"), ("float16", "min"), ("uint8", "max"), ("int8", "sum"), ("bool", "lxor"), ("int64", "band"),
     ("uint16", "bxor"), ("float32", "avg"), ("complex64", "sum"), ("float8_e5m2", "sum")],
)  # fmt: skip
def test_every_kind_of_dtype_and_op(dtype: str, op: str) -> None:
    assert wrong_elements(Case("allreduce", SIZE, 300, dtype, op)) == [0] * SIZE


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("collective", CHECKED)
def test_one_wrong_element_is_found(collective: str, dtype: str) -> None:
    def spoil(result: Any) -> None:
        result[len(result) // 2] += 1  # of values of at most a few, in float; of any, in int

    assert wrong_elements(Case(collective, SIZE, 37, dtype, root=SIZE - 1), spoil) == [0, 0, 1]


def test_nan_is_wrong() -> None:
    case = Case("allreduce", 2, 4)
    result = numpy.full(4, numpy.nan, numpy.float32)
    assert check.wrong(case, 0, result) == 4


def test_long_vectors_are_checked_to_the_end() -> None:
    case = Case("broadcast", 2, check.SLICE + 5, "uint8", root=1)
    result = check.pattern(1, 0, check.SLICE + 5, "uint8")
    assert check.wrong(case, 0, result) == 0
    result[-1] ^= 255
    assert check.wrong(case, 0, result) == 1


def test_the_pattern_does_not_depend_on_where_it_is_cut() -> None:
    for dtype in ("float32", "complex64", "int8", "bool", "bfloat16"):
        whole = check.pattern(2, 0, 100, dtype)
        assert whole.dtype == numpy_dtype(dtype)
        assert (whole[40:60] == check.pattern(2, 40, 60, dtype)).all()
        assert (whole != check.pattern(1, 0, 100, dtype)).any(), "ranks are told apart"


def test_a_piece_in_the_wrong_place_is_seen() -> None:
    whole = check.pattern(0, 0, 1 << 20, "float32")
    for power in range(20):
        moved = numpy.roll(whole, 1 << power)
        assert numpy.count_nonzero(moved != whole) > len(whole) / 2


class Scripted:
    """A team without processes: reports what it is given, and remembers the orders of all."""

    beside = None

    def __init__(self, name: str, log: list[tuple[str, str]], seconds: list[float], wrong: int = 0) -> None:
        self.name, self.about, self.log, self.seconds, self.wrong = name, name, log, seconds, wrong

    def order(self, do: str, **fields: Any) -> list[Order]:
        self.log.append((self.name, do))
        if do == "time" and self.seconds[0] < 0:
            raise hocket.PeerLostError(f"{self.name}: rank 1 has ended")
        return [{"seconds": s, "wrong": self.wrong} for s in (self.seconds[0], self.seconds.pop(0))]

    def close(self) -> None:
        pass


def test_libraries_take_turns_and_the_median_counts() -> None:
    log: list[tuple[str, str]] = []
    ours = Scripted("ours", log, [9.0, 1.0, 5.0, 2.0, 0.0])
    peer = Scripted("peer", log, [9.0, 4.0, 4.0, 4.0, 0.0])
    (row,) = measure([Case("allreduce", 2, 4)], ours, [peer], Effort(blocks=3, iterations=7, check=True))
    assert [name for name, do in log if do == "time"] == ["ours", "peer"] * 3
    assert (row.seconds, row.peers, row.wrong) == (2.0, {"peer": 4.0}, 0)


def test_a_peer_that_fails_is_left_out_and_told_once() -> None:
    told: list[str] = []
    ours = Scripted("ours", [], [0.0, 1.0, 1.0, 1.0, 1.0] * 2, wrong=2)
    peer = Scripted("peer", [], [0.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    cases = [Case("allreduce", 2, 4), Case("allreduce", 2, 8)]
    rows = list(measure(cases, ours, [peer], Effort(blocks=3, iterations=1, check=True), told.append))
    assert [row.peers for row in rows] == [{}, {}]
    assert told == ["peer: rank 1 has ended"]
    assert [row.wrong for row in rows] == [4, 4], "both ranks' wrong elements are counted"
