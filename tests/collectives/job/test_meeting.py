"""Where ranks meet and listen, on hosts whose networks and folders are not the usual ones."""

from __future__ import annotations

import pathlib
import secrets
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from hocket.system.namespaces import hosts as namespaces
from hocket.system.namespaces.hosts import CABLE, V6, ip, refusal
from support import jobs, ports
from support.faulty import facts
from support.launcher import RUN
from support.two_hosts import job_on

WHY_NOT = refusal()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
OTHER = "w0"
"""The cable's name on the second host."""


LINK = ("fe80::a", "fe80::b")
"""Addresses that mean something on the cable only."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Two hosts without IPv4, whose interfaces have other names."""
    with namespaces.hosts() as names:
        ip("-n", names[1], "link", "set", CABLE, "down")
        ip("-n", names[1], "link", "set", CABLE, "name", OTHER, "up")
        for name, device, own, on_link in zip(names, (CABLE, OTHER), V6, LINK, strict=True):
            ip("-n", name, "addr", "flush", "dev", device)
            ip("-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo")
            for address in (own, on_link):
                ip("-n", name, "-6", "addr", "add", f"{address}/64", "dev", device, "nodad")
        yield names


NEIGHBOURS = """
import os
from hocket.collectives.base.config import interface_address
link = ["v0", "w0"][int(os.environ["RANK"]) // 2]
os.environ["MASTER_ADDR"] += "%" + link
with hocket.init() as comm:
    assert comm.allreduce(np.ones(100_000))[-1] == 4
    say(listens=comm.world.transports["tcp"]._listener.address[1], named=interface_address(link))
"""


@needs_hosts
def test_addresses_of_a_link(hosts: list[str], tmp_path: pathlib.Path) -> None:
    """Each rank knows the link by its own host's name of the interface."""
    places = [f"{LINK[0]}%{CABLE}", f"{LINK[1]}%{OTHER}"]
    with job_on(hosts, NEIGHBOURS, tmp_path, master=LINK[0]) as run:
        said = [facts(end) for end in run.wait(60)]
    assert [each["listens"] for each in said] == [places[r // 2] for r in range(4)]
    assert [each["named"] for each in said] == [V6[r // 2] for r in range(4)]


ONE_HOST = """
import hocket
with hocket.init(transport="tcp") as comm:
    print(comm.allreduce(1), comm.world.transports["tcp"]._listener.address[1])
"""


@needs_hosts
def test_a_host_without_ipv4(hosts: list[str], tmp_path: pathlib.Path) -> None:
    env = {"WORLD_SIZE": "2", "TMPDIR": "/tmp"}
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as own,
        jobs.Job(2, ONE_HOST, env=env, hosts=[(hosts[0], own)] * 2) as job,
    ):
        assert [end.out for end in job.wait(60)] == ["2 ::1\n"] * 2
    there = ["ip", "netns", "exec", hosts[0]]
    program = [*there, *RUN, "-n", "1", "--", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.startswith("[0] ::1 "), done


BY_STORE = """
import os, pathlib
import hocket
class Store:
    def set(self, key, value):
        (place / "new").write_text(value)
        (place / "new").rename(place / key)
    def get(self, key):
        return (place / key).read_text() if (place / key).exists() else None
place = pathlib.Path(os.environ["TMPDIR"])
with hocket.init(int(os.environ["RANK"]), 2, store=Store(), transport="tcp", timeout=20) as comm:
    print(comm.allreduce(1), comm.world.transports["tcp"]._listener.address[1])
"""


@needs_hosts
def test_a_folder_that_two_hosts_share(hosts: list[str], tmp_path: pathlib.Path) -> None:
    """Containers with a network each and one /tmp: rank 1 meets rank 0 at its path, and has an address of its own."""
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": V6[0], "TMPDIR": "/tmp"}
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as own,
        jobs.Job(2, BY_STORE, env=env, hosts=[(name, own) for name in hosts]) as job,
    ):
        assert [end.out for end in job.wait(60)] == [f"2 {address}\n" for address in V6]


APART = """
import os, tempfile
rank = int(os.environ.pop("HOCKET_RANK")) + FIRST
del os.environ["HOCKET_LOCAL_RANK"]
os.environ["RANK"] = str(rank)
with tempfile.TemporaryDirectory() as own:
    os.environ["TMPDIR"] = own
    import hocket
    try:
        with hocket.init(timeout=TIMEOUT) as comm:
            print(comm.allreduce(1))
    except hocket.TimeoutError as error:
        print(f"meet in {own}/hocket-" in str(error), error)
"""


def apart(size: int, first: int, timeout: float, secret: str = "") -> list[str]:
    """Words of ranks of two that see other temporary folders: `size` of them, from `first` on, started by hand."""
    env = {name: "" for name in jobs.OF_A_JOB if name != "HOCKET_RANK"}
    env |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free(8)[0]), "XDG_RUNTIME_DIR": ""}
    source = APART.replace("FIRST", str(first)).replace("TIMEOUT", str(timeout))
    return jobs.run(size, source, **{**env, "HOCKET_SECRET": secret})


def test_a_secret_lets_ranks_meet_that_see_other_folders() -> None:
    assert apart(2, 0, 30, secrets.token_hex(32)) == ["2\n"] * 2


def test_without_one_they_are_told_where_they_should_have_met() -> None:
    (said,) = apart(1, 1, 0.3)
    assert said.startswith("True") and "set HOCKET_SECRET on every rank" in said and "loopback" in said, said


def test_ranks_that_a_launcher_told_where_to_meet_are_not_told_of_folders() -> None:
    source = """
        import os, hocket
        os.environ["HOCKET_RANK"] = "1"
        for address in (None, "tcp:127.0.0.1:1"):
            try:
                hocket.init(*([1, 2] if address else []), address=address, timeout=0.2)
            except hocket.TimeoutError as error:
                print(error)
    """
    (told,) = jobs.run(1, source, HOCKET_SIZE="2")
    by_launcher, by_caller = told.splitlines()
    assert "unix:" in by_launcher and "must be the same" not in by_launcher and "MASTER_ADDR" not in told, told
    assert "give an address of it that is reached from here" in by_caller, told
