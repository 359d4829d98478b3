"""Local SGD and DiLoCo beside torchft's on Gloo, and Flower's FedAvg: four sites at a switch.

    python -m hocket.lab.outer.peers [--rate 100mbit] [--rounds 10]       as root; pip install torchft-nightly flwr

Each site trains the network of `learning` on digits, on a host of its own (a network namespace) whose cable has that
rate, for a round every 20 steps.  bytes: what all hosts put on their cables, for each site and round, beside the
parameters' own.  s: of a round, and of it computation.  Flower's server is a fifth host.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence

from hocket.conformance.jobs.ranks import found_on, hosts_may_come
from hocket.lab.outer.peers import flower
from hocket.lab.outer.peers.learning import EVERY, SITES, Learner
from hocket.system.namespaces.hosts import sent
from hocket.system.namespaces.switch import switch

MODULE, PATIENCE = "hocket.lab.outer.peers", 600.0
FLOWER = "Flower, FedAvg"


def site(way: str, rounds: int, rank: int) -> None:
    """Rank 0 says how long a round took, and what was learned."""
    from hocket.lab.outer.peers.sites import WAYS

    learner = Learner(rank)
    with WAYS[way](rank, learner) as after:
        computing, began = 0.0, 0.0
        for step in range(EVERY * (rounds + 1)):
            if step == EVERY:  # the first round is for meeting
                computing, began = 0.0, time.perf_counter()
            start = time.perf_counter()
            learner.step()
            computing += time.perf_counter() - start
            after()
        seconds = time.perf_counter() - began
        print(json.dumps({"accuracy": learner.accuracy(), "round": seconds / rounds, "computing": computing / rounds}))


def main(argv: Sequence[str] | None = None) -> int:
    from hocket.lab.outer.peers.sites import WAYS

    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--rate", default="100mbit", help="of each host's cable, in tc's words (100mbit)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ways", help=f"with semicolons; known: {'; '.join((*WAYS, FLOWER))}")
    parser.add_argument("--site", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.site:
        site(options.site, options.rounds, int(os.environ["RANK"]))
        return 0
    hosts_may_come()
    names = options.ways.split(";") if options.ways else [*WAYS, FLOWER]
    if FLOWER in names and (why := flower.missing()):
        raise SystemExit(why)
    size = 4 * sum(each.numel() for each in Learner(0).model.parameters())
    print(f"# {SITES} sites at {options.rate}, {options.rounds} rounds, {size / 1e6:.2f} MB of parameters")
    print("| way | bytes of a site and round / parameters' | s a round | accuracy, % |\n|---|---|---|---|", flush=True)
    for name in names:
        with switch(SITES + 1, options.rate) as at, tempfile.TemporaryDirectory(prefix="hocket-peers-") as place:
            if name == FLOWER:
                row, rounds = flower.federated(at.hosts, options.rounds, place, PATIENCE), options.rounds
            else:
                row, rounds = _trained(at.hosts[:SITES], name, options.rounds), options.rounds + 1
            part = sum(sent(name=host) for host in at.hosts) / (SITES * rounds * size)
        print(f"| {name} | {part:.3f} | {row['round']:.3f} | {row['accuracy']:.2f} |", flush=True)
    return 0


def _trained(hosts: Sequence[str], way: str, rounds: int) -> dict[str, float]:
    words = [sys.executable, "-m", MODULE, f"--rounds={rounds}", "--site", way]
    return found_on(hosts, 1, words, "peers", PATIENCE)[0]


if __name__ == "__main__":
    sys.exit(main())
