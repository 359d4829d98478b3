"""Jobs on two hosts with long cables between them: delayed, lossy, several, and one that is pulled."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from hocket.lab.wire.bed import ADDRESS, URGENT, Cable, bed, down
from hocket.system.namespaces.hosts import on, refusal

WHY_NOT = refusal("100mbit")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "")
CALLS = """
import faulthandler, itertools, os, resource, time
faulthandler.dump_traceback_later({seconds}, exit=True)
import numpy as np, hocket
if {files}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
with hocket.init(timeout=60) as comm:
    x = np.empty({nbytes} // 4, np.float32)
    print("ready", flush=True)
    for i in itertools.count():
        x[:] = np.arange(len(x)) % 8191 + comm.rank
        last = i + 1 >= {calls} and (not {until!r} or all(comm.allgather_object(os.path.exists({until!r}))))
        comm.barrier()
        began = time.monotonic()
        comm.allreduce(x)
        took = time.monotonic() - began
        assert (x == 2 * (np.arange(len(x)) % 8191) + 1).all(), i
        print("took", took, flush=True)
        if last:
            break
    comm.barrier()
    print(next(line for line in comm.explain().splitlines() if line.startswith(f"  rank {{1 - comm.rank}}: ")))
    print(comm.explain("allreduce", x.nbytes))
    others = comm.recorder().recorded()
    records = [each for ring in others.rings for each in ring.records[ring.records["kind"] == 8]]
    print(sorted({{others.what(int(each["what"])).text for each in records}}))
"""


class Ranks:
    """A rank on each host."""

    def __init__(self, names: list[str], folder: pathlib.Path, source: str, env: dict[str, str]) -> None:
        (folder / "tmp").mkdir()
        secret = secrets.token_hex(32)
        self.processes = []
        for rank in range(2):
            (folder / f"host{rank}").mkdir()
            job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESS.format(0, 1), "MASTER_PORT": "29611",
                   "HOCKET_SECRET": secret, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}  # fmt: skip
            host = on(names[rank], str(folder / f"host{rank}"), f"wire{rank}")
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*URGENT, *host, sys.executable, "-c", source], env={**os.environ, **job, **env}, text=True,
                stdout=pipe, stderr=pipe, start_new_session=True,
            )  # fmt: skip
            self.processes.append(process)

    def until(self, word: str, times: int = 1) -> None:
        """Rank 0 has printed so many lines that begin so."""
        out = self.processes[0].stdout
        assert out is not None
        while times and (line := out.readline()):
            times -= line.startswith(word)

    def ended(self) -> list[tuple[str, str]]:
        ends = [each.communicate() for each in self.processes]
        assert [each.returncode for each in self.processes] == [0, 0], ends
        return ends

    def kill(self) -> None:
        for each in self.processes:
            if each.poll() is None:
                each.kill()
                each.wait()


@contextlib.contextmanager
def job(
    link: Cable, calls: int, nbytes: int, cables: int = 1, control: str = "", files: int = 0, seconds: int = 100,
    until: str = "", **env: str,
) -> Iterator[tuple[list[str], Ranks]]:
    """A rank that takes longer than `seconds` ends, and prints where it was.

    `until`: a file; calls go on until it is there, and then there is one more.
    """
    source = CALLS.format(calls=calls, nbytes=nbytes, files=files, seconds=seconds, until=until)
    with tempfile.TemporaryDirectory(prefix="wire-") as folder, bed(link, cables, control) as names:
        ranks = Ranks(names, pathlib.Path(folder), source, env)
        try:
            yield names, ranks
        finally:
            ranks.kill()


def times(out: str) -> list[float]:
    return [float(line.split()[1]) for line in out.splitlines() if line.startswith("took")]


def test_a_cable_that_is_pulled_in_the_middle_of_a_call(tmp_path: pathlib.Path) -> None:
    """Both carry the call; then the other one does, and says so.  It is the one that the job met over."""
    env = {"HOCKET_PATHS": "w0,w1", "HOCKET_LOST_AFTER": "15"}
    pulled = tmp_path / "pulled"
    with job(Cable("200mbit", 0.003), 5, 12_000_000, cables=2, until=str(pulled), **env) as (names, ranks):
        ranks.until("took")
        time.sleep(0.1)
        down(names[0], 0)
        pulled.touch()
        ends = ranks.ended()
    for out, err in ends:
        assert "11.4 MiB: one_shot, the built-in table, for long links" in out, out
        assert "2 paths" in out and "path 0 was down" in out and "is down: its streams go by another one" in err, ends
        assert "path 0 to rank" in out.splitlines()[-1] and "healed" in out.splitlines()[-1], out


def test_an_interface_that_is_not_there_and_too_few_descriptors_are_told_and_the_job_goes_on() -> None:
    env = {"HOCKET_PATHS": "w0,w7", "HOCKET_STREAMS": "16", "HOCKET_CONGESTION": "pigeon"}
    with job(Cable("1gbit", 0.002), 1, 4_000_000, files=72, **env) as (names, ranks):
        left = subprocess.Popen(["ip", "netns", "exec", names[0], "sleep", "99"])
        ends = ranks.ended()
    assert left.wait(60) == -signal.SIGKILL  # the bed ends what a launcher would leave
    for _, err in ends:
        assert "'w7' is not an interface of this machine; its interfaces: lo, w0" in err, err
        assert "no congestion control 'pigeon'; it has " in err and "instead of 16 streams" in err, err
        assert "raise `ulimit -n`" in err and len(err) < 2500 and "Traceback" not in err, err


@pytest.mark.more
def test_two_cables_carry_more_than_one() -> None:
    took = []
    for cables in (1, 2):
        env = {"HOCKET_PATHS": ",".join(f"w{i}" for i in range(cables))}
        with job(Cable("100mbit", 0.01), 6, 16_000_000, cables=cables, **env) as (_, ranks):
            took.append(sorted(times(ranks.ended()[0][0]))[1])
    assert took[0] / took[1] > 1.7, took


@pytest.mark.more
def test_losses_do_not_bind() -> None:
    """By BBR where it may be had; by several streams where the control is one that losses bind."""
    link, nbytes = Cable("100mbit", 0.05, 1000), 8_000_000
    found = {}
    for name, env in {"auto": {}, "system": {"HOCKET_CONGESTION": "system"},
                      "one": {"HOCKET_CONGESTION": "system", "HOCKET_STREAMS": "1"}}.items():  # fmt: skip
        with job(link, 2 if name == "one" else 8, nbytes, control="reno", seconds=180, **env) as (_, ranks):
            out = ranks.ended()[0][0]
            found[name] = min(times(out)), out
    assert found["system"][0] < found["one"][0] / 2.5 and "streams" in found["system"][1], found
    if "bbr" in found["auto"][1]:
        assert found["auto"][0] < found["one"][0] / 5, found


@pytest.mark.more
def test_a_full_window_does_not_bind() -> None:
    found = {}
    for streams in ("1", "0"):
        with job(Cable("1gbit", 0.05, 0, 9000), 10, 64_000_000, seconds=180, HOCKET_STREAMS=streams) as (_, ranks):
            out = ranks.ended()[0][0]
            found[streams] = sorted(times(out))[2], out
    assert found["0"][0] < found["1"][0] / 1.2 and "the window was full" in found["0"][1], found
