"""A rank is killed, the cable is cut: the others say so within seconds, and nothing is left in the devices."""

from __future__ import annotations

import functools
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from forked import Job
from places import ADDRESSES, HOSTS, PLACES, TRANSPORTS, env, freed, held

from hocket.system.namespaces.hosts import CABLE, V4, hosts, ip
from support.faulty import all_ready, endure, facts

SOON = 10.0
"""Seconds from the kill to the exception: a second on a real machine, and this one is emulated."""
CALLS = ("allreduce", "broadcast", "alltoall", "send", "barrier", "async")


def survivors(job: Job, ends: list[object], victims: set[int], when: float, limit: float) -> None:
    for rank in set(range(job.size)) - victims:
        said = facts(ends[rank])  # type: ignore[arg-type]
        assert said["error"] == "PeerLostError" and set(said["ranks"]) <= victims and said["ranks"], said
        assert said["at"] - when < limit, (said["at"] - when, said)
        assert said["left"] == [], said


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_in_the_middle(transport: str, size: int, name: str, tmp_path: pathlib.Path) -> None:
    dice, before = random.Random(f"{transport}{size}{name}"), held()
    victim, place = dice.randrange(size), dice.choice(list(PLACES))
    with Job(size, functools.partial(endure, name, transport), tmp_path, env(transport, PLACES[place][:size])) as job:
        all_ready(tmp_path, range(size))
        time.sleep(dice.uniform(0.0, 0.3))
        killed = time.monotonic()
        job.signal(victim, signal.SIGKILL)
        ends = job.wait()
        assert ends[victim].code == -signal.SIGKILL
        survivors(job, list(ends), {victim}, killed, SOON)
    freed(before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_of_four_killed(transport: str, tmp_path: pathlib.Path) -> None:
    before = held()
    with Job(4, functools.partial(endure, "allreduce", transport), tmp_path, env(transport, PLACES["across"])) as job:
        all_ready(tmp_path, range(4))
        killed = time.monotonic()
        for victim in (1, 2):
            job.signal(victim, signal.SIGKILL)
        survivors(job, list(job.wait()), {1, 2}, killed, SOON)
    freed(before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_killed_leave_nothing(transport: str, tmp_path: pathlib.Path) -> None:
    before = held()
    with Job(4, functools.partial(endure, "allreduce", transport), tmp_path, env(transport, PLACES["across"])) as job:
        all_ready(tmp_path, range(4))
        assert transport != "verbs" or held() != before, "what is counted here is not what the ranks hold"
        for rank in range(4):
            job.signal(rank, signal.SIGKILL)
        assert [end.code for end in job.wait()] == [-signal.SIGKILL] * 4
    freed(before)


# ----------------------------------------------------------------------------------------------- the cable


@pytest.fixture
def mended() -> Iterator[None]:
    yield
    for i, address in enumerate(ADDRESSES):
        ip("link", "set", f"veth{i}", "up")
        ip("route", "replace", "10.77.0.0/24", "dev", f"veth{i}", "table", str(77 + i))
        for _ in range(100):
            if "state ACTIVE" in subprocess.run(["rdma", "link"], capture_output=True, text=True, check=True).stdout:
                break
            time.sleep(0.1)
        assert address in ip("addr", "show", f"veth{i}")


def cut(job: Job, tmp_path: pathlib.Path, *link: str) -> None:
    all_ready(tmp_path, range(job.size))
    when = time.monotonic()
    ip(*link, "down")
    for rank, end in enumerate(job.wait()):
        said = facts(end)
        assert said["error"] in ("PeerLostError", "TransportError"), said
        assert len(said["text"]) > 20 and said["at"] - when < 30.0, (rank, said["at"] - when, said)
        assert said["left"] == [], said


@pytest.mark.parametrize("transport", [transport for transport in TRANSPORTS if transport != "tcp"])
@pytest.mark.parametrize("name", ["allreduce", "async"])
def test_the_devices_cable_is_cut(name: str, transport: str, mended: None, tmp_path: pathlib.Path) -> None:
    """The ranks still hear of each other, as the coordinator goes another way: only the bytes do not come."""
    before = held()
    with Job(2, functools.partial(endure, name, transport), tmp_path, env(transport, PLACES["across"][:2])) as job:
        cut(job, tmp_path, "link", "set", "veth0")
    freed(before)


def test_the_hosts_cable_is_cut(tmp_path: pathlib.Path) -> None:
    function = functools.partial(endure, "allreduce", "tcp")
    with hosts() as nets, Job(4, function, tmp_path, hosts=HOSTS, nets=nets, master=V4[0]) as job:
        cut(job, tmp_path, "-n", nets[0], "link", "set", CABLE)
