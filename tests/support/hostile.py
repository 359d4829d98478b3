"""`python -m support.hostile`: what somebody else made, read as hocket's own: traces and recordings, and what members
of elastic jobs and of parameter servers say (hostile_words.py).

Valid files and words are cut, spliced and scribbled over.  Each is read, or refused by the error that is meant for
it, within a second of CPU, in 2 GiB of addresses more than before.  What fails is printed with the seed that repeats
it.  Exit code 1: something did.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.options import seeds
from hocket.errors import ArgumentError
from hocket.observe.collecting import collect
from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.observe.merging import merge
from hocket.observe.page.make import page
from hocket.observe.sentences import summary
from hocket.recording import NotARecording
from support import hostile_words

ROOM = 2 << 30
LONGEST = 1.0
"""Seconds of CPU for one file."""
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
TEXTS = (b"{}", b"[", b'"', b"null", b"1e999", b"-1", b"\x1b[2J", b"[[1],[2]]", b"\n", b"\x00" * 9)


def spoilt(data: bytes, dice: random.Random) -> bytes:
    """A few changes at random places."""
    made = bytearray(data)
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(made) or 1)
        how = dice.randrange(6)
        if how == 0:
            made[at : at + 1] = dice.randbytes(1)
        elif how == 1:
            made[at : at + 8] = dice.choice(NUMBERS).to_bytes(8, "little")
        elif how == 2:
            made[at : at + dice.randint(0, 9)] = dice.choice(TEXTS)
        elif how == 3:
            del made[at : at + dice.randint(1, 400)]
        elif how == 4:
            made[at:at] = made[at : at + dice.randint(1, 400)]
        else:
            del made[max(1, at) :]
    return bytes(made)


def trace(path: Path) -> None:
    """A trace's way to what people see."""
    found = find(read(str(path)))
    summary(found)
    page(found)


def folder(path: Path) -> None:
    """A recording's."""
    left = collect(str(path.parent))
    summary(find(merge(left.recorded, left.pings)))


class Kind(NamedTuple):
    """Something that is read: its name, valid bytes, its reader, and how it is spoilt."""

    name: str
    data: bytes
    reader: Callable[[Path], None]
    spoil: Callable[[bytes, random.Random], bytes] = spoilt


@contextlib.contextmanager
def files(place: Path) -> Iterator[list[Kind]]:
    """Files of a small job."""

    def job(comm: hocket.Communicator) -> None:
        for path in ("t.json", "t.pftrace"):
            with comm.trace(str(place / path)):
                for step in range(3):
                    comm.mark("step", step)
                    comm.allreduce(np.ones(1000, np.float32))

    hocket.local_world(2).run(job)
    made = [Kind(name, (place / name).read_bytes(), trace) for name in ("t.json", "t.pftrace")]
    made += [each._replace(name=f"{each.name}.gz") for each in made]
    with hocket.local_world(1) as world:
        world.comms[0].allreduce(np.ones(3))
        made.append(Kind("r.ring", bytes(world.comms[0].recorder()._own.recorder.image()), folder))
    yield made


def tried(path: Path, reader: Callable[[Path], None]) -> str:
    """The fault in how it was read; "": there is none."""
    began = time.process_time()
    try:
        reader(path)
    except (ArgumentError, NotARecording):
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    took = time.process_time() - began
    return f"{took:.1f} s of CPU" if took > LONGEST else ""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m support.hostile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--count", type=int, help="how many, instead of --seconds")
    parser.add_argument("--of", choices=["files", *hostile_words.KINDS], default="files", help="what (default: files)")
    options = parser.parse_args(argv)
    failed = done = 0
    makes = {"files": files, **hostile_words.KINDS}[options.of]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        base, place = Path(name, "made"), Path(name, "spoilt")
        base.mkdir()
        place.mkdir(mode=0o700)
        kinds = [Kind(*each) for each in stack.enter_context(makes(base))]
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, before[1]))
        try:
            for seed in seeds(options):
                dice = random.Random(seed)
                what, data, reader, spoil = dice.choice(kinds)
                path = place / what
                spoiled = spoil(data, dice)
                path.write_bytes(gzip.compress(spoiled, 1) if what.endswith(".gz") else spoiled)
                if wrong := tried(path, reader):
                    failed += 1
                    again = f"python -m support.hostile --of {options.of} --seed {seed} --count 1"
                    print(f"{what}: {wrong}\nagain: {again}")
                path.unlink()
                done += 1
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    print(f"{done} {options.of}, seeds {options.seed} to {options.seed + done - 1}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
