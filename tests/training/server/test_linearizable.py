"""Each slice is one register: what workers wrote and read while servers and workers died has one order."""

from __future__ import annotations

import json
import pathlib
import random
import signal

from support.linearizable import NEVER, Access, wrong
from support.serving import NEW, ROLES, Cluster

RECORDS = ROLES + """
import random
comm = hocket.init(elastic=True)
rank, dice, done = comm.rank, random.Random(comm.rank), 0
client = Client(comm, TABLES)
mark(f"uid-{{rank}}", client.uid)
with open(os.path.join(HERE, f"history-{{rank}}"), "w", buffering=1) as log:
    while not there("stop"):
        done += 1
        number = 10 * done + rank if dice.random() < 0.2 else 0
        log.write(json.dumps([time.monotonic(), number]) + chr(10))
        seen = client.push("r", np.full(32, number)) if number else client.pull("r").tolist()
        log.write(json.dumps([time.monotonic(), seen]) + chr(10))
        mark(f"pushed-{{client.uid}}", done)
mark(f"done-{{client.uid}}", done)
while not there("judge"):
    time.sleep(0.01)
print(json.dumps(done))
client.close()
"""


def of_slice(folder: str, first: int) -> list[Access]:
    """The accesses of all workers to the slice that begins with this element."""
    ops = []
    for path in pathlib.Path(folder).glob("history-*"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        ends = [*lines[1::2], [NEVER, None]]
        for (begin, number), (end, seen) in zip(lines[::2], ends, strict=False):
            if seen:
                assert len(set(seen[first : first + 16])) == 1, f"{path.name} has read two writes in one slice: {seen}"
            ops.append(Access(begin, end, bool(number), float(number) if number or not seen else seen[first]))
    return ops


def test_slices_are_linearizable_where_servers_and_workers_die() -> None:
    with Cluster(2, 3, copies=1, working=RECORDS) as cluster:
        cluster.until_pushed(range(2, 5), 20)
        cluster.add(NEW.format(serves="serves", whole="whole"), 1)
        cluster.read("serves")
        cluster.job.signal(0, signal.SIGKILL)
        cluster.until_pushed(range(2, 5), 20)
        cluster.job.signal(4, signal.SIGKILL)
        cluster.read("whole")
        cluster.until_pushed(range(2, 4), 10)
        cluster.job.signal(1, signal.SIGKILL)
        cluster.until_pushed(range(2, 4), 20)
        cluster.end(range(2, 4))
        for first in (0, 16):
            history = of_slice(cluster.job.directory, first)
            assert len(history) > 120 and {op.writes for op in history} == {True, False}
            assert not (why := wrong(history, 0.0)), why


def write(begin: float, end: float, value: int) -> Access:
    return Access(begin, end, True, value)


def read(begin: float, end: float, value: int) -> Access:
    return Access(begin, end, False, value)


def test_the_checker_knows_what_is_linearizable() -> None:
    assert not wrong([write(0, 1, 5), read(2, 3, 5)], 0)
    assert not wrong([write(0, 9, 5), read(1, 2, 0), read(3, 4, 5)], 0), "the write has its effect between the reads"
    assert not wrong([write(0, NEVER, 5), read(2, 3, 0), read(4, 5, 5), read(6, 7, 5)], 0), "a killed one's, late"
    assert not wrong([write(0, NEVER, 5), read(2, 3, 0)], 0), "a killed one's, never"
    assert not wrong([write(0, 4, 1), write(0, 4, 2), read(5, 6, 1)], 0)


def test_the_checker_finds_what_is_not() -> None:
    assert wrong([write(0, 1, 5), read(2, 3, 0)], 0), "an acknowledged write is lost"
    assert wrong([write(0, 9, 5), read(1, 2, 5), read(3, 4, 0)], 0), "it goes back"
    assert wrong([write(0, NEVER, 5), read(2, 3, 5), read(4, 5, 0)], 0)
    assert wrong([write(0, 4, 1), write(0, 4, 2), read(5, 6, 1), read(7, 8, 2)], 0), "two orders of two writes"
    assert "near" in wrong([read(0, 1, 7)], 0)


def test_the_checker_on_random_histories() -> None:
    """The history of a register is linearizable; with one read of what was overwritten long ago it is not."""
    dice, value, ops = random.Random(7), 0, []
    ended = dict.fromkeys(range(3), 0.0)
    for moment in range(1, 600):
        who = dice.randrange(3)
        if ended[who] < moment:  # it takes effect now
            writes = dice.random() < 0.4
            value = moment if writes else value
            begin, ended[who] = max(ended[who], moment - 2 * dice.random()), moment + 2 * dice.random()
            ops.append(Access(begin, ended[who], writes, value))
    assert len(ops) > 300 and not wrong(ops, 0)
    at = next(i for i in range(250, len(ops)) if not ops[i].writes)
    assert wrong([*ops[:at], ops[at]._replace(value=ops[at - 50].value), *ops[at + 1 :]], 0)
