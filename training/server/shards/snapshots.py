"""Snapshots of shards on disk: written beside, synchronised, renamed; checked when they are read; the last two stay.

A file is `shard-NUMBER.ORDER`: a line of JSON (version, tables, CRC-32 and bytes of what follows, what workers' changes
it has, their clocks, and each item's bytes), then the items as frames.py packs them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import ArgumentError
from hocket.training.flat import Array, digest
from hocket.training.server.shards.store import Item
from hocket.training.server.wire.frames import packed, unpacked

log = logging.getLogger("hocket")
VERSION = "hocket-shard/1"
STAY = 2
"""Snapshots of a shard that are kept: an older one is there while the newest is written."""


class Book(NamedTuple):
    """What a snapshot has: how many changes, each worker's last one, and the workers' clocks."""

    order: int
    applied: Mapping[int, int]
    clocks: Mapping[int, int]


class Folder:
    """A folder of snapshots.  `tables`: what they have to be of (`Layout.said`)."""

    def __init__(self, path: str, tables: str) -> None:
        self.path, self.tables = path, tables
        os.makedirs(path, exist_ok=True)

    def write(self, shard: int, book: Book, state: Mapping[Item, Mapping[str, Array]]) -> None:
        """Returns when it is on disk."""
        parts = [packed(arrays) for arrays in state.values()]
        head = {
            "version": VERSION, "tables": self.tables, "crc": digest(*parts), "order": book.order,
            "applied": sorted(book.applied.items()), "clocks": sorted(book.clocks.items()),
            "items": [[*item, part.size] for item, part in zip(state, parts, strict=True)],
        }  # fmt: skip
        name = os.path.join(self.path, f"shard-{shard}.{book.order:012}")
        with open(f"{name}~", "wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            for part in parts:
                file.write(part.data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{name}~", name)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        for old in self._names(shard)[STAY:]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.path, old))

    def newest(self, shard: int) -> tuple[Book, dict[Item, dict[str, Array]]] | None:
        """The newest that is whole; None: there is none.  Raises ArgumentError: it is of other tables."""
        for name in self._names(shard):
            try:
                return self._read(os.path.join(self.path, name))
            except ArgumentError:
                raise
            except (ValueError, KeyError, OSError) as error:
                log.warning("snapshot %s is not whole: %s", name, error)
        return None

    def _names(self, shard: int) -> list[str]:
        """The newest first."""
        names = [name for name in os.listdir(self.path) if name.startswith(f"shard-{shard}.") and name[-1] != "~"]
        return sorted(names, reverse=True)

    def _read(self, path: str) -> tuple[Book, dict[Item, dict[str, Array]]]:
        with open(path, "rb") as file:
            head = json.loads(file.readline())
            data = np.frombuffer(file.read(), np.uint8)
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']!r}; this hocket reads {VERSION!r}")
        if digest(data) != head["crc"]:
            raise ValueError("its checksum differs")
        if head["tables"] != self.tables:
            raise ArgumentError(f"{path} is of other tables: {head['tables']}; these are {self.tables}")
        state: dict[Item, dict[str, Any]] = {}
        at = 0
        for table, part, nbytes in head["items"]:
            state[table, part] = unpacked(data[at : at + nbytes])
            at += nbytes
        return Book(head["order"], dict(head["applied"]), dict(head["clocks"])), state
