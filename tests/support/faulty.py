"""The programs of ranks in the tests of failures, and the tests' ways to look at them.

The upper half runs in the ranks (their PYTHONPATH leads here), the lower half in the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import hocket
from hocket.collectives.recording import memory
from support.jobs import TESTS, Ended, Job
from support.leftovers import descriptors

HEAD = """import time, numpy as np, hocket; from support import faulty
from support.faulty import say, ready, telling, await_file
"""
"""The beginning of a rank's program: two lines."""
ROWS = 25_200
"""Float64 rows of a big array: 200 KB, and divisible by 2, 3 and 4 ranks."""


def _ring(c: Any, x: Any) -> Any:
    return c.sendrecv(x, (c.rank + 1) % c.size, np.empty_like(x), (c.rank - 1) % c.size)


def _queued(c: Any, x: Any) -> Any:
    return [w.wait() for w in [c.allreduce(x.copy(), async_op=True) for _ in range(4)]]


def _sends_on(receive: Callable[[Any, Any, int], Any]) -> Callable[[Any, Any], Any]:
    """A message that goes round: every rank but one waits for the one before it."""

    def call(c: Any, x: Any) -> None:
        if c.rank:
            receive(c, x, c.rank - 1)
        c.send(x, (c.rank + 1) % c.size)
        if c.rank == 0:
            receive(c, x, c.size - 1)

    return call


def _probed(c: Any, x: Any, source: int) -> Any:
    found = c.probe(None, None)
    return c.recv(x, found.source, found.tag)


def _any_work(c: Any, x: Any) -> None:
    """Two messages go on round, and are waited for as they come."""
    works = [c.recv(np.empty_like(x), (c.rank - 1) % c.size, tag, async_op=True) for tag in (0, 1)]
    works += [c.send(x, (c.rank + 1) % c.size, tag, async_op=True) for tag in (1, 0)]
    while works:
        works.pop(hocket.wait_any(works))


def _equal(c: Any, x: Any) -> list[int]:
    return [len(x) // c.size] * c.size


def _own(c: Any, x: Any) -> Any:
    return x[: len(x) // c.size]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "allreduce": lambda c, x: c.allreduce(x, out=np.empty_like(x)),
    "reduce": lambda c, x: c.reduce(x, root=1),
    "reduce_scatter": lambda c, x: c.reduce_scatter(x),
    "reduce_scatterv": lambda c, x: c.reduce_scatterv(x, _equal(c, x)),
    "scan": lambda c, x: c.scan(x, out=np.empty_like(x)),
    "exscan": lambda c, x: c.exscan(x, out=np.empty_like(x)),
    "broadcast": lambda c, x: c.broadcast(x, root=1),
    "allgather": lambda c, x: c.allgather(x),
    "allgatherv": lambda c, x: c.allgatherv(x, [len(x)] * c.size),
    "gather": lambda c, x: c.gather(x, root=1),
    "gatherv": lambda c, x: c.gatherv(x, [len(x)] * c.size, root=1),
    "scatter": lambda c, x: c.scatter(x, root=1),
    "scatterv": lambda c, x: c.scatterv(x, _equal(c, x), root=1),
    "alltoall": lambda c, x: c.alltoall(x),
    "alltoallv": lambda c, x: c.alltoallv(x, _equal(c, x), _equal(c, x)),
    "barrier": lambda c, x: c.barrier(),
    "sendrecv": _ring,
    "send": _sends_on(lambda c, x, source: c.recv(x, source)),
    "from any": _sends_on(lambda c, x, source: c.recv(x, None, None)),
    "probe": _sends_on(_probed),
    "wait_any": _any_work,
    "async": _queued,
}


def say(**facts: Any) -> None:
    """One line for the test."""
    print(json.dumps(facts), flush=True)


def ready(what: str = "ready") -> None:
    """Tell the test that this rank has come so far."""
    rank = os.environ.get("HOCKET_RANK") or os.environ["RANK"]
    (pathlib.Path(os.environ["FAULTY"]) / f"{what}-{rank}").touch()


def await_file(name: str, seconds: float = 60.0) -> None:
    """Wait until the test, or another rank, has made this file."""
    wait_for(lambda: (pathlib.Path(os.environ["FAULTY"]) / name).exists(), seconds, name)


def held() -> list[str]:
    """The sockets, memfds and event descriptors that this process holds, but for its recorder, which stays."""
    kinds = ("socket:", "anon_inode:", "/memfd:")
    return [what for _, what in descriptors() if what.startswith(kinds) and what != memory.LINK]


def _threads() -> int:
    """The kernel's threads of this process; one that was joined may be there a moment longer."""
    found = []
    for _ in range(20):
        found.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return min(found)


def count(before: Mapping[str, Any] | None = None, seconds: float = 20.0) -> dict[str, Any]:
    """The holdings of this process: numbers that must not grow.

    A connection that was let go is closed when the other end has let go too, which may be after this rank's last call.
    So a count that follows one `before` waits for its descriptors to be as few, and counts in that look: strangers in
    the kernel's queue still come and go, while what is lost is in every look.
    """
    until, fds = time.monotonic() + seconds, len(descriptors())  # collects garbage first
    while before and fds > before["fds"] and time.monotonic() < until:
        time.sleep(0.02)
        fds = len(descriptors())
    threads = _threads()
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as memory:
        mapped, pages = sum(1 for _ in maps), int(memory.read().split()[1])
    return {
        "fds": fds,
        "threads": threads,
        "names": sorted(t.name for t in threading.enumerate()),
        "maps": mapped,
        "rss": pages * os.sysconf("SC_PAGESIZE"),
    }


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Say what was raised inside, and when."""
    try:
        yield
    except (hocket.Error, KeyboardInterrupt) as error:
        facts = {k: getattr(error, k) for k in ("ranks", "missing", "calls") if hasattr(error, k)}
        say(at=time.monotonic(), error=type(error).__name__, text=str(error), **facts)


def endure(name: str, transport: str) -> None:
    """Make one call again and again until it fails; say what it said, and what is left after close."""
    before = held()
    comm = hocket.init(transport=transport)
    x = np.arange(float(ROWS))
    with telling():
        CALLS[name](comm, x)
        ready()
        while True:
            CALLS[name](comm, x)
    comm.close()
    say(left=sorted(set(held()) - set(before)))


# --------------------------------------------------------------------------------------------- in the test


def wait_for(true: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come to pass within {seconds} s"
        time.sleep(0.002)


@contextlib.contextmanager
def job(
    size: int, source: str, where: pathlib.Path, env: Mapping[str, str] | None = None, stay: bool = True, **more: Any
) -> Iterator[Job]:
    """A job with a TMPDIR and a directory of signs (`ready`) of its own, below `where`."""
    signs, temporary = where / "signs", where / "tmp"
    signs.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    own = {"FAULTY": str(signs), "TMPDIR": str(temporary), "PYTHONPATH": path, **(env or {})}
    source = HEAD + source
    with Job(size, source, env=own, stay=stay, **more) as made:
        yield made
        for process in made.processes:  # each was the leader of a session: nothing of it may be left
            assert process.poll() is None or not _session(process.pid)
    assert [each for each in os.listdir(temporary) if not each.startswith("hocket-events-")] == []


def all_ready(where: pathlib.Path, ranks: range | list[int], what: str = "ready") -> None:
    wait_for(lambda: all((where / "signs" / f"{what}-{r}").exists() for r in ranks), 60.0, f"{what} of all ranks")


def _session(leader: int) -> list[int]:
    """The other living processes of a session."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader != int(pid) and fields[0] != "Z":
                found.append(int(pid))
    return found


def facts(end: Ended) -> dict[str, Any]:
    """A rank's words, in one dictionary; it must have ended well."""
    assert end.code == 0, end
    said: dict[str, Any] = {}
    for line in end.out.splitlines():
        said.update(json.loads(line))
    said["stderr"] = end.err
    return said
