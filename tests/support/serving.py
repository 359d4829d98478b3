"""Servers and workers in processes of their own, which may be killed and come later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

from support.jobs import Job
from support.worlds import PATH

SECRET = "a secret of the tests of servers, 12"
ROLES = """
import json, os, sys, time
import numpy as np
import hocket
from hocket.training import Client, Range, Rows, serve

TABLES = {"w": Range(64, slice=64), "e": Rows(2), "r": Range(32, slice=64, optimizer="put")}
HERE = os.path.dirname(os.path.abspath(__file__))

def there(name):
    return os.path.exists(os.path.join(HERE, name))

def mark(name, text=""):
    with open(os.path.join(HERE, name + "~"), "w") as file:
        file.write(str(text))
    os.rename(file.name, file.name[:-1])

def push_until(client, name):
    '''Push ones until the file is there; how many were acknowledged.'''
    done = 0
    while not there(name):
        client.push("w", np.ones(64, np.float32))
        client.push("e", np.ones((1, 2), np.float32), rows=[done % 7])
        done += 1
        mark(f"pushed-{client.uid}", done)
        time.sleep(0.001)  # others compute, too
    return done
"""
SERVER = ROLES + """
os.chdir(HERE)
comm = hocket.init(elastic=True)
mark(f"door-{comm.rank}", comm.door)
server = serve(comm, TABLES, on=range({servers}), clock="async", copies={copies}, **{how!r})
told = -1
while not server.wait(0.05):
    if server.view.generation > told:
        told = server.view.generation
        mark(f"view-{comm.rank}", told)
    if there("cut") and not there(f"is-cut-{server.holder.uid}"):
        for link in [*server.holder._links.values(), *server.holder.workers.values()]:
            link.open = False
            link.comm.close(timeout=0.1, log_as="cut")  # the other end does not leave, too
        mark(f"is-cut-{server.holder.uid}", server.holder.uid)
"""
WORKER = ROLES + """
comm = hocket.init(elastic=True)
client = Client(comm, TABLES)
mark(f"uid-{{comm.rank}}", client.uid)
done = push_until(client, "stop")
mark(f"done-{{client.uid}}", done)
while not there("judge"):
    time.sleep(0.01)
print(json.dumps([done, client.pull("w").tolist(), client.pull("e", rows=range(7)).tolist(), client.lost]))
client.close()
"""
NEW = """
server = serve(comm, TABLES, clock="async")
mark({serves!r})
while not (server.holder.replicas and all(each.shard.whole for each in server.holder.replicas.values())):
    time.sleep(0.01)
mark({whole!r})
server.wait()
"""


class Cluster:
    """Ranks 0 to servers - 1 serve, the others work; more servers may come.  `wait`: seconds for who is late."""

    def __init__(
        self, servers: int, workers: int, copies: int, working: str = WORKER, wait: float = 10.0, **how: Any
    ) -> None:  # fmt: skip
        self.servers, self.size = servers, servers + workers
        serving = SERVER.replace("{servers}", str(servers)).replace("{copies}", str(copies))
        serving = serving.replace("{how!r}", repr(how))
        working = working.replace("{{", "{").replace("}}", "}")
        serving, working = (textwrap.indent(text, "    ") for text in (serving, working))
        short = f"from hocket.training.server import member\nmember.WAIT, member.RENEW = {wait}, {1.5 * wait}\n"
        source = f"{short}import os\nif int(os.environ['HOCKET_RANK']) < {servers}:\n{serving}\nelse:\n{working}"
        self.job = Job(self.size, source, env={"HOCKET_SECRET": SECRET})
        self.more: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Cluster:
        self.job.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        for process in self.more:
            process.kill()
            process.communicate()
        self.job.__exit__(*exc)

    def path(self, name: str) -> str:
        return os.path.join(self.job.directory, name)

    def read(self, name: str) -> str:
        deadline = time.monotonic() + 60
        while not os.path.exists(self.path(name)):
            assert time.monotonic() < deadline, f"{name} did not come: {[p.poll() for p in self.job.processes]}"
            time.sleep(0.01)
        with open(self.path(name)) as file:
            return file.read()

    def mark(self, name: str) -> None:
        open(self.path(name), "w").close()

    def uid(self, rank: int) -> str:
        return self.read(f"uid-{rank}")

    def pushed(self, rank: int) -> int:
        return int(self.read(f"pushed-{self.uid(rank)}"))

    def until_pushed(self, ranks: range, more: int) -> None:
        """Each of these workers has had so many more pushes acknowledged."""
        for rank, before in {rank: self.pushed(rank) for rank in ranks}.items():
            deadline = time.monotonic() + 60
            while self.pushed(rank) < before + more:
                assert time.monotonic() < deadline, f"worker {rank} stands still at {self.pushed(rank)} pushes"
                time.sleep(0.01)

    def add(self, source: str, door: int) -> subprocess.Popen[str]:
        """A process that comes later."""
        path = self.path(f"more-{len(self.more)}.py")
        with open(path, "w") as file:
            file.write(ROLES + f"comm = hocket.init(join={self.read(f'door-{door}')!r}, timeout=60)\n" + source)
        env = {**os.environ, "PYTHONPATH": PATH, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.more.append(subprocess.Popen([sys.executable, path], env=env, stdout=pipe, stderr=pipe, text=True))
        return self.more[-1]

    def end(self, ranks: range) -> list[Any]:
        """The last words of these workers."""
        self.mark("stop")
        for rank in ranks:
            self.read(f"done-{self.uid(rank)}")
        self.mark("judge")
        ends = self.job.wait(60)
        for rank in ranks:
            assert ends[rank].code == 0, f"worker {rank}: {ends[rank].err}"
        return [json.loads(ends[rank].out.splitlines()[-1]) for rank in ranks]
