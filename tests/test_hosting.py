"""Ranks in processes of a framework: jobs of threads that meet through a store, also several at once in one process."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import hosting
from hocket.collectives.job import place, start
from hocket.collectives.start.init import config
from hocket.control.handshake import AuthError
from hocket.control.store import NOTE
from hocket.errors import ArgumentError, MismatchError, PeerLostError, TimeoutError


class Shared(dict[str, str]):
    """A store of threads."""

    set = dict.__setitem__


def ranks(size: int, function: Any, store: Any, host: str = "127.0.0.1", **options: Any) -> list[Any]:
    """Each rank's result, or its error."""

    def one(rank: int) -> Any:
        try:
            comm = hosting.join(rank, size, store, host, 20, make_default=False, **options)
            return hosting.call(comm, function)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def total(comm: hocket.Communicator) -> float:
    assert hocket.communicator() is comm
    return float(hocket.allreduce(np.full(5000, comm.rank + 1.0))[-1])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_jobs_at_once_in_threads_of_a_process(transport: str) -> None:
    """Four jobs of three ranks, each with a store of its own: nobody gets into another's job."""
    before, stores = threading.enumerate(), [Shared() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        jobs = pool.map(lambda store: ranks(3, total, store, transport=transport), stores)
        assert list(jobs) == [[6.0, 6.0, 6.0]] * 4
    left = [each.name for each in threading.enumerate() if "hocket" in each.name and each not in before]
    assert set(left) <= {"hocket-pool"}  # these wait a while for other work of this process


def test_a_secret_that_is_given_is_not_written_down() -> None:
    store, secret = Shared(), secrets.token_hex(32)
    assert ranks(2, total, store, secret=secret, transport="tcp") == [3.0, 3.0]
    assert json.loads(store[NOTE])["key"] is None and secret not in store[NOTE]


def test_ranks_with_other_secrets_do_not_meet() -> None:
    store = Shared()

    def one(rank: int) -> Any:
        with pytest.raises((AuthError, TimeoutError)):
            hosting.join(rank, 2, store, "127.0.0.1", 1, make_default=False, secret=secrets.token_hex(32))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))


def test_a_secret_and_an_address_need_no_environment() -> None:
    """`init(address=, secret=)`: no launcher, no variable."""
    secret = secrets.token_bytes(20)
    address = f"tcp:127.0.0.1:{23000 + secrets.randbelow(5000)}-29990"

    def one(rank: int) -> float:
        with hocket.init(rank, 2, address, secret=secret, iface="lo", make_default=False, timeout=60) as comm:
            return float(comm.allreduce(np.ones(3))[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == [2.0, 2.0]


def test_bad_secrets_and_interfaces_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"init\(secret=\): it is 5 bytes long; make one by"):
        hocket.init(0, 1, secret="short")
    with pytest.raises(ArgumentError, match=r"init\(secret=\): an int is not a secret"):
        hocket.init(0, 1, secret=12345678901234567890)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"init\(iface=\): 'nope' is not an interface of .*: lo"):
        hocket.init(0, 1, iface="nope")


def test_the_address_is_where_rank_0_listens() -> None:
    store = Shared()
    assert ranks(2, total, store, "127.0.0.2", transport="tcp") == [3.0, 3.0]
    assert [each[1] for each in json.loads(store[NOTE])["addresses"] if each[0] == "tcp"] == ["127.0.0.2"]


def test_one_rank_fails_and_all_end() -> None:
    def two_fails(comm: hocket.Communicator) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("by rank 2")
        comm.barrier()

    errors = ranks(3, two_fails, Shared())
    assert isinstance(errors[2], ZeroDivisionError)
    for error in errors[:2]:
        assert isinstance(error, PeerLostError) and "ZeroDivisionError: by rank 2" in str(error)
    assert hosting.cause(errors) is errors[2]


def test_the_cause_of_several_errors() -> None:
    lost, late, wrong, mine = PeerLostError("a"), TimeoutError("b"), MismatchError("c"), KeyError("d")
    assert hosting.cause([lost, late, wrong, mine]) is mine
    assert hosting.cause([lost, late, wrong]) is wrong
    assert hosting.cause([lost, late]) is lost


def test_the_warning_of_an_open_store(caplog: pytest.LogCaptureFixture) -> None:
    """A store says by `trusted` that it is none."""
    open_store, settings = Shared(), config()
    assert start.at_store(open_store, 0, 2, None, settings, 1).open_store
    open_store.trusted = True  # type: ignore[attr-defined]
    assert not start.at_store(open_store, 0, 2, None, settings, 1).open_store
    with caplog.at_level(logging.WARNING, "hocket"):
        start.warn_of_open_store.cache_clear()
        start.warn_of_open_store()
    assert "whoever reaches the store" in caplog.text


def test_ranks_of_a_host_meet_by_a_name() -> None:
    """And no others: each name has a place of its own."""
    names = [secrets.token_hex(8) for _ in range(2)]

    def one(rank: int) -> float:
        address = hosting.local_meeting(names[rank // 2])
        with hocket.init(rank % 2, 2, address, make_default=False) as comm:
            return float(comm.allreduce(np.full(1, rank + 1.0))[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [3.0, 3.0, 7.0, 7.0]


def test_the_address_from_which_a_peer_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"peer": "10.0.0.1", "master": "10.0.0.2"}
    monkeypatch.setattr(place, "local_end", ways.get)
    monkeypatch.setenv("MASTER_ADDR", "master")
    assert (hosting.own_address("peer"), hosting.own_address()) == ("10.0.0.1", "10.0.0.2")
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    assert hosting.own_address() == "127.0.0.1"
