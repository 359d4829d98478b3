"""Storms over links that heal: connections that are cut, and bits that flip, by the thousand.

    PYTHONPATH=tests .venv/bin/python -m support.storms cuts|flips [--count 100000] [--seed 1]

cuts: all kinds of calls while connections of data and control are reset at any byte, either side, in either direction;
one in four jobs inside TLS, one over four streams.  flips: allreduce through a relay that ends the TCP connections on
both sides and turns one bit in 10^7, with HOCKET_CHECK=payload; and once without, to see that it does harm.  A job of
two ranks at a time; a line for each.  Exit code 1, with that job's seed, if a result was wrong or a call failed.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import sys
import time
from collections.abc import Sequence

from support import jobs, worlds

MANY = """
import logging, os
import numpy as np, hocket
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
cutting.enter()
with hocket.init(transport="tcp", timeout=60) as comm:
    p, me, other = comm.size, comm.rank, 1 - comm.rank
    urgent, calls, cuts = comm.lane("urgent", 1), 0, 0
    end = cutting.now_and_then({every}, {seed} + comm.rank)
    while cuts < {cuts}:
        for n in (0, 1, 8, 1000, 4096, 70_001, 300_000):
            x = np.arange(n, dtype=np.float32) + me
            assert (comm.allreduce(x, out=np.empty_like(x)) == 2 * np.arange(n, dtype=np.float32) + 1).all(), n
            y = x.copy()
            assert (comm.allreduce(y) == 2 * np.arange(n, dtype=np.float32) + 1).all(), n
            y[:] = np.nan  # what the other rank lacks is sent again from elsewhere
            y[:] = x
            assert (comm.allreduce(y, "avg") == np.arange(n, dtype=np.float32) + 0.5).all(), n
            works = [lane.allreduce(np.full(n, me + 1.0), async_op=True) for lane in (comm, urgent, comm)]
            assert all((work.result() == 3).all() for work in works), n
            into = np.empty_like(x)
            comm.sendrecv(x, other, into, other)
            assert (into == np.arange(n, dtype=np.float32) + other).all(), n
            comm.broadcast(x)
            assert (x == np.arange(n, dtype=np.float32)).all(), n
            coded = comm.allreduce(np.ones(n, np.float32), codec="int8")
            assert (coded == 2).all(), n
            calls += 1
        healed = comm.world.transports["tcp"].mender.history.healed.values()
        cuts = 2 * comm.allreduce(np.array([sum(each.times for each in healed)]), "min")[0]  # of each
    end()
    comm.barrier()
    assert ": tcp (" in comm.explain() and "made again" in comm.explain(), comm.explain()
    recorded = comm.recorder().recorded()
    records = [each for ring in recorded.rings for each in ring.records[ring.records["kind"] == 8]]
    marks = {{recorded.what(int(each["what"])).text for each in records}}
    assert {{f"link to rank {{other}} healed", f"link to rank {{other}} flaps"}} <= marks, marks
    assert ", flaps" in comm.explain()
    print("healed", cuts, "calls", calls)
"""

FLIPS = """
import logging, os
import numpy as np, hocket
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
flips = cutting.flips({one_in}, {seed} + int(os.environ["HOCKET_RANK"]))
cutting.enter(lambda link: cutting.Relay(link, flip=flips))
comm = hocket.init(transport="tcp", timeout=20)
wrong, x = 0, np.zeros(20_000, np.float32)
try:
    for i in range({calls}):
        wrong += not (comm.allreduce(x, out=np.empty_like(x)) == 0).all()
    damaged = comm.world.transports["tcp"].mender.history.damaged
    print("end", wrong, sum(damaged.values()))
    comm.barrier()
except hocket.Error as error:
    print("error", wrong, error)
os._exit(0)
"""

KINDS = (
    {}, {}, {"HOCKET_STREAMS": "4"}, {"HOCKET_ENCRYPT": "1"},
)  # fmt: skip
"""Jobs of a storm of cuts, in turns."""
CUTS, CALLS = 2000, 2000
"""In one job, at most."""
PATIENCE = 300.0
LIMIT = "60"
"""Seconds of silence: where connections are cut as soon as they are made, on a busy machine, 5 are over soon."""


def cut(cuts: int, every: float, seed: int, **env: str) -> int:
    """Two ranks make calls until so many connections have been made again, cut every so many seconds; how many were."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"tcp:127.0.0.1:{server.getsockname()[1]}"
    source = MANY.format(cuts=cuts, every=every, seed=seed)
    env = {"HOCKET_LOST_AFTER": LIMIT, "HOCKET_RENDEZVOUS": where, **env}
    outs = jobs.run(2, source, PATIENCE, PYTHONPATH=worlds.PATH, **env)
    return min(int(out.split()[1]) for out in outs)


def flip(calls: int, one_in: float, seed: int, check: str) -> list[list[str]]:
    """So many sums of two ranks while bits flip: by rank `end`, or `error`, the number that were wrong, and more."""
    source = FLIPS.format(calls=calls, one_in=one_in, seed=seed)
    return [out.split() for out in jobs.run(2, source, PATIENCE, PYTHONPATH=worlds.PATH, HOCKET_CHECK=check)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m support.storms", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("what", choices=("cuts", "flips"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    done, damaged, began = 0, 0, time.monotonic()
    for number in itertools.count():
        seed = options.seed * 1_000_003 + number
        if done >= options.count:
            break
        try:
            if options.what == "cuts":
                kind = KINDS[number % len(KINDS)]
                done += cut(min(CUTS, options.count - done), 0.03 if "HOCKET_ENCRYPT" in kind else 0.004, seed, **kind)
            else:
                calls = min(CALLS, options.count - done)
                ends = flip(calls, 1e-7, seed, "payload")
                assert all(each[:2] == ["end", "0"] for each in ends), ends
                done, damaged = done + calls, damaged + sum(int(each[2]) for each in ends)
        except AssertionError as why:
            sys.exit(f"job {number}, seed {options.seed}: {why}")
        more = f", {damaged} records came damaged" if options.what == "flips" else ""
        what = "cuts" if options.what == "cuts" else "calls"
        print(f"{done} {what}{more}, {time.monotonic() - began:.0f} s", flush=True)
    if options.what == "flips":
        ends = flip(min(CALLS, options.count), 1e-7, options.seed, "")
        assert any(each[0] == "error" or int(each[1]) for each in ends), ends
        print(f"without the check: {ends}")


if __name__ == "__main__":
    main()
