"""perftest's ib_send_lat, ib_write_bw and ib_read_bw, in rounds; and what is measured of hocket in the same way."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hocket.errors import Error
from hocket.system.machine import free_port
from hocket.tools.rank import start

LONG = 1 << 20
SMALL_CALLS, LONG_CALLS, WARM = 2000, 60, 100
"""Calls a round; 60 MiB take Soft-RoCE on an emulated processor a second."""
PERFTEST = ("ib_send_lat", "ib_write_bw", "ib_read_bw")
PATIENCE = 120.0

Numbers = dict[str, float]
"""The numbers of one round: us (of one call), or bytes/s; cpu and machine: seconds of CPU for a GB."""


@dataclass(frozen=True)
class Ends:
    """Two ends: the device of each, empty for TCP."""

    name: str
    devices: tuple[str, str] = ("", "")


def parse(text: str) -> dict[str, float]:
    """A table of perftest: column -> number, of its last row of numbers.  Columns are named `name[unit]` or `#name`."""
    names: list[str] = []
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            names = [name.strip() for name in re.findall(r"#\w+|[^\s#\[][^\[#]*\[[^\]]*\]", line)]
        elif names and re.fullmatch(r"[\s\d.+eEinfa-]+", line) and len(line.split()) >= len(names):
            found = dict(zip(names, map(float, line.split()), strict=False))
    if not found:
        raise Error(f"perftest printed no table of numbers: {text.strip()[-300:] or 'nothing at all'}")
    return found


def column(table: dict[str, float], name: str) -> tuple[float, str]:
    """(number, unit) of the column whose name starts so, in any case."""
    for head, value in table.items():
        if head.lower().startswith(name.lower()):
            return value, head.partition("[")[2].rstrip("]")
    raise Error(f"perftest's table has no column {name}, but {', '.join(table)}")


UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
"""Bytes/s: perftest's MB is 2^20."""


def perftest(tool: str, place: Ends, gid_index: int) -> Numbers:
    """One round of it, server and client."""
    port = free_port("127.0.0.1")[1]
    small = tool.endswith("_lat")
    how = ["-F", "-p", str(port), "-n", str(SMALL_CALLS if small else LONG_CALLS), "-s", str(8 if small else LONG)]
    if gid_index >= 0:
        how += ["-x", str(gid_index)]
    begin = machine_seconds()
    with _started([tool, *how, "-d", place.devices[0]]) as server:
        _await_listener(port, server)
        with _started([tool, *how, "-d", place.devices[1], "127.0.0.1"]) as client:
            out, cpu = _ended(client, tool)
            cpu += _ended(server, tool)[1]
    machine = machine_seconds() - begin
    table = parse(out)
    if small:
        return {"us": column(table, "t_typical")[0]}
    value, unit = column(table, "BW average")
    if unit not in UNITS:
        raise Error(f"{tool}: its unit {unit} is not known here")
    gigabytes = LONG * LONG_CALLS / 1e9
    return {"bandwidth": value * UNITS[unit], "cpu": cpu / gigabytes, "machine": machine / gigabytes}


@contextlib.contextmanager
def _started(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = start(words, os.environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def _await_listener(port: int, server: subprocess.Popen[str]) -> None:
    """Until it listens: a client that comes too early gives up."""
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with contextlib.suppress(OSError), open(table) as file:
                if any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in file):
                    return
        time.sleep(0.01)


def _ended(process: subprocess.Popen[str], tool: str) -> tuple[str, float]:
    """(what it printed, its CPU seconds)."""
    assert process.stdout is not None
    alarm = time.monotonic() + PATIENCE
    os.set_blocking(process.stdout.fileno(), False)
    out = b""
    while True:
        with contextlib.suppress(BlockingIOError):
            out += os.read(process.stdout.fileno(), 1 << 16)
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > alarm:
            raise Error(f"{tool} did not end within {PATIENCE:g} s")
        time.sleep(0.01)
    with contextlib.suppress(BlockingIOError):
        while more := os.read(process.stdout.fileno(), 1 << 16):
            out += more
    text = out.decode(errors="replace")
    if process.returncode:
        raise Error(f"{tool} failed: {' '.join(text.split())[-300:]}")
    return text, used.ru_utime + used.ru_stime


def machine_seconds() -> float:
    """CPU seconds that all of this machine has been busy: not idle, not waiting for a disk, not taken by its host."""
    with open("/proc/stat") as file:
        ticks = list(map(int, file.readline().split()[1:]))
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
