"""All interleavings of small cases: two workers, two clocks, a head and its copy, and a kill at every step."""

from __future__ import annotations

from typing import Any

import pytest

import hocket
from hocket.training.server.shards.clocks import Clocks
from hocket.training.server.shards.shard import Shard
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.messages import Forward, Push, Role
from hocket.training.server.worker.heads import fate
from hocket.training.server.worker.outbox import Outbox
from support.shard_simulator import Sets, SimulatedJob, walk, wander

HEAD_DIES, COPY_DIES, WORKER_DIES = ("s", 0), ("s", 1), ("w", 2)


@pytest.mark.parametrize(("rule", "least"), [("bsp", 1000), ("ssp:1", 1000), ("async", 1000)])
def test_every_order_of_two_workers_and_two_clocks(rule: str, least: int) -> None:
    assert walk(SimulatedJob(rule, clocks=2, servers=1, copies=0)) >= least


def test_every_order_with_a_copy() -> None:
    assert walk(SimulatedJob("bsp", servers=2)) > 3000


@pytest.mark.parametrize("who", [HEAD_DIES, COPY_DIES, WORKER_DIES])
def test_every_order_and_a_death_at_every_step(who: Any) -> None:
    """One worker, or two where one of them dies."""
    workers = 1 if who[0] == "s" else 2
    assert walk(SimulatedJob("bsp", workers=workers, servers=2, copies=int(who[0] == "s")), (who,)) > 100


@pytest.mark.more
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("who", [HEAD_DIES, COPY_DIES, WORKER_DIES])
def test_every_order_of_two_workers_and_a_death_at_every_step(who: Any) -> None:
    assert walk(SimulatedJob("bsp", servers=2), (who,)) > 30000


@pytest.mark.more
def test_every_order_of_a_copy_that_dies_and_is_filled_anew() -> None:
    """One worker: two have millions of orders, of which `test_random_orders_with_deaths` draws some."""
    assert walk(SimulatedJob("bsp", workers=1, servers=3), (COPY_DIES,)) > 10000


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("rule", ["bsp", "ssp:1", "async"])
def test_random_orders_with_deaths(rule: str, servers: int) -> None:
    """Three workers; what is sent to them may be late, too; with a third server the copy is filled anew."""
    for seed in range(150):
        job = SimulatedJob(rule, workers=3, clocks=2, servers=servers, eager=seed % 2 == 0)
        wander(job, (HEAD_DIES, COPY_DIES, WORKER_DIES), f"{rule} {servers} {seed}")


def test_a_copy_refuses_a_change_that_comes_before_another() -> None:
    shard = Shard(Sets(), Clocks(0), whole=True)
    shard.take(Role(1, False, True, frozenset({1})))
    shard.take(Forward(1, 1, Push(1, 1, 1, ("a", 1, 0))))
    with pytest.raises(hocket.TransportError, match="change 3 of a shard came to its copy, which has 1"):
        shard.take(Forward(1, 3, Push(1, 1, 3, ("a", 1, 2))))


@pytest.mark.parametrize("servers", [2, 3])
def test_random_orders_with_links_that_end(servers: int) -> None:
    for seed in range(100):
        job = SimulatedJob("ssp:1", workers=3, clocks=2, servers=servers, eager=seed % 2 == 0)
        wander(job, (HEAD_DIES, COPY_DIES), f"cuts {servers} {seed}", cuts=0.15)


def test_what_is_lost_is_counted_without_clocks() -> None:
    """Nor what was refused; and a client says what became of what was acknowledged."""
    outbox = Outbox(1)
    outbox.view(0)
    outbox.take(say.Welcome(0, 0, 0))
    for number in range(1, 11):  # 1, 4, 7 and 10 are clocks, 2 is refused
        outbox.tick(number) if number % 3 == 1 else outbox.push(number)
    outbox.take(say.Refused(0, 2, "why", True))
    outbox.take(say.Ack(0, 6, 3))
    outbox.take(say.Ack(0, 10, 6))
    assert "a snapshot has 3 of the 5 pushes" in fate(outbox)
    outbox.view(1)
    outbox.take(say.Welcome(1, 6, 0))
    assert outbox.lost == 2
    outbox.view(2)
    outbox.take(say.Welcome(2, 0, 0))
    assert outbox.lost == 5
