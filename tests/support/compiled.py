"""Compiled C for the tests, kept in build/cache by the contents that the compiler reads, and its flags."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.warm.popen import spent

CACHE = Path(__file__).parents[2] / "build" / "cache"
NAMED = re.compile(rb'[<"]([\w./+-]+\.(?:h|cuh|c|cpp))[>"]')
"""Names that a file may include, also by a macro."""


def compiled(target: Path, sources: Iterable[Path], *flags: str, compiler: str = "gcc", seconds: float = 100) -> Path:
    """`target`, a link to what `compiler` makes of these sources with these flags.

    It counts as a process started, also where the result is there already: on the next machine it is not.
    """
    spent.hear()
    sources = list(sources)
    kept = CACHE / key(compiler, sources, flags) / target.name
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            half = kept.with_name("half")
            last = [flag for flag in flags if flag.startswith("-l")]
            command = [compiler, *(flag for flag in flags if flag not in last), *sources, "-o", half, *last]
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            assert done.returncode == 0, done.stderr[-6000:]
            half.rename(kept)
    target.unlink(missing_ok=True)
    target.symlink_to(kept)
    return target


def key(compiler: str, sources: list[Path], flags: Iterable[str]) -> str:
    """A name for what is compiled: where its files are does not matter."""
    folders = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
    found = os.path.realpath(shutil.which(compiler) or compiler)
    told = hashlib.sha256(repr((found, os.stat(found).st_mtime_ns, [f for f in flags if f[:2] != "-I"])).encode())
    for content in contents(sources, folders):
        told.update(hashlib.sha256(content).digest())
    return told.hexdigest()[:32]


def contents(sources: Iterable[Path], folders: list[Path]) -> Iterator[bytes]:
    """The contents of the sources and of what they include, but for what the system has."""
    ahead, seen = list(sources), set[Path]()
    while ahead:
        file = ahead.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        yield (content := file.read_bytes())
        for name in NAMED.findall(content):
            ahead += [folder / os.fsdecode(name) for folder in (file.parent, *folders)]
