"""Ranks of a control plane, and places for its hub."""

import free
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
    return free.ports(3)
