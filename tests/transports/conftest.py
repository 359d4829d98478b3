"""Ranks of a control plane, and places for its hub."""

import contextlib
import random
import socket

import pytest
from controlled import Rank


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
    return ("unix", str(tmp_path / "d" / "hub"))


@pytest.fixture
def ports():
    """Some TCP ports that are free now, one after the other; below those that outgoing connections take."""
    for first in random.sample(range(20000, 30000, 3), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return [first, first + 1, first + 2]
    raise AssertionError("no three free ports")
