"""Ranks that meet through a store: also a store that is old, and says where a job was that is over."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import tempfile

import pytest

import hocket
from hocket.control.store import NOTE
from hocket.errors import ArgumentError, TimeoutError
from support import jobs

RANK = """
import os, pathlib, sys, time
import numpy as np, hocket

class Files:
    def __init__(self, place): self.place = pathlib.Path(place)
    def set(self, key, value):
        (self.place / "new").write_text(value)
        (self.place / "new").rename(self.place / key)
    def get(self, key):
        return (self.place / key).read_text() if (self.place / key).exists() else None

rank = int(os.environ["HOCKET_RANK"])
store = Files(os.environ["PLACE"])
if rank == 0:
    time.sleep(float(os.environ.get("LATE", "0")))
for turn in range(int(os.environ.get("TURNS", "1"))):
    with hocket.init(rank, 3, store=store, timeout=50, transport=os.environ.get("OVER")) as comm:
        assert comm.allreduce(np.ones(100)).tolist() == [3.0] * 100
        assert "found in a store" in comm.explain()
print("met")
"""


def meet(place: pathlib.Path, **env: str) -> None:
    gone = dict.fromkeys(("HOCKET_SIZE", "HOCKET_RENDEZVOUS", "HOCKET_SECRET"), "")
    with jobs.Job(3, RANK, env={"PLACE": str(place), **gone, **env}) as job:
        for end in job.wait(80):
            assert end.code == 0 and "met" in end.out and not end.err, end  # that it is open is told over several hosts


@pytest.mark.parametrize("env", [{}, {"OVER": "tcp"}, {"TURNS": "4"}, {"HOCKET_SECRET": "of this job, long enough"}])
def test_ranks_meet(env: dict[str, str], tmp_path: pathlib.Path) -> None:
    meet(tmp_path, **env)
    note = json.loads((tmp_path / NOTE).read_text())
    assert (note["key"] is None) == ("HOCKET_SECRET" in env)
    for kind, place, *_ in note["addresses"]:
        assert kind == "tcp" or not os.path.exists(place), "a path was left behind"


@pytest.mark.parametrize("what", ["junk", "nobody", "stranger", "nothing"])
def test_an_old_note_is_no_obstacle(what: str, tmp_path: pathlib.Path) -> None:
    """Nobody is there any more, or somebody else who is not of this job; rank 0 comes a little later."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1] if what == "stranger" else 1
        old = {"job": "old", "key": "00" * 32, "addresses": [["unix", "/nowhere"], ["tcp", "127.0.0.1", port]]}
        text = {"junk": '{"job": 3, "key": []}', "nothing": ""}.get(what, json.dumps(old))
        (tmp_path / NOTE).write_text(text)
        meet(tmp_path, LATE="0.3")


class Nothing:
    def set(self, key: str, value: str) -> None:
        raise OSError("the store is full")

    def get(self, key: str) -> None:
        return None

    where = "10.0.0.9:29500"


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(TimeoutError, match="into the store at 10.0.0.9:29500 where it is") as caught:
        hocket.init(1, 2, store=Nothing(), timeout=0.3)
    assert caught.value.missing == (0,)
    with pytest.raises(OSError, match="the store is full"):
        hocket.init(0, 2, store=Nothing(), timeout=0.3)
    with pytest.raises(ArgumentError, match="rank= and size="):
        hocket.init(store=Nothing())
    with pytest.raises(ArgumentError, match="ranks are 0 to"):
        hocket.init(2, 2, store=Nothing())


WRITER = """
import json, os, pathlib, socket, sys
import numpy as np, hocket
from hocket.control import store
place = pathlib.Path(os.environ["PLACE"])
class Files:
    def set(self, key, value):
        (place / f"new{os.getpid()}").write_text(value)
        (place / f"new{os.getpid()}").rename(place / key)
    def get(self, key):
        return (place / key).read_text() if (place / key).exists() else None
store.WRONG_KEY = 0.5
role = os.environ["HOCKET_RANK"]
if role == "0":  # without the secret, but it can write the store: the coordinator and the key are its own
    os.environ.pop("HOCKET_SECRET")
try:
    comm = hocket.init(int(role), 2, store=Files(), timeout=[1, 30][int(role)])  # its note stays there
    comm.send(np.ones(4), 1 - comm.rank)
    print("joined")
except hocket.Error as why:
    print(type(why).__name__, why)
"""


def test_a_note_with_a_key_is_refused_by_who_has_a_secret(tmp_path: pathlib.Path) -> None:
    path = jobs.TESTS
    with jobs.Job(2, WRITER, env={"PLACE": str(tmp_path), "PYTHONPATH": path}) as job:
        writer, rank = job.wait(60)
    assert "joined" not in rank.out, rank
    assert "the store's note carries a key, and this rank has a secret" in rank.out, rank
    assert "TimeoutError" in writer.out, writer


def test_who_has_no_secret_is_told_that_rank_0_has_one(tmp_path: pathlib.Path) -> None:
    source = WRITER.replace('role == "0"', 'role == "1"')
    path = jobs.TESTS
    with jobs.Job(2, source, env={"PLACE": str(tmp_path), "PYTHONPATH": path}) as job:
        _, rank = job.wait(60)
    assert "rank 0 has a secret (HOCKET_SECRET) and this rank has none" in rank.out, rank


def test_no_free_port_leaves_no_path(tmp_path: pathlib.Path) -> None:
    """Rank 0 listens at a path and at a port; where it gets no port, the path goes too."""
    source = """
        import os, pathlib, tempfile
        os.environ["TMPDIR"] = tempfile.tempdir = {place!r}
        import hocket
        class Store:
            def set(self, key, value): raise AssertionError(value)
            def get(self, key): return None
        try:
            hocket.init(0, 2, store=Store(), timeout=5)
        except hocket.Error as error:
            print("{port}" in str(error), [*filter(pathlib.Path.is_socket, pathlib.Path({place!r}).rglob("*"))])
    """
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory() as place:
        port = taken.getsockname()[1]
        env = {"HOCKET_PORTS": f"{port}-{port}", "HOCKET_RENDEZVOUS": ""}
        said = jobs.run(1, source.format(place=place, port=port), 60.0, **env)
    assert said == ["True []\n"]
