"""Rank 0's table, by hand: who has submitted what, and what is carried out in which order."""

from __future__ import annotations

import json

import pytest

from hocket.training.agreeing.agreement import Agreement
from hocket.training.agreeing.fusion import ALONE
from hocket.training.agreeing.numbers import MOST, Numbers
from hocket.training.agreeing.order import Order, from_plain_order
from hocket.training.agreeing.request import AUTO, Request, Spec, from_plain

BYTE = (Spec("int8", (1,)),)


def reduce(name: str, count: int = 4, dtype: str = "float32", **more: object) -> Request:
    return Request("allreduce", name, (Spec(dtype, (count,)),), "sum", **more)  # type: ignore[arg-type]


def table(size: int, threshold: int = 1 << 20) -> Agreement:
    return Agreement(size, threshold)


def names(orders: list[Order]) -> list[tuple[str, ...]]:
    return [order.names for order in orders]


def test_ranks_submit_in_any_order() -> None:
    agreement = table(2, threshold=0)
    for name in "abc":
        agreement.submit(0, reduce(name))
    assert agreement.decide() == []
    for name in "cab":
        agreement.submit(1, reduce(name))
    assert names(agreement.decide()) == [("c",), ("a",), ("b",)]
    assert not agreement.waiting and not agreement.since


def test_small_tensors_of_one_kind_go_together() -> None:
    agreement = table(1, threshold=40)
    large = ALONE // 4
    for request in (
        reduce("a"), reduce("b", dtype="float64"), reduce("c"), reduce("d", prescale=0.5), reduce("e"),
        reduce("big", large), reduce("f", dtype="float64", count=1),
    ):  # fmt: skip
        agreement.submit(0, request)
    # a and c are 32 bytes, e would make them 48; b and f are 40
    assert names(agreement.decide()) == [("a", "c"), ("b", "f"), ("d",), ("e",), ("big",)]


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (reduce("x", 4), reduce("x", 5), "shapes"),
        (reduce("x"), reduce("x", dtype="int32"), "dtypes"),
        (reduce("x"), reduce("x")._replace(op="avg"), "reduce ops"),
        (reduce("x"), reduce("x", prescale=2.0), "prescale factors"),
        (reduce("x"), reduce("x", codec="int8"), "compressions"),
        (reduce("x"), Request("allreduce", "x", reduce("x").parts * 2, "sum"), "numbers of tensors"),
        (Request("broadcast", "x", BYTE, root=0), Request("broadcast", "x", BYTE, root=1), "root ranks"),
        (Request("allgather", "x", BYTE), Request("allgather", "x", (Spec("int8", (1, 3)),)), "shapes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_fails_alone_and_names_both(one: Request, other: Request, what: str) -> None:
    agreement = table(3)
    for rank in range(3):
        agreement.submit(rank, reduce("fine"))
        agreement.submit(rank, other if rank == 2 else one)
    failed, fine = agreement.decide()
    assert fine.what == "run" and fine.names == ("fine",)
    assert failed.what == "fail" and failed.names == ("x",) and failed.kind == "mismatch"
    assert what in failed.error and f"rank 0 called {one.words()}" in failed.error
    assert f"rank 2 called {other.words()}" in failed.error
    assert dict(failed.calls) == {0: one.words(), 1: one.words(), 2: other.words()}


def test_rows_may_differ_and_are_told_to_all() -> None:
    agreement = table(2)
    for rank in range(2):
        agreement.submit(rank, Request("allgather", "g", (Spec("int8", (rank, 7)), Spec("int8", (2,)))))
        agreement.submit(rank, Request("alltoall", "t", (Spec("int8", (3,)),), splits=(rank, 3 - rank)))
    gather, exchange = agreement.decide()
    assert gather.counts == ([0, 1], [2, 2])
    assert exchange.counts == ((0, 3), (1, 2))


def test_a_rank_that_has_joined_is_not_waited_for() -> None:
    agreement = table(3)
    agreement.submit(0, reduce("a"))
    agreement.join(2)
    assert agreement.decide() == [] and agreement.missing("a") == [1]
    agreement.submit(1, reduce("a"))
    (order,) = agreement.decide()
    assert order.names == ("a",) and order.like == (reduce("a"),)  # it is told of what to bring zeros
    agreement.submit(0, Request("allgather", "g", (Spec("int8", (1,)),)))
    agreement.join(1)
    (failed,) = agreement.decide()
    assert "has joined" in failed.error
    agreement.join(0)
    (over,) = agreement.decide()
    assert over.what == "joined" and over.counts == (0,)
    agreement.submit(0, reduce("b"))
    assert agreement.decide() == [], "after the join all ranks are needed again"


def test_what_a_rank_submitted_before_it_joined_is_not_told_in_full() -> None:
    agreement = table(2)
    agreement.submit(0, reduce("a"))
    agreement.submit(0, Request("allgather", "g", BYTE))
    agreement.join(0)
    agreement.submit(1, reduce("a"))
    agreement.submit(1, Request("allgather", "g", BYTE))
    orders = agreement.decide()
    assert [(order.what, order.names, order.like) for order in orders] == [("run", ("a",), ()), ("run", ("g",), ())]


def test_who_has_left_fails_what_needs_it() -> None:
    agreement = table(2)
    agreement.submit(0, reduce("a"))
    agreement.leave(1)
    (failed,) = agreement.decide()
    assert failed.kind == "left" and "rank 1" in failed.error
    agreement.leave(0)
    assert [order.what for order in agreement.decide()] == ["bye"]
    assert agreement.decide() == []


def test_names_are_numbers_from_their_second_use_on() -> None:
    mine, others = Numbers(), Numbers()
    names = ["w", f"allreduce{AUTO}1", "b", "w", "b"]
    refs = [mine.ref(name) for name in names]
    assert refs == [["w"], f"allreduce{AUTO}1", ["b"], 0, 1]
    assert list(others.read(json.loads(json.dumps(refs)))) == names
    for i in range(MOST + 10):
        refs = [mine.ref(f"n{i}")]
        assert list(others.read(refs)) == [f"n{i}"]
    assert mine.ref("one too many") == "one too many" and mine.ref(f"n{MOST}") == f"n{MOST}"


def test_requests_and_orders_survive_the_wire() -> None:
    request = Request("alltoall", "x", (Spec("int8", (3, 2)), Spec("bool", ())), "", 1, 0.1, 3.0, (1, 2), "int8")
    assert from_plain(json.loads(json.dumps(request.plain()))) == request
    order = Order("fail", ("x", "y"), ([1, 2],), (request,), "what", "mismatch", ((0, "a"), (3, "b")))
    assert from_plain_order(json.loads(json.dumps(order.plain(["x", "y"]))), tuple) == order
    assert Order("run", ("x",)).plain([7]) == [7]
