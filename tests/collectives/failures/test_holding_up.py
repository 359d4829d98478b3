"""A message that comes too late: the error names who holds it up, not who waits as well."""

from __future__ import annotations

import pathlib
import signal

import pytest

from hocket.collectives.base.wording import Group, build, holding_up
from hocket.control.protocol.messages import Account, Fault, Verdict
from hocket.errors import TimeoutError
from support.faulty import all_ready, facts, job

SILENT: Account = {"state": "no answer"}
IDLE: Account = {"state": "idle", "seq": 3}


def waits(*ranks: int) -> Account:
    return {"state": "in call", "seq": 0, "waits_for": list(ranks)}


@pytest.mark.parametrize(
    ("awaited", "accounts", "wanted"),
    [
        pytest.param([1], {0: waits(1), 1: IDLE, 2: IDLE}, [1], id="it is elsewhere"),
        pytest.param([1], {0: waits(1), 1: waits(2), 2: SILENT}, [2], id="the next one is stopped"),
        pytest.param([1, 2], {0: waits(1, 2), 1: waits(0, 2), 2: SILENT}, [2], id="a ring"),
        pytest.param([1], {0: waits(1), 1: waits(0), 2: SILENT}, [1], id="they wait for each other"),
        pytest.param([1, 2], {0: waits(1, 2), 1: {"state": "in call", "seq": 4}, 2: SILENT}, [2], id="a collective"),
        pytest.param([1], {0: waits(1)}, [1], id="nothing is known"),
    ],
)
def test_who_holds_it_up(awaited: list[int], accounts: dict[int, Account], wanted: list[int]) -> None:
    assert holding_up(awaited, accounts) == wanted


RING = """
comm = hocket.init(transport="shm")
x, y = np.ones(100_000), np.empty(100_000)
comm.barrier()
if comm.rank == 2:
    ready()
await_file("stopped")
with telling():
    comm.sendrecv(x, (comm.rank + 1) % 4, y, (comm.rank - 1) % 4, timeout=4)
    comm.sendrecv(x, (comm.rank + 1) % 4, y, (comm.rank - 1) % 4, timeout=4)
ready("raised")
comm.close()
"""


def test_a_ring_with_one_that_is_stopped(tmp_path: pathlib.Path) -> None:
    with job(4, RING, tmp_path) as run:
        all_ready(tmp_path, [2])
        run.signal(2, signal.SIGSTOP)
        (tmp_path / "signs" / "stopped").touch()
        all_ready(tmp_path, [0, 1, 3], "raised")
        run.signal(2, signal.SIGCONT)
        ends = run.wait()
    for rank in (0, 1, 3):
        said = facts(ends[rank])
        assert said["error"] == "TimeoutError" and said["missing"] == [2], said
        assert "waiting for rank 2:" in said["text"] and "rank 2 does not answer" in said["text"], said


def test_a_collective_names_who_is_stopped_and_not_who_waits_for_it() -> None:
    late: Account = {"state": "in call", "seq": 4, "call": "recv()", "site": "a.py:1", "waits_for": [1]}
    mine: Account = {"state": "in call", "seq": 5, "call": "allreduce()", "site": "a.py:2"}
    verdict = Verdict(Fault("timeout", "world", 5, [0, 1, 2], by=0), {0: mine, 1: SILENT, 2: late})
    error = build(verdict, Group("world", [0, 1, 2], 3), 0, "allreduce()")
    assert isinstance(error, TimeoutError) and error.missing == (1,) and "waiting for rank 1:" in str(error)
