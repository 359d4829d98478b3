"""Several hosts: two network namespaces with a cable between them, in each a temporary directory and two ranks.

Needs the right to make namespaces (root); CI without it has no such machine, and says so.
"""

from __future__ import annotations

import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hocket.system.namespaces import hosts as namespaces
from hocket.system.namespaces.hosts import CABLE, V4, V6, ip, refusal
from support.cases import more
from support.faulty import all_ready, facts
from support.two_hosts import job_on

WHY_NOT = refusal()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    with namespaces.hosts() as names:
        yield names


TRANSPORTS = """
comm = hocket.init({how})
mine = {{p: comm.world.transport(p) for p in range(4) if p != comm.rank}}
say(groups=comm.groups, transports=mine, explain=comm.explain("allreduce", 8))
say(place=(comm.host, comm.local_rank, comm.local_size))
assert comm.membership.main.layout.apart
assert comm.membership.main.layout.segment == 245760, "longer chunks, as each waits for the latency between hosts"
for name, call in faulty.CALLS.items():
    call(comm, np.arange(25200.0))
for n in (1, 7, 3000, 400000):
    x = (np.arange(n) % 1000 + comm.rank).astype(np.float64)
    expected = 4.0 * (np.arange(n) % 1000) + 6
    for algorithm in (None, "ring", "hierarchical"):
        assert np.array_equal(comm.allreduce(x, out=np.empty(n), algorithm=algorithm), expected), (n, algorithm)
    for root in range(4):
        for algorithm in (None, "hierarchical"):
            y = x.copy()
            assert np.array_equal(comm.broadcast(y, root, algorithm=algorithm), np.arange(n) % 1000 + root), (n, root)
        got = comm.reduce(x, root)
        assert got is None if comm.rank != root else np.array_equal(got, expected)
    assert np.array_equal(comm.allgather(x)[3 * n:], np.arange(n) % 1000 + 3)
    y = np.repeat(np.arange(4.0), n) + 10 * comm.rank
    assert np.array_equal(comm.alltoall(y), np.repeat(np.arange(4.0) * 10, n) + comm.rank)
    assert np.array_equal(comm.reduce_scatter(y), np.full(n, 4.0 * comm.rank + 60))
    before = np.arange(n) % 1000 * (comm.rank + 1.0) + sum(range(comm.rank + 1))
    assert np.array_equal(comm.scan(x, out=np.empty(n)), before)
if comm.rank < 2:  # by the way that leads to the other host, and nobody there calls
    y = np.empty(3)
    comm.sendrecv(np.full(3, 7.0 + comm.rank), 1 - comm.rank, y, 1 - comm.rank, transport="tcp")
    assert y[0] == 8 - comm.rank, y
ports = [t._listener.address for name, t in comm.world.transports.items() if name == "tcp"]
comm.close()
say(done=True, ports=ports)
"""


@pytest.mark.parametrize(
    ("master", "how", "env"),
    [
        (V4[0], "", {}),
        (V6[0], "", {"HOCKET_PORTS": "41000-41003"}),
        *more((V4[0], "auth='none'", {"HOCKET_SECRET": ""})),
    ],
    ids=["ipv4", "ipv6 and HOCKET_PORTS", "no secret"],
)
def test_two_hosts(hosts: list[str], master: str, how: str, env: dict[str, str], tmp_path: pathlib.Path) -> None:
    deep = tmp_path / ("deep" * 20)  # as parallel tests' folders are: too long for the paths of sockets
    deep.mkdir()
    with job_on(hosts, TRANSPORTS.format(how=how), deep, master=master, **env) as run:
        ends = run.wait(60)
    assert [end.code for end in ends] == [0] * 4, "\n".join(end.err for end in ends)
    for rank, end in enumerate(ends):
        said = facts(end)
        assert said["groups"] == [[0, 1], [2, 3]] and said["place"] == [rank // 2, rank % 2, 2], said
        mate = rank ^ 1
        assert said["transports"] == {str(p): "shm" if p == mate else "tcp" for p in range(4) if p != rank}, said
        assert said["done"] and said["ports"][0][1] == ((V6 if ":" in master else V4)[rank // 2]), said
        if "HOCKET_PORTS" in env:
            assert 41000 <= said["ports"][0][2] <= 41003, said


TORCH = """
import torch, torch.distributed as dist, hocket.torch
dist.init_process_group("hocket")
group = dist.group.WORLD
pair = dist.new_group([1, 2])
x = torch.full((100000,), float(dist.get_rank()))
if dist.get_rank() in (1, 2):
    dist.all_reduce(x, group=pair)
dist.all_reduce(x)
transports = [group.comm.world.transport(p) for p in range(4) if p != dist.get_rank()]
say(found=x[-1].item(), groups=group.comm.groups, transports=transports)
dist.destroy_process_group()
"""


def test_torch_over_two_hosts(hosts: list[str], tmp_path: pathlib.Path) -> None:
    """The store of torch, which rank 0 opens at MASTER_ADDR, tells where rank 0 is, and the key: so it warns, once."""
    with job_on(hosts, TORCH, tmp_path, HOCKET_SECRET="") as run:
        ends = run.wait(60)
    assert [end.code for end in ends] == [0] * 4, "\n".join(end.err for end in ends)
    assert [end.err.count("as with auth='none'") for end in ends] == [1, 0, 0, 0], ends[0].err
    for rank, end in enumerate(ends):
        said = facts(end)
        assert said["found"] == 0 + 3 + 3 + 3 and said["groups"] == [[0, 1], [2, 3]], said
        assert said["transports"] == ["shm" if p == rank ^ 1 else "tcp" for p in range(4) if p != rank], said


def errors(run: Any) -> list[str]:
    ends = run.wait(60)
    assert all(end.code != 0 for end in ends), ends
    return [end.err for end in ends]


def test_missing_secret_is_refused(hosts: list[str], tmp_path: pathlib.Path) -> None:
    with job_on(hosts, "hocket.init(timeout=5)", tmp_path, HOCKET_SECRET="") as run:
        for text in errors(run):
            assert "ArgumentError" in text and "HOCKET_SECRET" in text and "HOCKET_SECRET_FILE" in text, text
            assert 'auth="none"' in text or "auth='none'" in text, text


def test_loopback_master_gives_a_hint(hosts: list[str], tmp_path: pathlib.Path) -> None:
    with job_on(hosts, "hocket.init(timeout=6)", tmp_path, master="127.0.0.1") as run:
        texts = errors(run)
    assert "[2, 3] did not come" in texts[0], texts[0]
    for rank in (2, 3):
        assert "127.0.0.1" in texts[rank] and "loopback" in texts[rank], texts[rank]


CUT = """
comm = hocket.init()
x = np.arange(50000.0)
comm.allreduce(x.copy())
ready()
with telling():
    while True:
        comm.allreduce(x.copy())
comm.close()
say(left=[what for what in faulty.held()])
"""


def test_cut_cable(hosts: list[str], tmp_path: pathlib.Path) -> None:
    with job_on(hosts, CUT, tmp_path) as run:
        all_ready(tmp_path, range(4))
        time.sleep(0.2)
        cut = time.monotonic()
        ip("-n", hosts[0], "link", "set", CABLE, "down")
        ends = run.wait(60)
    for rank, end in enumerate(ends):
        said = facts(end)
        other_side = {2, 3} if rank < 2 else {0, 1}
        assert said["error"] == "PeerLostError" and said["ranks"] and set(said["ranks"]) <= other_side, (rank, said)
        assert said["at"] - cut < 15, (rank, said["at"] - cut)  # the limit of 5, a probe, and a busy machine
        assert said["left"] == [], said


OUTAGE = """
import pathlib, sys
comm = hocket.init()
x = np.arange(50000.0)
expected = 4 * x
over = pathlib.Path({over!r})
ready()
slowest, back, stop = 0.0, 0.0, False
while not stop:
    began = time.monotonic()
    stop = comm.allreduce(np.array([over.exists()]), "max")[0]
    assert np.array_equal(comm.allreduce(x, out=np.empty_like(x)), expected)
    slowest = max(slowest, time.monotonic() - began)
    back = back or slowest > {out} - 0.5 and time.monotonic()
    time.sleep(0.01)
say(slowest=slowest, back=back, explain=comm.explain())
comm.close()
"""


def tc(host: str, how: str, *queue: str) -> None:
    subprocess.run(["tc", "-n", host, "qdisc", how, "dev", CABLE, "root", *queue], check=True)


@pytest.mark.parametrize(
    ("master", "out", "after"),
    [(V6[0], 2.0, {}), pytest.param(V4[0], 8.0, {"HOCKET_LOST_AFTER": "20"}, marks=pytest.mark.more),
     pytest.param(V6[0], 20.0, {"HOCKET_LOST_AFTER": "60"}, marks=pytest.mark.more)],
    ids=["ipv6", "longer than by default", "a long one"],
)  # fmt: skip
def test_an_outage_is_no_loss(
    hosts: list[str], master: str, out: float, after: dict[str, str], tmp_path: pathlib.Path
) -> None:
    """Connections are reset, then the cable is out: bytes flow soon after its return, and all sums are right."""
    over = tmp_path / "over"
    with job_on(hosts, OUTAGE.format(over=str(over), out=out), tmp_path, master=master, **after) as run:
        all_ready(tmp_path, range(4))
        other = f"[{V6[1]}]" if ":" in master else V4[1]
        ss = ["ip", "netns", "exec", hosts[0], "ss", "-K", "state", "established", "dst", other]
        for _ in range(3):
            time.sleep(0.1)
            subprocess.run(ss, check=True, capture_output=True)
        for host in hosts:  # nothing passes; an interface that is down would lose its IPv6 addresses besides
            tc(host, "replace", "pfifo", "limit", "0")
        time.sleep(out)
        for host in hosts:
            tc(host, "delete")
        up = time.monotonic()
        time.sleep(2.0)
        over.touch()
        ends = run.wait(60)
    assert [end.code for end in ends] == [0] * 4, "\n".join(end.err for end in ends)
    for end in ends:
        said = facts(end)
        assert "made again" in said["explain"], said
        assert said["slowest"] > out - 0.5 and said["back"] - up < 4.0, said
