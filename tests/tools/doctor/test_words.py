"""The doctor's judgement, on jobs that are made up: schedules, suspicions, differences, and their words."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from hocket.kernels.cpu import reduce
from hocket.tools.doctor import clocks, facts, local, sentences, units
from hocket.tools.doctor.differences import different, warnings
from hocket.tools.doctor.links import Speed
from hocket.tools.doctor.matrix import matrices
from hocket.tools.doctor.pairing import rounds
from hocket.tools.doctor.report import Report
from hocket.tools.doctor.suspicion import suspicions

SHM = Speed(1e-6, 5e9, 5e9)
TCP = Speed(5e-5, 1e9, 1e9)


def report(*sizes: int, cores: int = 64, **changes: Any) -> Report:
    """Hosts a, b, c ... of so many ranks, all links alike."""
    numbers = iter(range(sum(sizes)))
    hosts = [[next(numbers) for _ in range(size)] for size in sizes]
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    what = {"hocket": "1", "CPU": "a processor", "open files (ulimit -n)": "1024"}
    told: list[Any] = [
        {"node": "abcdefgh"[host], "kernel": host, "cores": list(range(cores)), "usable": cores, "what": dict(what),
         "interfaces": {}}
        for host in host_of.values()
    ]
    groups = [
        [("shm", "", (), tuple(r for r in hosts[host_of[me]] if r != me)),
         ("tcp", "", (), tuple(r for r in host_of if host_of[r] != host_of[me]))]
        for me in host_of
    ]  # fmt: skip
    made = Report(told, hosts, groups, {r: f"10.0.0.{host_of[r] + 1}" for r in host_of})
    pairs = itertools.combinations(range(sum(sizes)), 2)
    made.links = {pair: SHM if made.inside(pair) else TCP for pair in pairs}
    return made


def texts(made: Report) -> list[str]:
    return [each.text for each in suspicions(made)]


@pytest.mark.parametrize("sizes", [(4,), (1, 1), (2, 2), (3, 2, 4), (1, 5), (2,) * 8])
def test_every_pair_is_measured_once_and_no_link_is_shared(sizes: tuple[int, ...]) -> None:
    hosts = report(*sizes).hosts
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    every = rounds(hosts, 10_000)
    assert sorted(pair for each in every for pair in each) == [*itertools.combinations(range(sum(sizes)), 2)]
    for each in every:
        busy = [host for pair in each for host in {host_of[rank] for rank in pair}]
        assert len(busy) == len(set(busy)), each


def test_the_first_rounds_meet_every_two_hosts() -> None:
    every = rounds([[i * 8 + j for j in range(8)] for i in range(16)], 40)
    assert len(every) == 40
    met = {(a // 8, b // 8) for each in every for a, b in each}
    assert met >= {*itertools.combinations(range(16), 2)}


def test_nothing_is_suspected_of_equals() -> None:
    made = report(4, 4, 4)
    assert texts(made) == []
    said = sentences.paragraph(made, [])
    assert said.startswith("12 ranks on 3 hosts. All reach each other: inside hosts over shm and between hosts over ")
    assert "No link is much slower than its like." in said


def test_a_host_whose_links_are_all_slow() -> None:
    made = report(2, 2, 2)
    made.links |= {(a, b): Speed(4e-4, 1e8, 1e8) for a, b in made.links if b >= 4 and a < 4}
    assert texts(made) == [
        "Host c answers 8.0 times slower than the others (400 us, others 50 us)",
        "Host c sends 10 times slower than the others (100 MB/s, others 1.0 GB/s)",
        "Host c receives 10 times slower than the others (100 MB/s, others 1.0 GB/s)",
    ]
    assert "Host c sends 10 times slower" in sentences.paragraph(made, suspicions(made))


def test_a_host_that_is_slow_inside() -> None:
    made = report(3, 3, 3)
    made.links |= {pair: Speed(5e-6, 1e9, 1e9) for pair in itertools.combinations(range(3, 6), 2)}
    assert texts(made) == [
        "Inside host b, a message takes 5.0 times as long as elsewhere (5.0 us, others 1.0 us)",
        "Inside host b, bytes move 5.0 times slower than elsewhere (1.0 GB/s, others 5.0 GB/s)",
    ]
    crowded = report(3, 3, 3, cores=2)
    crowded.links = made.links
    assert texts(crowded) == [], "its ranks wait for cores"
    assert "No link is much slower" not in sentences.paragraph(report(3, cores=2), []), "nobody has looked"
    (text,) = warnings(crowded)
    assert text.startswith("Ranks outnumber the cores of a, b and c, so times vary: inside hosts they are not judged")


@pytest.mark.parametrize("bound, crowded", [([0, 1], frozenset()), ([0, 0], {0})])
def test_ranks_with_cores_of_their_own_do_not_outnumber_them(bound: list[int], crowded: frozenset[int]) -> None:
    """A launcher has bound them; the other host has 64 cores for all."""
    made = report(2, 2)
    for each, core in zip(made.facts, bound, strict=False):
        each |= {"cores": [core], "usable": 1}
    assert made.crowded == crowded


@pytest.mark.parametrize(
    ("cores", "threads", "said"),
    [
        ([0], "1", "The 4 ranks of host a may run on 1 of its 64 cores: whatever started them has bound them"),
        ([*range(64)], "", "host a may start 256 threads on 64 cores, as OMP_NUM_THREADS is not set: set it to 16"),
        ([*range(64)], "32", "host a may start 128 threads on 64 cores, as OMP_NUM_THREADS is too large: set it to 16"),
        ([*range(64)], "16", ""), ([*range(4)], "1", ""),
    ],
)  # fmt: skip
def test_ranks_that_are_badly_placed(cores: list[int], threads: str, said: str) -> None:
    made = report(4, 2)
    for each in made.facts:
        each |= {"online": 64, "threads": "1"}
    for each in made.facts[:4]:
        each |= {"cores": cores, "usable": len(cores), "threads": threads}
    text = sentences.paragraph(made, [])
    assert said in text and ("of host a may" in text) == bool(said) and "of host b may" not in text


def test_where_times_vary_only_what_is_very_slow_is_told() -> None:
    made = report(1, 1, 1)
    for each in made.facts:
        each |= {"kernel": 0, "cores": [0, 1], "usable": 2}  # three containers of one machine
    made.links |= {(0, 2): Speed(2e-4, 3e8, 1e9), (1, 2): Speed(2e-4, 1e9, 3e8)}
    assert texts(made) == []
    made.links |= {(0, 2): Speed(5e-4, 1e9, 1e8), (1, 2): Speed(5e-4, 1e9, 1e8)}
    assert [text.partition(" slower")[0] for text in texts(made)] == [
        "Host c answers 10 times", "Host c sends 10 times",
    ]  # fmt: skip


def test_two_hosts_with_a_bad_cable() -> None:
    made = report(1, 1, 1, 1)
    made.links[1, 2] = Speed(5e-5, 1e9, 2e8)
    (text,) = texts(made)
    assert text == "Host c sends to host b 5.0 times slower than it receives from there (200 MB/s, others 1.0 GB/s)"
    made.links[1, 2] = Speed(2e-4, 2e8, 2e8)
    assert texts(made) == [
        "Host b answers host c 4.0 times slower than usual (200 us, others 50 us)",
        "Host b sends to host c 5.0 times slower than usual (200 MB/s, others 1.0 GB/s)",
        "Host c sends to host b 5.0 times slower than usual (200 MB/s, others 1.0 GB/s)",
    ]


def test_two_ranks() -> None:
    made = report(4)
    made.links[1, 3] = Speed(1e-6, 1e9, 5e9)
    (text,) = texts(made)
    assert text == "Rank 1 sends to rank 3 5.0 times slower than usual inside hosts (1.0 GB/s, others 5.0 GB/s)"
    made = report(2, 2)
    made.links[0, 3] = Speed(3e-4, 1e9, 1e9)
    assert texts(made) == ["Rank 0 answers rank 3 6.0 times slower than usual between hosts (300 us, others 50 us)"]


def test_two_hosts_alone_have_no_like() -> None:
    made = report(1, 1)
    made.links[0, 1] = Speed(1.0, 1e3, 1e3)
    assert texts(made) == []


def test_differences_name_ranks() -> None:
    made = report(2, 2)
    made.facts[3]["what"] |= {"hocket": "2", "HOCKET_TIMEOUT": "5"}
    assert different(made) == [
        ("hocket", ["1 on ranks 0-2", "2 on rank 3"]),
        ("HOCKET_TIMEOUT", ["not set on ranks 0-2", "5 on rank 3"]),
    ]


def test_addresses_and_mtus() -> None:
    made = report(1, 1)
    for rank, mtu in ((0, 1500), (1, 9000)):
        made.facts[rank]["interfaces"] = {made.addresses[rank]: ["eth0", mtu]}
    assert [*warnings(made)] == ["MTUs differ: 1500 on a and 9000 on b"]
    made.addresses = {0: "127.0.0.1", 1: "127.0.0.1"}
    (text,) = warnings(made)
    assert text.startswith("Hosts reach ranks 0-1 by a loopback address, so they are one machine that shares no memory")


def test_hosts_of_one_name_are_told_apart() -> None:
    made = report(1, 1)
    told = [{**each, "node": "vm"} for each in made.facts]
    assert Report(told, made.hosts, made.groups, made.addresses).names == ["vm at 10.0.0.1", "vm at 10.0.0.2"]
    assert Report(told, made.hosts, made.groups, {}).names == ["vm#0", "vm#1"]


def test_clocks() -> None:
    made = report(1, 1, 1)
    made.clocks = {1: clocks.Offset(-0.5, 1e-4), 2: clocks.Offset(1e-4, 1e-4)}
    assert "The clock of host b is 500 ms behind that of host a (within 100 us)." in sentences.paragraph(made, [])
    made.clocks[1] = clocks.Offset(0.5, 0.6)
    assert "Clocks agree within 1.1 s." in sentences.paragraph(made, []), "the bound is so wide that nothing is known"


def test_no_secret_is_told() -> None:
    environ = {"HOCKET_SECRET": "correct horse", "HOCKET_SECRT": "battery staple", "HOCKET_RANK": "3",
               "HOCKET_TIMEOUT": "5", "HOME": "/"}  # fmt: skip
    assert facts.variables(environ) == {
        "HOCKET_SECRET": "set (not shown)", "HOCKET_SECRT": "set (not shown)", "HOCKET_TIMEOUT": "5",
    }  # fmt: skip


def test_a_wide_job_is_cut() -> None:
    made = report(*[8] * 8)
    lines = [*sentences.details(made, [])]
    assert len(lines) < 120 and any("the first 16 ranks" in line for line in lines)
    assert any(line.startswith("  and ") and "more groups of ranks" in line for line in lines)
    made.links.pop((0, 1))
    assert "?" in "\n".join(matrices(made))


def test_units() -> None:
    assert [units.latency(s) for s in (5.2e-7, 4.54e-5, 0.0123, 2)] == ["0.52 us", "45 us", "12 ms", "2.0 s"]
    assert [units.rate(r) for r in (9e4, 1.1e7, 1.25e9)] == ["90 kB/s", "11 MB/s", "1.2 GB/s"]
    assert units.ranks([3]) == "rank 3" and units.ranks([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert units.listed("abc") == "a, b and c" and units.listed("abcdefg", 3) == "a, b and 5 more"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="elsewhere there is one level of kernels")
def test_a_processor_without_the_extensions_is_told() -> None:
    best = reduce.levels()[-1]
    reduce.use_level("base")
    told = next(local._processor())
    reduce.use_level(best)
    assert told.startswith("kernels: base: sse2; this processor has no AVX2")
    assert best == "base" or "no AVX2" not in next(local._processor())


def test_a_long_link_is_told_with_what_bounds_it() -> None:
    made = report(1, 1, 1)
    for fact in made.facts:
        fact["tcp"] = {"wmem": 4 << 20, "bbr": ""}
    assert "round trip" not in sentences.paragraph(made, [])
    made.links[0, 1] = Speed(0.05, 26e6, 26e6)
    said = sentences.paragraph(made, [])
    told = "Between hosts a and b a round trip takes 100 ms: one TCP stream is bound at 208 Mbit/s by net.ipv4.tcp_wmem"
    assert told in said and said.count("round trip") == 1 and "Losses bind" not in said
    made.facts[2]["tcp"]["bbr"] = "bbr is only for root: net.ipv4.tcp_allowed_congestion_control is reno"
    assert "Losses bind streams there, as bbr is only for root" in sentences.paragraph(made, [])
