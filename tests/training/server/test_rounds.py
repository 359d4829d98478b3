"""Tables that step once a clock, by the mean of all pushes: every order of small cases, a death at every step."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from hocket.training import SGD, Range
from hocket.training.server.shards.clocks import Clocks
from hocket.training.server.shards.dealing import dealt
from hocket.training.server.shards.rounds import Round
from hocket.training.server.shards.shard import COPY, Shard
from hocket.training.server.shards.store import Change, Tables, What
from hocket.training.server.tables import Places
from hocket.training.server.wire.messages import Answer, Clock, Hello, Pull, Push, Refused, Role
from support.shard_simulator import Means, SimulatedJob, walk, wander

HEAD_DIES, COPY_DIES, WORKER_DIES = ("s", 0), ("s", 1), ("w", 2)


@pytest.mark.parametrize("items", [1, 2])
def test_every_order_of_two_workers_and_two_clocks(items: int) -> None:
    assert walk(SimulatedJob("bsp", clocks=2, servers=1, copies=0, store=Means, items=items)) >= 100


def test_every_order_where_a_worker_dies() -> None:
    assert walk(SimulatedJob("bsp", servers=2, copies=0, store=Means, items=1), (WORKER_DIES,)) > 100


@pytest.mark.parametrize("who", [HEAD_DIES, COPY_DIES])
def test_every_order_where_a_server_dies(who: Any) -> None:
    assert walk(SimulatedJob("bsp", workers=1, clocks=2, servers=2, store=Means), (who,)) > 100


@pytest.mark.parametrize("servers", [2, 3])
def test_random_orders_with_deaths_and_links_that_end(servers: int) -> None:
    for seed in range(150):
        job = SimulatedJob("bsp", workers=3, clocks=3, servers=servers, eager=seed % 2 == 0, store=Means)
        wander(job, (HEAD_DIES, COPY_DIES, WORKER_DIES), f"rounds {servers} {seed}", cuts=0.1 * (seed % 3 == 0))


def test_a_worker_that_comes_has_no_part_in_a_round_before() -> None:
    """Another shard's clocks may be ahead, and it begins at those."""
    tables = Tables(Places({"w": Range(1, optimizer=SGD(1.0), mean=True)}, 1), 0)
    shard = Shard(tables, Clocks(0), whole=True)

    def take(*changes: Any) -> None:
        for worker, sequence, change in changes:
            shard.take(Push(shard.generation, worker, sequence, change))

    def values(value: float) -> Change:
        return Change(0, 0, None, np.full(1, value, np.float32))

    shard.take(Role(0, True, False, frozenset({1, 2})))
    take((1, 1, Clock(0)), (2, 1, Clock(0)), (1, 2, values(1.0)), (1, 3, Clock(1)))
    shard.take(Role(1, True, False, frozenset({1, 2, 3})))
    take((3, 1, Clock(1)))
    again = Tables(Places({"w": Range(1, optimizer=SGD(1.0), mean=True)}, 1), 0)
    again.load((0, 0), tables.dump((0, 0)))
    assert again.held[0, 0].round.numbers() == tables.held[0, 0].round.numbers() == [0, 1, 1, 3, 1]
    take((2, 2, values(3.0)))
    assert tables.held[0, 0].values[0] == -2.0, "the mean of 1 and 3, not a third of their sum"
    take((1, 4, values(3.0)), (2, 3, Clock(1)), (2, 4, values(3.0)))
    assert tables.held[0, 0].values[0] == -2.0, "and it is waited for in the next"
    take((3, 2, values(3.0)))
    assert tables.held[0, 0].values[0] == -5.0
    take((1, 5, Clock(2)), (2, 5, Clock(2)), (3, 3, Clock(2)), (1, 6, values(0.0)), (2, 6, values(0.0)))
    take((3, 4, values(0.0)))
    shard.take(Role(2, True, False, frozenset({1, 2, 3, 4})))
    (_, welcome), *_ = shard.take(Hello(2, 4))
    assert welcome.slowest == 3, "the others are at clock 2, and have stepped for it"
    for numbers in ([], [0], [0, 2, 5], [0, 0, 1]):
        with pytest.raises(ValueError, match="a round of"):
            Round.restored(numbers)


def test_a_worker_that_leaves_is_in_the_mean_of_the_clocks_that_it_has_ended() -> None:
    """It has no part of this table, and was sooner done than who has: its zeros were left out of the last step."""
    tables = Tables(Places({"w": Range(1, optimizer=SGD(1.0), mean=True)}, 1), 0)
    shard = Shard(tables, Clocks(0), whole=True)
    shard.take(Role(0, True, False, frozenset({1, 2})))
    pushed = Change(0, 0, None, np.full(1, 4, np.float32))
    for worker, sequence, change, value in [
        (1, 1, Clock(0), 0), (2, 1, Clock(0), 0), (2, 2, Clock(1), 0), (2, 3, Clock(None), 0), (1, 2, pushed, -2),
        (1, 3, Clock(1), -2), (1, 4, pushed, -6),
    ]:  # fmt: skip
        shard.take(Push(0, worker, sequence, change))
        assert tables.held[0, 0].values[0] == value, sequence
    round_ = Round(2)
    round_.comes(3, 3)
    round_.leaves(3, 3)
    assert round_.workers({1: 2}) == 1, "it came for the clock behind this one, and left"


@pytest.mark.parametrize("moment", range(5))
def test_a_copy_that_is_filled_knows_who_has_come_and_left(moment: int) -> None:
    layout = Places({"v": Range(1, optimizer=SGD(1.0), mean=True), "w": Range(1, optimizer=SGD(1.0), mean=True)}, 1)
    held = [Tables(layout, 0) for _ in range(2)]
    head, copy = (Shard(tables, Clocks(0), whole=not i) for i, tables in enumerate(held))
    on_the_way: deque[Any] = deque()

    def between(said: Any, to: Shard) -> None:
        on_the_way.extend((each, copy if where == COPY else head) for where, each in to.take(said) if where < 0)

    copy.take(Role(0, False, False, frozenset({1, 2, 3})))
    between(Role(0, True, True, frozenset({1, 2, 3})), head)
    for worker in (1, 2):
        between(Push(0, worker, 1, Clock(0)), head)
    between(Push(0, 2, 2, Clock(1)), head)
    for step in range(20):
        if step == moment:
            between(Push(0, 2, 3, Clock(None)), head)
            between(Push(0, 3, 1, Clock(2)), head)
        if on_the_way:
            between(*on_the_way.popleft())
    assert head.state == "full" and copy.whole
    here, there = ([each.round.numbers() for each in tables.held.values()] for tables in held)
    assert here == there == [[0, 1, 2, 3, 2]] * 2
    assert copy.clocks.at == head.clocks.at


def test_workers_of_a_new_job_begin_a_round_anew() -> None:
    """Pushes of the old ones that had not stepped are dropped; the values go on, dealt to other shards, too."""
    layout = Places({"w": Range(2, optimizer=SGD(1.0), mean=True)}, 1)
    tables = Tables(layout, 0)
    shard = Shard(tables, Clocks(0), whole=True)

    def push(worker: int, sequence: int, value: float) -> Any:
        return shard.take(Push(shard.generation, worker, sequence, Change(0, 0, None, np.full(2, value, np.float32))))

    def pull(worker: int, number: int, clock: int) -> list[float]:
        out = shard.take(Pull(shard.generation, worker, number, clock, What(0, 0, None)))
        return [float(each.value[0]) for _, each in out if isinstance(each, Answer)]

    shard.take(Role(0, True, False, frozenset({1, 2})))
    for worker in (1, 2):
        shard.take(Push(0, worker, 1, Clock(0)))
        push(worker, 2, worker)
    assert pull(1, 3, 1) == [-1.5], "the mean of 1 and 2"
    push(1, 4, 8.0)
    assert isinstance(push(1, 5, 8.0)[0][1], Refused), "one push a round"
    held = tables.dump((0, 0))
    again = dealt(layout, [{(0, 0): held}], Places(layout.by_name, 2), 1)
    assert again[0, 1]["round"].tolist() == [0, 0, 0] and again[0, 1]["values"].tolist() == [-1.5]
    shard.take(Role(1, True, False, frozenset({7})))
    shard.take(Push(1, 7, 1, Clock(0)))
    assert pull(7, 2, 1) == []
    assert [type(each).__name__ for _, each in push(7, 3, 1.0)] == ["Ack", "Answer"]
    assert tables.held[0, 0].values[0] == -2.5
