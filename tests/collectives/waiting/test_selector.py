"""hocket.Selector: whose message comes next?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator

Pairs = list[tuple[Communicator, Communicator]]


@pytest.fixture(params=["shm", "tcp"])
def pairs(request: pytest.FixtureRequest) -> Iterator[Pairs]:
    """(accepted, connected) three times, in this process."""
    made: Pairs = []
    over = request.param
    with hocket.listen(transport=over) as door:
        for _ in range(3):
            ends: list[Communicator] = []
            one = threading.Thread(target=lambda to=ends: to.append(hocket.connect(door.address, transport=over)))
            one.start()
            accepted = door.accept(timeout=60)
            one.join()
            made.append((accepted, ends[0]))
    yield made
    for ends_of in made:
        closing = [threading.Thread(target=each.close) for each in ends_of]
        for each in closing:
            each.start()
        for each in closing:
            each.join()


def selecting(pairs: Pairs) -> hocket.Selector:
    selector = hocket.Selector()
    for accepted, connected in pairs:
        opening = threading.Thread(target=connected.probe, args=(0, None, 0))
        opening.start()
        selector.register(accepted)
        opening.join()
    return selector


def test_nobody_starves(pairs: Pairs) -> None:
    """Each has many messages waiting: they take turns, and none is told of before it has come."""
    with selecting(pairs) as selector:
        assert selector.select(timeout=0.02) is None
        for place, (_, connected) in enumerate(pairs):
            for number in range(9):
                connected.send(np.full(1 + place, number, np.uint8), 0, place)
        came = []
        for _ in range(27):
            found = selector.select()
            assert found is not None
            comm, tag, nbytes, whole = found
            place = [accepted for accepted, _ in pairs].index(comm)
            assert (tag, nbytes, whole) == (place, 1 + place, True)
            came.append((place, int(comm.recv(np.zeros(nbytes, np.uint8), 1, tag)[0])))
        assert all(len({place for place, _ in came[i : i + 3]}) == 3 for i in range(0, 27, 3)), came
        assert sorted(came) == [(place, number) for place in range(3) for number in range(9)]
        assert selector.select(timeout=0) is None


def test_a_message_that_another_recv_has_passed(pairs: Pairs) -> None:
    """A message that is set aside is older than what the channel holds."""
    accepted, connected = pairs[1]
    with selecting(pairs) as selector:
        for tag in (7, 8, 9):
            connected.send(np.full(2, tag), 0, tag)
        accepted.recv(np.zeros(2, int), 1, 8)
        for tag in (7, 9):
            assert selector.select() == (accepted, tag, 16, True)
            accepted.recv(np.zeros(2, int), 1, tag)


def test_one_that_sleeps(pairs: Pairs) -> None:
    """It hears of a message, and of a communicator that is registered meanwhile; `unregister` waits for it."""
    selector = selecting(pairs[:1])
    found: list[object] = []
    with selector:
        asks = threading.Thread(target=lambda: found.append(selector.select()))
        asks.start()
        selector.register(pairs[1][0])
        time.sleep(0.1)
        selector.unregister(pairs[1][0])
        pairs[1][1].send(np.zeros(2), 0, 6)
        pairs[2][1].send(np.zeros(3), 0, 5)
        time.sleep(0.1)
        assert not found
        selector.register(pairs[2][0])
        asks.join()
        assert (pairs[1][0].recv(np.ones(2), 1, 6) == 0).all()
    assert found[0] == (pairs[2][0], 5, 24, True)
    pairs[2][0].recv(np.zeros(3), 1, 5)


def test_it_sleeps_while_a_send_waits_for_its_reader(pairs: Pairs) -> None:
    """The send is not the selector's to carry on; and messages are heard at once meanwhile."""
    accepted, connected = pairs[0]
    x = np.ones(1 << 22)
    with selecting(pairs) as selector:
        work = accepted.send(x, 1, 3, async_op=True)
        before = time.thread_time()
        assert selector.select(timeout=0.5) is None
        assert time.thread_time() - before < 0.2
        connected.send(x[:1], 0, 4)
        assert selector.select() == (accepted, 4, 8, True)
        accepted.recv(np.zeros(1), 1, 4)
        assert not work.done()
        connected.recv(np.zeros_like(x), 0, 3)
        work.wait()


def test_a_long_message(pairs: Pairs) -> None:
    """It is told of when its first bytes are there."""
    accepted, connected = pairs[0]
    x = np.arange(1 << 20)
    with selecting(pairs) as selector:
        work = connected.send(x, 0, 3, async_op=True)
        assert selector.select() == (accepted, 3, x.nbytes, False)
        assert (accepted.recv(np.zeros_like(x), 1, 3) == x).all()
        work.wait()


def test_one_that_has_failed(pairs: Pairs) -> None:
    accepted, connected = pairs[1]
    with selecting(pairs) as selector:
        connected.abort(ValueError("enough"))
        assert selector.select(timeout=60) == (accepted, None, 0, False)
        with pytest.raises(hocket.Error, match="enough"):
            accepted.recv(np.zeros(1), 1)


def test_more_than_two_ranks() -> None:
    def asks(comm: Communicator) -> None:
        with hocket.Selector() as selector, pytest.raises(hocket.ArgumentError, match="has 3 ranks"):
            selector.register(comm)

    with hocket.local_world(3) as world:
        world.run(asks)
