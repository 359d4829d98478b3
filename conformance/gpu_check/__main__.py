"""One command that says whether hocket works on this machine's GPU, and how fast.

    python -m hocket.conformance.gpu_check [--json FILE] [--log FILE] [--quick]

Under ten minutes on one GPU.  Each part is a process of its own with a limit, so that one that hangs or faults loses
nothing of the others; no settings of the GPU are changed.  A table of all parts is printed last, --json is written
after each part, and --log holds what the parts wrote beside their rows: tracebacks, warnings, hocket's log.
Exits with 0, with 1 if there is no GPU, or with 2 if something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hocket.conformance.gpu_check.findings import Finding, Options, heard, say, table
from hocket.errors import ArgumentError, Error
from hocket.system.cores import processor, usable_cores
from hocket.system.cuda import driver
from hocket.tools.rank import start

BUDGET = 570.0
"""Seconds for all parts together."""
LAST_WORDS = 600
MPS = os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")
"""A pipe that exists while CUDA's Multi-Process Service runs."""


class Section(NamedTuple):
    """`where` is module:function; it gets the Options and yields Rows."""

    name: str
    where: str
    seconds: float


PARTS = (
    Section("environment", "hocket.conformance.gpu_check.environment:environment", 40),
    Section("kernels", "hocket.conformance.gpu_check.kernels:check", 150),
    Section("rooflines", "hocket.conformance.gpu_check.rooflines:rooflines", 60),
    Section("flag kernels", "hocket.conformance.gpu_check.flags:flags", 60),
    Section("collectives, 2 ranks", "hocket.conformance.gpu_check.collectives:bits_of_two", 80),
    Section("collectives, 4 ranks", "hocket.conformance.gpu_check.collectives:bits_of_four", 90),
    Section("calls of the driver", "hocket.conformance.gpu_check.driver_calls:calls", 40),
    Section("times, 2 ranks", "hocket.conformance.gpu_check.collectives:times_of_two", 60),
    Section("times, 4 ranks", "hocket.conformance.gpu_check.collectives:times_of_four", 90),
    Section("a rank is killed", "hocket.conformance.gpu_check.collectives:killed", 60),
    Section("torch.distributed", "hocket.conformance.gpu_check.torch.backend:backend", 70),
    Section("training", "hocket.conformance.gpu_check.torch.training:training", 120),
    Section("methods of compression", "hocket.conformance.gpu_check.torch.methods:methods", 120),
    Section("training above them", "hocket.conformance.gpu_check.torch.loops:loops", 120),
    Section("NCCL", "hocket.conformance.gpu_check.nccl:nccl", 45),
    Section("memory of torch and CuPy", "hocket.conformance.gpu_check.environment:memory", 60),
)
ENVIRONMENT = {  # where the user has not said otherwise
    # Streams that must run side by side are not put behind each other.  Processes under MPS share what there is of it,
    # and get no context where they ask for more ("out of memory").
    "CUDA_DEVICE_MAX_CONNECTIONS": "8" if os.path.exists(MPS) else "32",
    "CUDA_MODULE_LOADING": "EAGER",  # loading a kernel lazily waits for the GPU, where another may spin
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def chosen(words: str | None) -> list[Section]:
    """The parts of --parts: names, or module:function for one that is not in the list."""
    if words is None:
        return list(PARTS)
    known = {part.name: part for part in PARTS} | {part.where.partition(":")[2]: part for part in PARTS}
    found = []
    for word in words.split(","):
        if word not in known and ":" not in word:
            raise ArgumentError(f"--parts {word}: no such part; known: {', '.join(known)}")
        found.append(known.get(word) or Section(word, word, 60))
    return found


def perform(where: str, options: Options) -> None:
    """In the part's own process: print its rows as they come."""
    module, _, function = where.partition(":")
    part: Callable[[Options], Iterable[Finding]] = getattr(importlib.import_module(module), function)
    for row in part(options):
        say(row)


def watched(part: Section, options: Options, limit: float, path: str | None = None) -> list[Finding]:
    """The rows of a part that runs in a process of its own; the last says how that ended.

    What it writes to stderr is appended to the file `path`.
    """
    rows: list[Finding] = []
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", "hocket.conformance.gpu_check"]
    command += ["--perform", part.where, json.dumps(options._asdict())]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
        process = start(command, {**ENVIRONMENT, **os.environ}, text=True, errors="replace", **pipes)
        reader = threading.Thread(target=_read, args=(process.stdout, rows), daemon=True)
        reader.start()
        ended = _end(process, limit)
        reader.join(5)
        log.seek(0)
        words = log.read().strip()
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"--- {part.name}\n{words}\n")
    took = time.monotonic() - began
    if ended == 0:
        return [*rows, Finding("the part", "complete", ok=True, note=f"{took:.1f} s")]
    why = f"not at its end after {limit:.0f} s" if ended is None else f"ended with {ended}"
    last = " | ".join(words[-LAST_WORDS:].splitlines()[-6:])
    return [*rows, Finding("the part", why, ok=False, note=f"{took:.1f} s; {last}")]


def _read(lines: Any, rows: list[Finding]) -> None:
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            row = heard(line)
            if row is not None:
                rows.append(row)


def _end(process: subprocess.Popen[str], limit: float) -> int | None:
    """Its exit status, or None if it was out of time.  Whatever it has started is gone too."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may hold one that it cannot stop
            process.wait(10)


def write(path: str, before: dict[str, Any], parts: dict[str, list[Finding]]) -> None:
    """A line for each row, without what is empty."""
    head = {"command": sys.argv, "machine": before, "load_after": list(os.getloadavg())}
    lines = [f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items()]
    told = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row.told)}" for row in rows) + "\n ]"
        for name, rows in parts.items()
    ]
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write("{\n" + "".join(lines) + '"parts": {\n' + ",\n".join(told) + "\n}}\n")
    os.replace(path + ".part", path)


def _machine() -> dict[str, Any]:
    """A number without these means little."""
    load = list(os.getloadavg())
    return {"system": platform.platform(), "processor": processor(), "usable_cores": usable_cores(), "load": load}


def no_gpu() -> str:
    """Why there is nothing to check; "": there is."""
    try:
        return driver.library() or ("" if driver.count() else "the driver knows of no GPU")
    except Error as why:
        return str(why)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.conformance.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write what is found there, after each part")
    parser.add_argument("--log", metavar="FILE", help="append what the parts write to stderr")
    parser.add_argument("--quick", action="store_true", help="a few kernels and sizes: about a minute")
    names = ", ".join(part.where.partition(":")[2] for part in PARTS)
    parser.add_argument("--parts", metavar="NAME,...", help=f"only these, or module:function ({names})")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of each part, if its own is longer")
    parser.add_argument("--largest", type=int, default=1 << 30, metavar="BYTES", help="the largest buffer (1 GiB)")
    parser.add_argument("--arrays", default="plain,cupy,torch", metavar="KIND,...", help="(plain,cupy,torch)")
    parser.add_argument("--perform", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.perform:
        told = json.loads(given.perform[1])
        perform(given.perform[0], Options(**{**told, "arrays": tuple(told["arrays"])}))
        return 0
    why = no_gpu()
    if why:
        print(f"no GPU to check: {why}", file=sys.stderr)
        return 1
    options = Options(given.quick, given.largest, tuple(given.arrays.split(",")))
    return check(chosen(given.parts), options, given.limit or BUDGET, given.json, given.log)


def check(parts: Sequence[Section], options: Options, limit: float, path: str | None,
          log: str | None = None) -> int:  # fmt: skip
    before, deadline = _machine(), time.monotonic() + BUDGET
    found: dict[str, list[Finding]] = {}
    for part in parts:
        left = min(part.seconds, limit, deadline - time.monotonic())
        late = [Finding("the part", "no time was left", ok=False)]
        found[part.name] = watched(part, options, left, log) if left > 5 or left == limit else late
        failed = sum(row.ok is False for row in found[part.name])
        print(f"# {part.name}: {len(found[part.name])} rows, {failed} failed", file=sys.stderr, flush=True)
        if path:
            write(path, before, found)
    print(table(found))
    every = [row for rows in found.values() for row in rows]
    counts = {verdict: sum(row.verdict == verdict for row in every) for verdict in ("pass", "FAIL", "figure")}
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 2 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
