"""`hocket doctor --job` on hosts that are network namespaces: the words name the host whose link was made slow."""

from __future__ import annotations

import os
import pathlib
import re

import pytest

from hocket.system.namespaces.hosts import refusal
from support.named_hosts import DOCTOR, star

WHY_NOT = refusal("50mbit")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
BUCKET = ("tbf", "rate", "80mbit", "burst", "32kb", "latency", "100ms")


def words(out: str) -> str:
    return " ".join(out.partition("\n\n")[0].split())


def test_one_of_three_hosts_sends_slowly() -> None:
    with star("anna", "berta", "carl") as made:
        made.shape(2, *BUCKET)
        ends = made.run([*DOCTOR, "--seconds", "3"], each=2)
    assert [end.code for end in ends.values()] == [0] * 6, ends[0].err
    said = words(ends[0].out)
    assert said.startswith("6 ranks on 3 hosts. All reach each other: inside hosts over shm and between hosts over ")
    (slow, rate) = re.findall(r"Host (\w+) sends [\d.]+ times slower than the others \(([\d.]+) MB/s, others", said)[0]
    assert slow == "carl" and 3 < float(rate) < 30, said
    assert "Host anna" not in said and "Host berta" not in said
    assert "Clocks agree within" in said
    assert not any(end.out for rank, end in ends.items() if rank), "only rank 0 prints"


def test_one_direction_between_two_hosts() -> None:
    with star("anna", "berta") as made:
        made.shape(1, *BUCKET)
        made.mtu(1, 1400)
        ends = made.run([*DOCTOR, "--seconds", "4"])
    said = words(ends[0].out)
    assert re.search(r"Host berta sends to host anna [\d.]+ times slower than it receives from there", said), said
    assert "MTUs differ: 1500 on anna and 1400 on berta." in said


def test_a_clock_that_is_wrong(tmp_path: pathlib.Path) -> None:
    """Wall clocks have no namespace, so one rank's Python adds to its own."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.time_ns\ntime.time_ns = lambda: real() - 3_500_000_000\n"
    )
    late = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with star("anna", "berta", "carl") as made:
        ends = made.run([*DOCTOR, "--seconds", "1"], env={1: late})
    assert "The clock of host berta is 3.5 s behind that of host anna (within " in words(ends[0].out), ends[0]
    assert re.search(r"^clock of berta: -(3499|3500)\.\d+ ms", ends[0].out, re.M)
    assert re.search(r"^clock of carl: [+-]\d\.\d+ ms", ends[0].out, re.M), ends[0].out


def test_a_rank_that_is_killed_meanwhile(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nfrom hocket.tools.doctor import links\nlinks.follow = lambda *args: os.kill(os.getpid(), 9)\n"
    )
    dies = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with star("anna", "berta", "carl") as made:
        ends = made.run(DOCTOR, env={1: dies})
    assert [end.code for end in ends.values()] == [1, -9, 1], ends
    for rank, name in ((0, "anna"), (2, "carl")):
        assert f"hocket doctor: rank {rank} on {name}: " in ends[rank].err and "rank 1" in ends[rank].err, ends[rank]


def test_no_secret() -> None:
    with star("anna", "berta") as made:
        ends = made.run(DOCTOR, env={0: {"HOCKET_SECRET": ""}, 1: {"HOCKET_SECRET": ""}})
    assert [end.code for end in ends.values()] == [1, 1]
    assert ends[0].out.startswith("The 2 ranks do not meet: rank 0 of 2") and "set HOCKET_SECRET" in ends[0].out


def test_rank_0_does_not_come() -> None:
    with star("anna", "berta", "carl") as made:
        ends = made.run([*DOCTOR, "--timeout", "2"], absent=[0])
    for rank, name in ((1, "berta"), (2, "carl")):
        assert ends[rank].code == 1 and f"rank {rank} on {name}" in ends[rank].err
        assert "rank 0 of job" in ends[rank].err and "was not found within 2 s" in ends[rank].err
