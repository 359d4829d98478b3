"""A rank that is killed inside `hocket.init`, wherever: the others name it, and only it, within a second."""

from __future__ import annotations

import os
import pathlib
import tempfile

import pytest

from support.faulty import facts, job

DIES = """
import os, pathlib, signal
from hocket.collectives.members.members import Members
from hocket.transports.shm.transport import ShmTransport
from hocket.transports.tcp.transport import TcpTransport
kind = {"shm": ShmTransport, "tcp": TcpTransport, "comm": Members}[os.environ["KIND"]]
def die(*args):
    time.sleep(0.5)  # the others wait for this rank by now
    (pathlib.Path(os.environ["FAULTY"]) / "dead").write_text(repr(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
for turn in range(int(os.environ["TURN"])):
    with hocket.init(transport="shm,tcp" if os.environ["KIND"] != "tcp" else "tcp", timeout=60) as comm:
        comm.barrier()
if os.environ["HOCKET_RANK"] == "1":
    setattr(kind, os.environ["METHOD"], die)
with telling():
    hocket.init(transport="shm,tcp" if os.environ["KIND"] != "tcp" else "tcp", timeout=60)
"""
WHERE = [("shm", "offer", 0), ("shm", "reach", 0), ("shm", "_shut_door", 0), ("tcp", "reach", 0), ("comm", "offer", 1)]


@pytest.mark.parametrize(("kind", "method", "turn"), WHERE)
def test_a_rank_that_dies_in_init_is_named_at_once(kind: str, method: str, turn: int, tmp_path: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as place, job(
        4, DIES, tmp_path, {"KIND": kind, "METHOD": method, "TURN": str(turn), "TMPDIR": place}
    ) as run:
        ends = run.wait()
        died = float((tmp_path / "signs" / "dead").read_text())
        for rank in (0, 2, 3):
            told = facts(ends[rank])
            assert told["error"] == "PeerLostError" and told["ranks"] == [1], told
            assert told["at"] - died < 4.0, told
        left = [name for name in os.listdir(place) if name.startswith("hocket-")]
        assert not left or method == "offer", left  # of where it listens nobody knew yet
        for name in os.listdir(tmp_path / "tmp"):  # what the one that was killed could not remove
            for path in (tmp_path / "tmp" / name).iterdir():
                path.unlink()
            (tmp_path / "tmp" / name).rmdir()
