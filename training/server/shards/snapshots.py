"""Snapshots of shards on disk: written beside, synchronised, renamed; checked when they are read; the last two stay.

A file is `shard-NUMBER-of-SHARDS.ORDER`: a line of JSON (version, tables, shards, CRC-32 and bytes of what follows,
what workers' changes it has, their clocks, and each item's bytes), then the items as frames.py packs them.  Version 1
has no number of shards, also not in its name: it is the number of those that are there.

Snapshots of another number of shards are dealt anew (dealing.py).  Orders then go on from the largest, so that what is
dealt of a set is newer than all of that set, and of two sets the one with the largest order is the newer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import mmap
import os
import re
import stat
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from hocket.errors import ArgumentError
from hocket.training.flat import EXACT, digest
from hocket.training.server.shards.dealing import Lazy, State, dealt, misfit
from hocket.training.server.shards.packing import packed, unpacked
from hocket.training.server.tables import Places

log = logging.getLogger("hocket")
VERSION, BEFORE = "hocket-shard/2", "hocket-shard/1"
STAY = 2
"""Snapshots of a shard that are kept: an older one is there while the newest is written."""
NAME = re.compile(r"shard-([0-9]+)(?:-of-([0-9]+))?\.([0-9]{12,})")
HEAD = 64 << 20
"""Bytes of a file's first line, at most."""
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Book(NamedTuple):
    """The book of a snapshot: how many changes, each worker's last one, and the workers' clocks."""

    order: int
    applied: Mapping[int, int]
    clocks: Mapping[int, int]


class File(NamedTuple):
    """A snapshot's name, taken apart."""

    shards: int
    shard: int
    order: int
    name: str


class Folder:
    """A folder of snapshots, which nobody but its user writes to: else the next job would begin with others' values.

    It is made for this user alone.  Raises ArgumentError: another user's, or everybody may write there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        parent = os.path.dirname(os.path.abspath(path))
        os.makedirs(parent, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o002:
            raise ArgumentError(
                f"snapshot={path!r} must be a folder of user {os.geteuid()} where not everybody may write; it is of "
                f"user {status.st_uid} with mode {status.st_mode & 0o7777:04o}"
            )

    def write(self, layout: Places, shard: int, book: Book, state: State) -> None:
        """Returns when it is on disk.  The state's items are asked for one by one."""
        items: list[list[int]] = [[*item, EXACT] for item in state]
        head = {
            "version": VERSION, "tables": layout.said(), "shards": layout.shards, "crc": EXACT, "order": book.order,
            "applied": sorted(book.applied.items()), "clocks": sorted(book.clocks.items()),
            "items": items,
        }  # fmt: skip
        begin = len(json.dumps(head)) + 1
        name = os.path.join(self.path, f"shard-{shard}-of-{layout.shards}.{book.order:012}")
        with contextlib.suppress(FileNotFoundError):  # what a killed server has left
            os.unlink(f"{name}~")
        try:
            with open(os.open(f"{name}~", NEW, 0o600), "w+b") as file:
                file.seek(begin)
                for item, said in zip(state, items, strict=True):
                    part = packed(state[item])
                    said[2] = part.size
                    file.write(part.data)
                file.flush()
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as whole, memoryview(whole) as view:
                    head["crc"] = digest(np.frombuffer(view, np.uint8, offset=begin))
                file.seek(0)
                file.write(json.dumps(head).encode().ljust(begin - 1) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{name}~", name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(f"{name}~")
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        own = [each for each in self._files() if each[:2] == (layout.shards, shard) and each.order <= book.order]
        for old in own[STAY:]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.path, old.name))

    def newest(self, layout: Places, shard: int, below: float = math.inf) -> tuple[Book, State] | None:
        """The newest that is whole; None: there is none.  `below`: of orders of other numbers of shards.

        Raises ArgumentError: it is of other tables, of another version, or of another number of shards and in part.
        """
        files = self._files()
        own = self._whole([each for each in files if each[:2] == (layout.shards, shard)], layout)
        last = next((each for each in files if each.shards != layout.shards and each.order < below), None)
        if last is None or (own is not None and own[0].order > last.order):
            return own
        there = {each.shard for each in files if each.shards == last.shards}
        self._are_all(range(len(there) + 1), there, last, layout)  # a name may say any number
        old, states = Places(layout.by_name, last.shards), {}
        for i in range(old.shards):
            found = self.newest(old, i, last.order)
            if found is not None:
                states[i] = found[1]
            self._are_all([i], states, last, layout)
        log.info("%s: snapshots of %d servers are dealt to %d", self.path, old.shards, layout.shards)
        return Book(last.order + 1, {}, {}), dealt(old, [*states.values()], layout, shard)

    def _are_all(self, wanted: Iterable[int], there: Container[int], last: File, layout: Places) -> None:
        """Raises ArgumentError: this shard of another number of servers is missing."""
        for i in wanted:
            if i < last.shards and i not in there:
                raise ArgumentError(
                    f"{self.path} has snapshots of {last.shards} servers, but that of shard {i} is missing, "
                    f"and {layout.shards} servers cannot share the rest: serve on {last.shards} again, or remove "
                    f"{last.name} and those like it"
                )

    def _files(self) -> list[File]:
        """The newest first."""
        found = [(match, name) for name in os.listdir(self.path) if (match := NAME.fullmatch(name))]
        count = 1 + max((int(match[1]) for match, _ in found if not match[2]), default=0)
        files = [File(int(match[2] or count), int(match[1]), int(match[3]), name) for match, name in found]
        return sorted(files, key=lambda each: each.order, reverse=True)

    def _whole(self, files: list[File], layout: Places) -> tuple[Book, State] | None:
        """The first of these that is whole."""
        for each in files:
            try:
                return self._read(each, layout)
            except ArgumentError:
                raise
            except Exception as error:  # of whatever is in the file
                log.warning("snapshot %s is not whole: %r", each.name, error)
        return None

    def _read(self, file: File, layout: Places) -> tuple[Book, State]:
        path = os.path.join(self.path, file.name)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            head = json.loads(opened.readline(HEAD))
            if (version := head["version"]) not in (VERSION, BEFORE):
                raise ArgumentError(f"{path} is of version {version!r}; this hocket reads {VERSION!r} and {BEFORE!r}")
            if sum(nbytes for *_, nbytes in head["items"]) != os.fstat(opened.fileno()).st_size - opened.tell():
                raise ValueError("its length is not what it says")
            at = opened.tell()
            data = np.frombuffer(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ), np.uint8, offset=at)
        if digest(data) != head["crc"]:
            raise ValueError("its checksum differs")
        if head["tables"] != layout.said():
            raise ArgumentError(f"{path} is of other tables: {head['tables']}; these are {layout.said()}")
        ends = np.cumsum([0, *(nbytes for *_, nbytes in head["items"])]).tolist()
        cuts = [data[first:end] for first, end in itertools.pairwise(ends)]
        pairs = zip(head["items"], cuts, strict=True)
        state = Lazy({(table, part): partial(unpacked, cut) for (table, part, _), cut in pairs})
        if why := misfit(layout, file.shard, state):
            raise ArgumentError(
                f"{path} ({head['version']}) is not of a job of {layout.shards} servers: {why}; serve on as "
                "many as wrote it, or name another folder"
            )
        book = Book(head["order"], dict(head["applied"]), dict(head["clocks"]))
        if not all(type(each) is int for each in (book.order, *_flat(book.applied), *_flat(book.clocks))):
            raise ValueError("its orders are no whole numbers")
        return book, state


def _flat(numbers: Mapping[int, int]) -> tuple[int, ...]:
    return (*numbers, *numbers.values())
