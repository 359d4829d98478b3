"""Ranks of a control plane, places for its coordinator, and a listener."""

import pytest

from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
from support import ports as tcp_ports
from support.controlled import Rank
from support.hello import KEY


@pytest.fixture
def start():
    """start(size, ...) starts ranks 0..size-1; start.one(rank, ...) a single one."""
    ranks = []

    def one(*args, **kw):
        ranks.append(Rank(*args, **kw))
        return ranks[-1]

    def all_of(size, address, **kw):
        made = [one(rank, size, address, **kw) for rank in range(size)]
        assert len({rank.hear("joined") for rank in made}) == 1, "all have the same session key"
        return made

    all_of.one = one
    yield all_of
    for rank in ranks:
        rank.end()


@pytest.fixture
def unix(tmp_path):
    return ("unix", str(tmp_path / "d" / "meet"))


@pytest.fixture
def ports():
    return tcp_ports.free(3)


@pytest.fixture
def reactor():
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def got():
    peers = []
    yield peers
    for sock, _ in peers:
        sock.close()


@pytest.fixture
def tcp(reactor, got):
    listener = Listener(reactor, ("tcp", "127.0.0.1", 0), KEY, lambda sock, hello: got.append((sock, hello)))
    yield listener
    listener.close()
