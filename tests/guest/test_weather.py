"""A bad network: packets come late, twice, disordered, damaged, or not at all.  Results are asserted, never times.

Two hosts of two ranks with a cable between them (network namespaces) for tcp and the rendezvous; for verbs the cable
between the devices.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest
import test_oracle
from checks import perform, ring
from forked import Job, outputs
from places import HOSTS, PLACES, TRANSPORTS, env, freed, held

import hocket
from hocket.algorithms.language.contract import CONTRACTS
from hocket.system.namespaces.hosts import CABLE, V4, hosts, ip
from support.faulty import all_ready, endure, facts, say

WEATHERS = {
    "late": "delay 20ms 5ms",
    "lost": "loss 5%",
    "disordered": "delay 10ms reorder 30% 50%",
    "twice": "duplicate 20%",
    "damaged": "corrupt 3%",
    "all": "delay 20ms 5ms loss 2% duplicate 2% corrupt 1% reorder 10%",
}
LONG = 150.0
"""Seconds: each lost packet may cost the kernel's retransmission timer, more each time."""


@contextlib.contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Hosts that know each other's Ethernet addresses for good: netem's damage is what Ethernet's checksum would find,
    and ARP has none of its own."""
    with hosts() as nets:
        for net, other, address in ((nets[0], nets[1], V4[1]), (nets[1], nets[0], V4[0])):
            (link,) = json.loads(ip("-n", other, "-json", "link", "show", CABLE))
            how = ["lladdr", link["address"], "nud", "permanent", "dev", CABLE]
            ip("-n", net, "neigh", "replace", address, *how)
        yield nets


def tc(net: str, *words: str) -> str:
    prefix = ["tc", "-n", net] if net else ["tc"]
    return subprocess.run([*prefix, *words], check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def weather(name: str, places: Sequence[tuple[str, str]]) -> Iterator[None]:
    """That weather at both ends, (namespace, device); at the end it must have met some packets."""
    for net, device in places:
        tc(net, "qdisc", "add", "dev", device, "root", "netem", *WEATHERS[name].split(), "limit", "10000")
    try:
        yield
        sent, dropped = 0, 0
        for net, device in places:
            said = tc(net, "-s", "qdisc", "show", "dev", device)
            counts = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", said)
            assert counts is not None
            sent, dropped = sent + int(counts[1]), dropped + int(counts[2])
        assert sent > 100 and (dropped > 0 or "loss" not in WEATHERS[name]), (sent, dropped)
    finally:
        for net, device in places:
            with contextlib.suppress(subprocess.CalledProcessError):
                tc(net, "qdisc", "del", "dev", device, "root")


def calls() -> None:
    """Every collective, small and in several packets, right to the bit."""
    with hocket.init() as comm:
        assert comm.groups == ((0, 1), (2, 3)), comm.groups
        for collective in CONTRACTS:
            for salt, count in enumerate((1, 6001)):
                test_oracle.check(comm, collective, None, count, salt)
        for algorithm in ("ring", "recursive_doubling"):
            test_oracle.check(comm, "allreduce", algorithm, 20_001, 3)
        for _ in range(5):
            ring(comm, 50_001)
        say(done=True)


@pytest.mark.parametrize("name", WEATHERS)
def test_tcp_between_hosts(name: str, tmp_path: pathlib.Path) -> None:
    """The rendezvous and all collectives."""
    with two_hosts() as nets, weather(name, [(net, CABLE) for net in nets]):
        with Job(4, calls, tmp_path, hosts=HOSTS, nets=nets, master=V4[0]) as job:
            ends = job.wait(LONG)
        outputs(ends)
        assert all(facts(end)["done"] for end in ends)


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("name", ["late", "all"])
def test_a_killed_rank_is_noticed(name: str, victim: int, tmp_path: pathlib.Path) -> None:
    function = functools.partial(endure, "allreduce", "tcp")
    with two_hosts() as nets, weather(name, [(net, CABLE) for net in nets]):
        with Job(4, function, tmp_path, hosts=HOSTS, nets=nets, master=V4[0]) as job:
            all_ready(tmp_path, range(4))
            killed = time.monotonic()
            job.signal(victim, signal.SIGKILL)
            ends = job.wait(LONG)
        for rank in set(range(4)) - {victim}:
            said = facts(ends[rank])
            # A rank on rank 0's host may hear of the whole host first: when much is lost, so are its heartbeats.
            assert said["error"] == "PeerLostError" and victim in said["ranks"], said
            assert said["at"] - killed < 30.0 and said["left"] == [], said


FEW = ("every_pair", "many_small_calls", "sizes_around_every_edge", "asynchronous")


@pytest.mark.parametrize("transport", [transport for transport in TRANSPORTS if transport != "tcp"])
@pytest.mark.parametrize("name", ["lost", "disordered", "twice", "damaged"])
def test_between_devices(name: str, transport: str, tmp_path: pathlib.Path) -> None:
    """The devices send again what was lost; what is damaged they throw away."""
    before, places = held(), PLACES["across"][:2]
    function, ends = functools.partial(perform, FEW), [("", "veth0"), ("", "veth1")]
    with weather(name, ends), Job(2, function, tmp_path, env(transport, places)) as job:
        outputs(job.wait(LONG))
    freed(before)
