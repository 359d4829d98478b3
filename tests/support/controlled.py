"""Processes that join a job's control plane and do what the test tells them, one line at a time."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time

import pytest

RANK = """
import importlib, json, os, sys, threading, time
from hocket.control import rendezvous
from hocket.control.protocol import coordinator
from hocket.control.protocol.messages import Fault, Join, Left, Lost, Stuck, Verdict
spec = json.loads(sys.argv[1])
rendezvous.Meet.patience = spec["wrong_key"]
for module, name, seconds in spec["limits"]:
    setattr(importlib.import_module("hocket.control." + module), name, seconds)
lock = threading.Lock()
def tell(**what):
    with lock:
        print(json.dumps(what), flush=True)
def attempt(call, *args):
    try:
        return {"done": call(*args)}
    except Exception as why:
        gone = list(getattr(why, "missing", getattr(why, "ranks", ())))
        return {"error": type(why).__name__, "text": str(why), "gone": gone}
key = bytes.fromhex(spec["key"]) if spec["key"] else None
join = coordinator.HANDLERS[Join]
coordinator.HANDLERS[Join] = lambda its, by, said: tell(heard=by) or join(its, by, said)
settle = rendezvous.Meet._settle
rendezvous.Meet._settle = lambda meet, session: tell(there=True) or settle(meet, session)
who = rendezvous.Identity(spec["rank"], spec["size"], spec["job"], key)
if spec["held"]:
    tell(held=True)
    sys.stdin.readline()
made = attempt(rendezvous.join, who, rendezvous.Where(spec["address"]), spec["timeout"])
if "error" in made:
    tell(**made)
    sys.exit(1)
session = made["done"]
class Owner:
    def stop(self, fault):
        tell(stop=fault._asdict())
        return {"state": "idle", "seq": session.rank}
    def hear(self, message):
        if isinstance(message, Verdict):
            tell(verdict=message.fault._asdict() | {"accounts": message.accounts})
        elif isinstance(message, Lost):
            tell(lost=message._asdict())
        elif isinstance(message, Left):
            tell(left=message.rank)
session.own(Owner())
tell(joined=session.key.hex())
for line in sys.stdin:
    command, *args = json.loads(line)
    if command == "fork":
        if os.fork() == 0:
            session.close()
            os.close(1)
            os.read(0, 1)  # to the end of the test; nothing more is told to this rank
            os._exit(0)
        tell(done=None)
    elif command in ("report", "stuck"):
        tell(**attempt(session.send, {"report": Fault, "stuck": Stuck}[command](**args[0])))
    elif command == "say":  # these very words, whatever they are
        tell(**attempt(session._link.send, args[0]))
    else:
        tell(calls=command)
        begun = time.monotonic()
        tell(**attempt(getattr(session, command), *args), took=time.monotonic() - begun)
"""


class Rank:
    """One process that joins and then does what it is told; `hear(kind)` is the next thing of that kind it tells.

    "there": it has found the coordinator, or is it.  "joined": so have all.  "error": what was raised instead.
    "heard": a rank has said who it is to the coordinator, which this one has.
    limits: seconds of its process that differ, as (module in control/, name, seconds).
    held: it joins when it is told anything, as to start may take a process seconds.
    """

    def __init__(self, rank, size, address, key=None, timeout=30.0, job="job", wrong_key=5.0, limits=(), held=False):
        spec = {"rank": rank, "size": size, "address": address, "key": key and key.hex(), "job": job, "held": held}
        spec |= {"timeout": timeout, "wrong_key": wrong_key, "limits": list(limits)}
        self.rank, self.told, self.kept = rank, queue.Queue(), []
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            self.told.put(json.loads(line))

    def hear(self, kind, timeout=40.0):
        for event in self.kept:
            if kind in event:
                self.kept.remove(event)
                return event if kind == "error" else event[kind]
        end = time.monotonic() + timeout
        while True:
            try:
                event = self.told.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"rank {self.rank} did not tell {kind}, only {self.kept}") from None
            if kind in event:
                return event if kind == "error" else event[kind]
            self.kept.append(event)

    def silent(self, kind, seconds=0.3):
        with pytest.raises(AssertionError):
            self.hear(kind, seconds)

    def tell(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.listener.join(4)  # a forked child may hold the other end
        self.process.stdout.close()


KEY = bytes(range(32))


def exchanged(ranks, round_):
    for rank in ranks:
        rank.tell("exchange", {"from": rank.rank, "round": round_}, 5)
    for rank in ranks:
        assert rank.hear("done") == [{"from": r, "round": round_} for r in range(len(ranks))]
