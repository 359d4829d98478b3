"""One rank of a job that is to lose a rank: it goes through one phase of its life again and again, until it is told
to end or something fails, and says what it came to know.

`python -m hocket.conformance.chaos.rank PHASE SEED DIRECTORY HELD`, started by __main__.py.  In DIRECTORY the
files `go` (the rank HELD may come to the meeting) and `done` (all may end) appear.
"""

from __future__ import annotations

import gc
import os
import pathlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.trial import LOOK, listen, say

MEETING = 4.0
"""Seconds that a rank waits for the others in init."""
COUNTS = (1, 100, 5000, 60000, 400000)
HUGE = 6_000_000
COLLECTIVES = ("allreduce", "allgather", "alltoall", "broadcast", "reduce_scatter", "barrier", "scan", "gather")


class Life:
    """A rank's communicators: `world`, and `current`, which is in use.  `common` dice are alike on all ranks."""

    def __init__(self, seed: int, place: str) -> None:
        self.common, self.own = random.Random(seed), random.Random(f"{seed} {os.getpid()}")
        self.place, self.turn = pathlib.Path(place), 0
        self.world: Any = None
        self.current: Any = None

    def meet(self) -> None:
        say(state="init", turn=self.turn)
        self.world = self.current = hocket.init(timeout=MEETING)
        say(state="ready", turn=self.turn)

    def leave(self) -> None:
        say(state="closing", turn=self.turn)
        self.world.close()
        self.world = self.current = None
        self.turn += 1

    def ones(self, count: int | None = None) -> Any:
        return np.ones(self.common.choice(COUNTS) if count is None else count, np.float32)

    def over(self) -> bool:
        """Have all been told to end?  They decide together."""
        self.current = self.world
        return bool(self.world.allreduce(np.array([float((self.place / "done").exists())]))[0])


# ------------------------------------------------------------------------------------------------ phases


def blocking(life: Life) -> None:
    comm, what, x = life.world, life.common.choice(COLLECTIVES), life.ones()
    if what == "barrier":
        comm.barrier()
    elif what in ("broadcast", "gather"):
        getattr(comm, what)(x, life.common.randrange(comm.size))
    else:
        getattr(comm, what)(x[: len(x) // comm.size * comm.size])


def small(life: Life) -> None:
    for _ in range(100):
        life.world.allreduce(life.ones(2))


def huge(life: Life) -> None:
    life.world.allreduce(life.ones(HUGE))


def later(life: Life) -> None:
    """Several at once, waited for in any order."""
    works = [life.world.allreduce(life.ones(), async_op=True) for _ in range(life.common.randrange(1, 20))]
    time.sleep(life.own.random() * 0.002)
    life.own.shuffle(works)
    for work in works:
        work.wait()


def group(life: Life) -> None:
    comm, x = life.world, life.ones()
    with hocket.group():
        comm.send(x, (comm.rank + 1) % comm.size, 1)
        comm.recv(np.empty_like(x), (comm.rank - 1) % comm.size, 1)
        comm.allreduce(life.ones(10))
        comm.allgather(life.ones(1000))


def op(life: Life) -> None:
    life.world.allreduce(life.ones(), lambda a, b: a + b)


def messages(life: Life) -> None:
    comm, x = life.world, life.ones()
    comm.sendrecv(x, (comm.rank + 1) % comm.size, np.empty_like(x), (comm.rank - 1) % comm.size, 3)
    for _ in range(comm.size - 1 if comm.rank == 0 else 1):
        if comm.rank:
            comm.send(x, 0, 7)
        else:
            comm.recv(np.empty_like(x), None, 7)


def making(life: Life) -> None:
    """Split and dup; what is made is used, and dropped."""
    halves = life.world.split(life.common.getrandbits(8) >> life.world.rank & 1, life.own.randrange(3))
    for made in (halves, life.world):
        life.current = made
        life.current.allreduce(life.ones(1000))
    life.current = life.world.dup()
    life.current.allreduce(life.ones(1000))


def closing(life: Life) -> None:
    """Communicators that are closed."""
    life.current = life.world.dup()
    life.current.allreduce(life.ones(100))
    life.current.close()


def tuning(life: Life) -> None:
    life.world.tune(["allreduce", "broadcast"], [8, 65536], seconds=0.2)


def again(life: Life) -> None:
    """Leave the job and meet anew."""
    life.leave()
    life.meet()


PHASES: dict[str, Callable[[Life], None]] = {
    "meeting": small, "init": small, "blocking": blocking, "small": small, "huge": huge, "async": later,
    "group": group, "op": op, "messages": messages, "making": making, "closing": closing, "tuning": tuning,
    "again": again,
}  # fmt: skip
"""Name -> one turn.  `meeting` and `init` are over before their first one."""


# --------------------------------------------------------------------------------------------- the rank


def held() -> set[str]:
    """The sockets, memory files and event descriptors that this process holds, but for its recorder, which stays."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
        if what.startswith(("socket:", "anon_inode:", "/memfd:")) and "hocket-recorder" not in what:
            found.add(what)
    return found


def failed(life: Life, error: hocket.Error) -> None:
    """Say what was raised and which ranks it names, and whether a second call fails at once.

    `elsewhere`: it is on another communicator, which a time limit does not end.
    """
    named = getattr(error, "ranks", None) or getattr(error, "missing", None) or ()
    members = list(range(1 << 10)) if life.current is None else life.current.members
    say(error=type(error).__name__, named=sorted(members[r] for r in named), text=str(error)[:1000])
    if life.world is None:
        return
    began = time.monotonic()
    try:
        life.world.allreduce(np.ones(3))
        say(second="no error")
    except hocket.Error:
        elsewhere = life.current is not life.world
        say(second="refused", seconds=time.monotonic() - began, elsewhere=elsewhere)


def end(life: Life, before: set[str]) -> None:
    """Leave, and say what stays."""
    began = time.monotonic()
    try:
        if life.world is not None:
            life.world.close()
        how = ""
    except hocket.Error as error:
        how = str(error)
    seconds = time.monotonic() - began
    life.world = life.current = None
    for _ in range(20):  # the reactor's thread closes what it had
        if not held() - before:
            break
        time.sleep(0.02)
    say(closed=seconds, how=how, left=sorted(held() - before))


def main(words: list[str]) -> int:
    """One rank's exit code: 0, unless something else than a hocket.Error was raised."""
    listen()
    phase, seed, place, late = words[0], int(words[1]), words[2], int(words[3])
    before, life = held(), Life(seed, place)
    rank = int(os.environ.get("HOCKET_RANK") or os.environ["RANK"])
    while rank == late and not (life.place / "go").exists():
        time.sleep(LOOK)
    try:
        life.meet()
        while True:
            PHASES[phase](life)
            if life.over():
                break
        say(finished=True)
    except hocket.Error as error:
        failed(life, error)
    except BaseException:
        say(crash=traceback.format_exc())
        return 3
    end(life, before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
