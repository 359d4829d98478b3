"""One component: an elastic job on two hosts (network namespaces) whose cable is cut.

Needs the right to make namespaces (root); CI without it has no such machine, and says so.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import signal
import subprocess
import time
from typing import Any

import pytest

from hocket.system.namespaces import hosts as namespaces
from hocket.system.namespaces.hosts import CABLE, V4, ip, refusal
from support.elastic_ranks import mark, wait_for
from support.jobs import Job

WHY_NOT = refusal()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PROGRAM = """
import json, os, time
import numpy as np
import hocket
from hocket.hosting import FolderStore
here = {directory!r}
store = FolderStore(here + "/store") if {granting} else None
options = dict(rank=int(os.environ["RANK"]), size={size}, store=store) if store else {{}}
comm = hocket.init(elastic=True, **options)
me = comm.rank
def note(name):
    open(os.path.join(here, name), "w").close()
def await_note(name):
    while not os.path.exists(os.path.join(here, name)):
        time.sleep(0.01)
def tried(comm, info, timeout):
    try:
        made = comm.renew(info, timeout=timeout)
        total = made.allreduce(np.ones(10))[0]
        return made, ["went on", made.generation, list(made.infos), total]
    except hocket.Error as error:
        return comm, [type(error).__name__, str(error)]
comm.barrier()
note(f"ready {{me}}")
try:
    while True:
        comm.allreduce(np.ones(1000))
except hocket.PeerLostError:
    pass
comm, first = tried(comm, f"first {{me}}", {patience})
print(json.dumps(first), flush=True)
note(f"tried {{me}}")
await_note("whole")
if first[0] != "went on":
    comm, second = tried(comm, f"second {{me}}", 30)
    print(json.dumps(second), flush=True)
note(f"over {{me}}")
for rank in range({size}):  # who ends is proven to be dead, and then the last one may go on
    await_note(f"over {{rank}}")
"""


def on_two_hosts(
    where: list[int], tmp_path: pathlib.Path, patience: float, granting: bool = False, killed: int | None = None,
    **more: str,
) -> list[list[Any]]:
    """The result of each rank's first renew, while the cable was cut, and of its second, if it had to, when it was
    whole.

    killed: this rank is killed then, and the connections of host 0 are reset; the cable is whole again after 2 s.
    """
    size = len(where)
    directory = str(tmp_path / "notes")
    os.mkdir(directory, 0o700)
    places = [str(tmp_path / f"host{i}") for i in range(2)]
    for place in (*places, str(tmp_path / "tmp")):
        os.mkdir(place, 0o700)
    source = PROGRAM.format(directory=directory, size=size, patience=patience, granting=granting)
    with namespaces.hosts() as names:
        env = {"WORLD_SIZE": str(size), "MASTER_ADDR": V4[0], "MASTER_PORT": "29541", "TMPDIR": str(tmp_path / "tmp"),
               "HOCKET_SECRET": secrets.token_hex(32), **more}  # fmt: skip
        with Job(size, source, env=env, hosts=[(names[host], places[host]) for host in where]) as job:
            job.directory, own = directory, job.directory
            ranks = range(size)
            for rank in ranks:
                wait_for(job, f"ready {rank}", 60)
            ip("-n", names[0], "link", "set", CABLE, "down")
            if killed is not None:
                reset = ["ip", "netns", "exec", names[0], "ss", "-K", "state", "connected", "dst", V4[1]]
                subprocess.run(reset, check=True, capture_output=True)
                job.signal(killed, signal.SIGKILL)
                mark(job, f"over {killed}")
                time.sleep(2.0)
                ip("-n", names[0], "link", "set", CABLE, "up")
            for rank in ranks:
                if rank != killed:
                    wait_for(job, f"tried {rank}", 60)
            ip("-n", names[0], "link", "set", CABLE, "up")
            mark(job, "whole")
            ends = job.wait()
            job.directory = own
    assert all(end.code == 0 for rank, end in enumerate(ends) if rank != killed), ends
    return [[json.loads(line) for line in end.out.splitlines()] for end in ends]


def test_more_than_half_go_on_and_the_others_cannot_come_back(tmp_path: pathlib.Path) -> None:
    said = on_two_hosts([0, 1, 1], tmp_path, 10.0, HOCKET_LOST_AFTER="4")
    for rank in (1, 2):
        assert said[rank] == [["went on", 1, ["first 1", "first 2"], 2.0]]
    assert said[0][0][0] == "TimeoutError" and "more than half" in said[0][0][1]
    assert said[0][1][0] == "PeerLostError" and "could not reach it" in said[0][1][1]


def test_an_outage_that_is_shorter_than_the_limit_leaves_nobody_out(tmp_path: pathlib.Path) -> None:
    """Though the connections are broken, more than half of those that live could go on, and one is dead."""
    said = on_two_hosts([0, 0, 0, 0, 1], tmp_path, 15.0, killed=2)
    assert [said[r] for r in (0, 1, 3, 4)] == [[["went on", 1, [f"first {r}" for r in (0, 1, 3, 4)], 4.0]]] * 4


@pytest.mark.more
def test_neither_half_goes_on_and_all_do_when_the_cable_is_whole(tmp_path: pathlib.Path) -> None:
    """Though each reaches one of the other host a moment before it reaches both."""
    said = on_two_hosts([0, 0, 1, 1], tmp_path, 9.0)
    assert [each[0][0] for each in said] == ["TimeoutError"] * 4
    assert [each[1] for each in said] == [["went on", 1, [f"second {rank}" for rank in range(4)], 4.0]] * 4


SILENCE = """
import os, socket, time
from hocket.control.link import ControlLink
from hocket.control.reactor import Reactor
here, me = {directory!r}, int(os.environ["RANK"])
reactor, ended, words = Reactor(), [], []
reactor.lost_after = 6.0
if me:
    while True:
        try:
            sock = socket.create_connection(({host!r}, 29542), 1)
            break
        except OSError:
            time.sleep(0.02)
else:
    listener = socket.create_server(({host!r}, 29542))
    sock = listener.accept()[0]
link = ControlLink(reactor, sock)
link.on_message, link.on_end = words.append, lambda how: ended.append((time.monotonic(), how))
reactor.soon(link.start)
link.send({{"hello": me}})
while not words:
    time.sleep(0.01)
open(f"{{here}}/ready {{me}}", "w").close()
while not os.path.exists(f"{{here}}/cut"):
    time.sleep(0.01)
cut = time.monotonic()
if not me:
    time.sleep(4.4)
    assert not ended, ended
    link.send({{"are you": "there"}})
while not ended and time.monotonic() < cut + 20:
    time.sleep(0.01)
print(ended[0][0] - cut if ended else 20, ended[0][1] if ended else "")
reactor.close()
"""


def test_a_word_into_a_silence_does_not_make_it_longer(tmp_path: pathlib.Path) -> None:
    """The system counts from what is sent last: a host was silent for up to twice the limit so."""
    directory = str(tmp_path / "notes")
    os.mkdir(directory, 0o700)
    with namespaces.hosts() as names:
        places = [str(tmp_path / name) for name in (*names, "tmp")]
        for place in places:
            os.mkdir(place, 0o700)
        source, env = SILENCE.format(directory=directory, host=V4[0]), {"TMPDIR": places[-1]}
        with Job(2, source, env=env, hosts=[*zip(names, places, strict=False)]) as job:
            job.directory, own = directory, job.directory
            for rank in range(2):
                wait_for(job, f"ready {rank}", 60)
            ip("-n", names[1], "link", "set", CABLE, "down")
            mark(job, "cut")
            ends = job.wait()
            job.directory = own
    for end in ends:
        seconds, how = end.out.split(maxsplit=1)
        assert 3.0 < float(seconds) < 9.4 and ("not answer" in how or "network" in how), ends


@pytest.mark.more
def test_a_store_grants_one_half(tmp_path: pathlib.Path) -> None:
    said = on_two_hosts([0, 0, 1, 1], tmp_path, 15.0, granting=True)
    went = [rank for rank in range(4) if said[rank][0][0] == "went on"]
    assert went in ([0, 1], [2, 3]), said
    for rank in range(4):
        if rank in went:
            assert said[rank] == [["went on", 1, [f"first {r}" for r in went], 2.0]]
        else:
            assert said[rank][0][0] == "TimeoutError" and said[rank][1][0] == "PeerLostError"
