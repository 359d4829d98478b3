"""Is anything lost where servers and workers are killed?  copies=1: two servers, three workers, 1,000 losses.

    python -m hocket.conformance.kills [--pushes 100000] [--kills 1000] [--servers 2] [--workers 3] [--seed 1]
                                       [--module]

Each worker pushes (1, number of the push) to 8 rows of its own, one push after the other, and writes down what it
began and what was acknowledged.  Who is killed is replaced.  A server, or a server and a worker together, is killed
once all shards are on two servers; a worker at any time.  Others leave, as a worker does whose work is done.  At the
end a row must have the number of pushes that were acknowledged, or one more where its worker was killed, and the sum
of exactly these numbers.  Failover: from the kill until each living worker has had two more pushes acknowledged.  Exit
code 1: a push was lost or counted twice, or nothing moved for a minute.  The ranks are this file again, with the
argument `rank`.

Most rows lie in a file: workers push zeros to so many others that their table's room does not hold them.  `--module`:
with clock="bsp", as `hocket.torch.Served` has it, each worker also pushes ones to a table with mean=True and ends a
clock.  At each clock all of its elements must be the number of clocks.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.elastic_trial import PROCESS, STEERED, ElasticTrial
from hocket.conformance.jobs.ranks import again, main_or_rank
from hocket.conformance.jobs.trial import listen, say
from hocket.training import Client, Range, Rows, serve
from hocket.training.server.tables import Table

ROLE, MODULE = "KILLS_ROLE", "KILLS_MODULE"
ROWS = 8
"""Rows of each worker: they are on all shards."""
ROOM = 1024 * 16
"""Bytes: of the least number of rows."""
TABLES: dict[str, Table] = {"e": Rows(2, dtype="float64", scale=0.0, room=ROOM), "w": Range(4096)}
MEAN: dict[str, Table] = {"m": Range(4096, dtype="float64", slice=4096, mean=True)}
OTHERS, SWEPT, EVERY = 10**6 + np.arange(8192), 256, 4
"""Rows of nobody; so many of them are pushed with each fourth push."""
GENERATION, WHOLE, BEGUN, DONE, STOPPED, LEAVE, WORDS = range(7)
"""A process's words on the board; the first row is the launcher's own."""
STOP, JUDGE = 0, 1
LEAVING = "worker leaves"
HANG = 60.0
"""Seconds in which something has to move."""
LOOK = 0.001
MOMENT = 0.02
"""Seconds, at most, that a kill waits: it may come at any moment of a push."""


class Kill(NamedTuple):
    """The victim, and the time until each worker that lives had had two more pushes acknowledged."""

    who: str
    seconds: float


def board_of(folder: str, processes: int = 0) -> Any:
    """Memory that the launcher and all ranks share: a row of WORDS whole numbers for each process, behind the first."""
    path = os.path.join(folder, "board")
    if processes:
        with open(path, "wb") as file:
            file.truncate(8 * WORDS * (processes + 1))
    return np.memmap(path, np.int64, "r+").reshape(-1, WORDS)


# --------------------------------------------------------------------------------------------- in the rank


def rank(servers: str) -> None:
    """A server or a worker, until the launcher says stop."""
    listen()
    me, all_rows = int(os.environ[PROCESS]), board_of(os.environ[STEERED])
    role = os.environ.get(ROLE) or ("server" if me < int(servers) else "worker")
    comm = hocket.init(elastic=True, timeout=HANG)
    first = range(int(servers)) if me == comm.rank and not os.environ.get(ROLE) else None
    module = bool(os.environ.get(MODULE))
    (_serves if role == "server" else _works)(comm, me, all_rows, first, module)


def _serves(comm: Any, me: int, board: Any, first: Any, module: bool) -> None:
    tables, clock = ({**TABLES, **MEAN}, "bsp") if module else (TABLES, "async")
    server = serve(comm, tables, on=first, clock=clock, copies=1)
    while not server.wait(0.002):
        if server.view is not None:
            board[me + 1, GENERATION] = server.view.generation
            board[me + 1, WHOLE] = server.whole


def _works(comm: Any, me: int, board: Any, first: Any, module: bool) -> None:
    row, keys, dice = board[me + 1], np.arange(me * ROWS, (me + 1) * ROWS), np.random.default_rng(me)
    with Client(comm, {**TABLES, **MEAN} if module else TABLES, timeout=HANG) as client:
        while not board[0, STOP]:
            if row[LEAVE]:
                return
            row[BEGUN] += 1
            client.push("e", np.tile((1.0, float(row[BEGUN])), (ROWS, 1)), rows=keys)
            row[DONE] += 1
            row[GENERATION] = client.generation
            if row[DONE] % EVERY == 0:
                client.push("e", np.zeros((SWEPT, 2)), rows=dice.choice(OTHERS, SWEPT, replace=False))
            if module:
                client.push("m", np.ones(4096), async_op=True)
                clock, seen = client.tick(), client.pull("m")
                if not np.all(seen == clock):
                    raise SystemExit(f"at clock {clock} a table of means has {np.unique(seen)}")
        row[STOPPED] = 1
        while not board[0, JUDGE]:
            time.sleep(LOOK)
        count = int(np.flatnonzero(board[1:, BEGUN]).max()) + 1
        found = client.pull("e", rows=np.arange(count * ROWS)).reshape(count, ROWS, 2)
        say(lost=client.lost, found=found.tolist())


# --------------------------------------------------------------------------------------------- the launcher


class Trouble(Exception):
    """A law was broken."""


class Cluster(ElasticTrial):
    """The servers, then the workers; `kinds` has what each process is."""

    def __init__(self, servers: int, workers: int, most: int, module: bool) -> None:
        words = again("hocket.conformance.kills", servers)
        super().__init__(words, servers + workers, "shm", (), (), **({MODULE: "1"} if module else {}))
        self.board = board_of(self.directory, most)
        self.kinds = ["server"] * servers + ["worker"] * workers
        self.servers = servers
        self._alive, self._ended = list(range(servers + workers)), list[int]()
        """Processes that lived at the last look, and those that have ended since `nobody_else` looked."""

    def living(self) -> list[int]:
        """At the end a thousand have died, so they are not asked again."""
        gone = {each for each in self._alive if self.code(each) is not None}
        if gone:
            self._alive = [each for each in self._alive if each not in gone]
            self._ended += gone
        return list(self._alive)

    def come(self, kind: str) -> None:
        """One more process of this kind."""
        self.kinds.append(kind)
        self.add(HOCKET_JOIN=f"folder:{self.directory}/lobby", **{ROLE: kind})
        self._alive.append(len(self.kinds) - 1)

    def of(self, kind: str) -> list[int]:
        return [process for process in self.living() if self.kinds[process] == kind]

    def at_work(self) -> list[int]:
        """Workers that have had a push acknowledged: another may still be on its way in."""
        return [worker for worker in self.of("worker") if self.board[1 + worker, DONE]]

    def done(self) -> int:
        """Pushes that were acknowledged."""
        return int(self.board[1:, DONE].sum())

    def steady(self) -> bool:
        """Everybody who lives is in one generation, and all shards are on two servers."""
        servers, workers = self.of("server"), self.of("worker")
        rows = self.board[1:]
        return (
            len({int(rows[each, GENERATION]) for each in [*servers, *workers]}) == 1
            and all(rows[each, WHOLE] for each in servers)
            and all(rows[each, DONE] for each in workers)
        )

    def until(self, true: Callable[[], bool], what: str) -> float:
        """Wait until this is true; the seconds that it took.  Trouble: nothing moved for HANG seconds, or a process
        ended by itself."""
        began = time.monotonic()
        while not true():
            if time.monotonic() > began + HANG:
                raise Trouble(f"no end of {what}\n{self.board[1 : self.size + 1]}\n{self.stacks(self.living())}")
            self.nobody_else()
            time.sleep(LOOK)
        return time.monotonic() - began

    def nobody_else(self) -> None:
        """Only those that were killed have ended."""
        self.living()
        while self._ended:
            process = self._ended.pop()
            if self.code(process) not in (0, -signal.SIGKILL):
                raise Trouble(f"process {process}, a {self.kinds[process]}, has ended: {self.cried(process)[-2000:]}")


def lose(cluster: Cluster, victims: list[int], leaves: bool) -> float:
    """Kill these, or let them leave, and put others in their places.  Seconds until each worker that lives goes on."""
    workers = [worker for worker in cluster.at_work() if worker not in victims]
    for victim in victims:
        if leaves:
            cluster.board[1 + victim, LEAVE] = 1
        else:
            cluster.signal(victim, signal.SIGKILL)
    cluster.wait(HANG, victims)
    before = cluster.board[1:, DONE].copy()
    for victim in victims:
        cluster.come(cluster.kinds[victim])
    return cluster.until(
        lambda: all(cluster.board[1 + each, DONE] >= before[each] + 2 for each in workers),
        f"the failover after {[cluster.kinds[each] for each in victims]} {victims}",
    )


def run(
    pushes: int, kills: int, servers: int = 2, workers: int = 3, seed: int = 1, module: bool = False
) -> tuple[int, list[Kill]]:
    """The number of pushes that were acknowledged, and the cost of each kill.  Trouble: see the head of this file."""
    dice = random.Random(seed)
    done: list[Kill] = []
    cluster = Cluster(servers, workers, servers + workers + 2 * kills, module)
    with cluster:
        cluster.until(cluster.steady, "the start")
        killed = 0
        while killed < kills:
            due = (killed + 1) * pushes // (kills + 1)
            cluster.until(lambda due=due: cluster.done() >= due, f"{due} pushes")  # type: ignore[misc]
            who = dice.choice(["server", "worker", "server and worker", LEAVING])
            if "server" not in who:
                cluster.until(lambda: len(cluster.at_work()) > 1, "a second worker that is at work")
            else:
                cluster.until(cluster.steady, "a copy that is filled")
            victims = [dice.choice(cluster.of(kind)) for kind in who.removesuffix(" leaves").split(" and ")]
            time.sleep(dice.uniform(0, MOMENT))
            done.append(Kill(who, lose(cluster, victims, who == LEAVING)))
            killed += len(victims)
        cluster.until(lambda: cluster.done() >= pushes, f"{pushes} pushes")
        cluster.until(cluster.steady, "the last copy that is filled")
        judge(cluster)
        return cluster.done(), done


def judge(cluster: Cluster) -> None:
    """Each row has each push of its worker once."""
    workers = cluster.of("worker")
    cluster.board[0, STOP] = 1
    cluster.until(lambda: all(cluster.board[1 + each, STOPPED] for each in workers), "the last pushes")
    cluster.board[0, JUDGE] = 1
    cluster.until(lambda: not cluster.living(), "the leaving")
    for worker in workers:
        said = cluster.said(worker)[-1]
        if said["lost"]:
            raise Trouble(f"worker {worker} counts {said['lost']} acknowledged changes as lost")
        for process, rows in enumerate(said["found"]):
            wrong(process, rows, *(int(each) for each in cluster.board[1 + process, [DONE, BEGUN]]))


def wrong(process: int, rows: list[list[float]], done: int, begun: int) -> None:
    """Trouble: these rows are not those of one that has begun so many pushes, and had so many acknowledged."""
    for number, (count, total) in enumerate(rows):
        if not (count in (done, begun) and 2 * total == count * (count + 1)):
            raise Trouble(f"row {number} of worker {process} has {count:g} pushes with the sum {total:g}; {done} were "
                          f"acknowledged, {begun} begun")  # fmt: skip


def table(acknowledged: int, kills: list[Kill]) -> str:
    """In Markdown."""
    lines = ["| lost | times | failover: median ms | 99 % | most |", "|---|---|---|---|---|"]
    for who in sorted({each.who for each in kills}):
        ms = [1e3 * each.seconds for each in kills if each.who == who]
        median, p99 = np.quantile(ms, 0.5), np.quantile(ms, 0.99)
        lines.append(f"| {who} | {len(ms)} | {median:.0f} | {p99:.0f} | {max(ms):.0f} |")
    return "\n".join([*lines, "", f"{acknowledged} pushes acknowledged, 0 lost, 0 counted twice"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", action="store_true", help="a table of means, too")
    options = parser.parse_args()
    try:
        print(table(*run(**vars(options))))
    except Trouble as why:
        print(f"--seed {options.seed}: {why}")
        return 1
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
