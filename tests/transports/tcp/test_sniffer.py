"""Whoever reads the cable between the hosts of an encrypted job finds nothing that any call, push, pull, state, word or
trace has carried."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from hocket.system import namespaces
from hocket.system.namespaces.hosts import CABLE, V4, refusal
from support import jobs, worlds

SECRET = "a secret of those whose cable is read 44"
ALL_KINDS = 3
"""Number of all protocols of the link layer."""
KINDS = {
    "allreduce", "allgather", "alltoall", "bcast", "reduce-scatter", "send", "async", "lane", "group", "object",
    "share", "info", "notice", "trace", "pair", "state", "healed", "push", "pull", "rows", "snapshot",
}  # fmt: skip
"""Kinds of words that carry a mark in SOURCE."""
SOURCE = """
import os, time
import numpy as np
import hocket
from hocket.training import Client, Crew, Range, Rows, serve

who, folder = int(os.environ["RANK"]), os.path.dirname(__file__)
how = {how}

def marked(kind, n=4096):  # of ASCII: finite as floats
    return np.resize(np.frombuffer(("~mark-%s~" % kind).ljust(32, ".").encode(), np.uint8), 4 * n).view(np.float32)

class State:
    position = 0
    word = "~mark-info~"
    def __init__(self, x):
        self.x = x
    def arrays(self):
        return {"x": self.x}
    def numbers(self):
        return {"about": "~mark-healed~"}
    def load(self, numbers):
        assert numbers == self.numbers()
        self.position = 1

def place(name):
    return os.path.join(folder, name)

def tell(name, text):
    with open(place(name + "~"), "w") as file:
        file.write(text)
    os.rename(place(name + "~"), place(name))

def heard(name):
    while not os.path.exists(place(name)):
        time.sleep(0.005)
    return open(place(name)).read()

def calls(comm):
    me, other = comm.rank, 1 - comm.rank
    def right(got, kind):
        assert (got.reshape(-1, 4096) == marked(kind)).all(), kind
    right(comm.allreduce(marked("allreduce"), "max"), "allreduce")
    right(comm.allgather(marked("allgather")), "allgather")
    right(comm.alltoall(marked("alltoall", 8192)), "alltoall")
    right(comm.broadcast(marked("bcast") if me == 0 else np.zeros(4096, np.float32), 0), "bcast")
    right(comm.reduce_scatter(marked("reduce-scatter", 8192), "max"), "reduce-scatter")
    right(comm.sendrecv(marked("send"), other, np.zeros(4096, np.float32), other), "send")
    right(comm.allreduce(marked("async"), "max", async_op=True).result(), "async")
    right(comm.lane("aside").allreduce(marked("lane"), "max"), "lane")
    right(comm.create_group([0, 1], "both").allreduce(marked("group"), "max"), "group")
    assert comm.allgather_object("~mark-object~") == ["~mark-object~"] * 2
    assert comm.share("~mark-share~", within="a test") == ["~mark-share~"] * 2
    with comm.trace(place("t.json")):
        comm.mark("~mark-trace~", 1)
        comm.barrier()
    with hocket.listen(iface=comm.address, like=comm) as pairs:
        at = comm.share(pairs.address, within="a test")
        if me == 0:
            with pairs.accept(timeout=60) as pair:
                pair.send(marked("pair"), 1)
        else:
            with hocket.connect(at[0], like=comm) as pair:
                right(pair.recv(np.zeros(4096, np.float32), 0), "pair")
            if how.get("encrypt"):
                try:
                    hocket.connect(at[0], like=comm, encrypt=False, timeout=30)
                except hocket.ArgumentError as error:
                    refused = str(error)
                assert "encrypt" in refused, refused
    comm.set_notice("~mark-notice~")
    comm.barrier()
    if me:
        assert hocket.hosting.notice(at_door, **how) == "~mark-notice~"
    comm.barrier()

if who < 2:
    comm = hocket.init(elastic=True, timeout=60, **how)
    at_door = comm.share(comm.door)[0]
    calls(comm)
    state = State(marked("state"))
    crew = Crew(comm, grace=60, serve=state if who == 0 else None)
    state.position = 1
    if who == 0:
        tell("door", comm.door)
    while crew.comm.size == 2:
        crew.boundary(state)
        time.sleep(0.01)
else:
    del os.environ["RANK"], os.environ["WORLD_SIZE"]  # it is no rank yet
    state = State(np.zeros(4096, np.float32))
    crew = Crew.join(heard("door"), state, timeout=60, **how)
    crew.boundary(state)
assert (state.x == marked("state")).all() and state.position == 1
comm = crew.comm
tables = {"w": Range(4096, optimizer="put"), "rows": Rows(8, optimizer="put", rows=64)}
if comm.rank == 0:
    serve(comm, tables, on=[0], clock="async", snapshot=place("kept")).wait()
    with hocket.local_world(1) as world:
        with serve(world.comms[0], tables, on=[0], clock="async", works=True, snapshot=place("kept")) as server:
            with Client(server) as client:
                assert (client.pull("w") == marked("snapshot")).all()
    crew.close()
else:
    with Client(comm, tables) as client:
        client.push("w", marked("push"))
        client.push("rows", marked("rows", 64).reshape(8, 8), rows=np.arange(8))
        assert (client.pull("rows", rows=np.arange(8)) == marked("rows", 64).reshape(8, 8)).all()
        client.push("w", marked("pull"))
        while (client.pull("w") != marked("pull")).any():
            pass
        tell(f"pulled {who}", "")
        for each in (1, 2):
            heard(f"pulled {each}")
        client.push("w", marked("snapshot"))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    if why := refusal():
        pytest.skip(why)
    with namespaces.hosts.hosts() as names:
        yield names


class Sniffer:
    """Reads all that one host's cable carries; `kinds`: the marks that it has seen."""

    def __init__(self, host: str) -> None:
        self._sock: socket.socket | None = None
        entering = threading.Thread(target=self._open, args=(host,))
        entering.start()
        entering.join()
        self.kinds: set[str] = set()
        self.nbytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _open(self, host: str) -> None:
        """In a thread of its own, which alone is on that host; a socket stays where it was made."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{host}") as file:
            assert libc.setns(file.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_KINDS))
        sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: no packet is missed
        sock.bind((CABLE, 0))
        sock.settimeout(0.1)
        self._sock = sock

    def _read(self) -> None:
        assert self._sock is not None
        while True:
            try:
                data = self._sock.recv(1 << 17)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            self.nbytes += len(data)
            self.kinds |= {each.decode() for each in re.findall(rb"~mark-([a-z-]+)~", data)}

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        assert self._sock is not None
        self._sock.close()


def read(hosts: list[str], folder: pathlib.Path, how: dict[str, object], **env: str) -> set[str]:
    """Marks that cross the cable while a job on both hosts, and one that comes to it, make all kinds of calls."""
    places = [folder / name for name in "abb"]
    for each in places:
        each.mkdir(exist_ok=True)
    named = [(hosts[i > 0], str(places[i])) for i in range(3)]
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": V4[0], "MASTER_PORT": "29500", "PYTHONPATH": worlds.PATH,
           "HOCKET_TRANSPORT": "tcp", "TMPDIR": str(folder / "a"), **env}  # fmt: skip
    sniffer = Sniffer(hosts[0])
    try:
        with jobs.Job(3, SOURCE.replace("{how}", repr(how)), env=own, hosts=named) as job:
            ends = job.wait(90)
    finally:
        sniffer.close()
    assert [end.code for end in ends] == [0] * 3, "\n".join(end.err for end in ends)
    assert sniffer.nbytes > 1 << 18
    return sniffer.kinds


def test_no_marked_byte_of_an_encrypted_job_crosses_the_cable(hosts: list[str], tmp_path: pathlib.Path) -> None:
    assert read(hosts, tmp_path, {"secret": SECRET, "encrypt": True}) == set()


@pytest.mark.more
def test_nor_where_the_environment_says_so(hosts: list[str], tmp_path: pathlib.Path) -> None:
    assert read(hosts, tmp_path, {}, HOCKET_SECRET=SECRET, HOCKET_ENCRYPT="1") == set()


def test_all_of_them_are_seen_in_a_plain_job(hosts: list[str], tmp_path: pathlib.Path) -> None:
    assert read(hosts, tmp_path, {"secret": SECRET}) == KINDS
