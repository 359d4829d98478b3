"""Checkpoints as folders of safetensors files, each with one rank's shards, as torch's DCP writes them.

A file is 8 bytes, the length of its header; the header, a JSON object of a line for each array; and the arrays' bytes.
Where a shard lies in its array stands under `DCP_SHARDING_INFO` in the header's `__metadata__`; without it a file holds
whole arrays.  Headers are foreign: what they say is checked against the file's size before anything is made of it.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from hocket.collectives.layouts.boxes import Box
from hocket.errors import ArgumentError

LONGEST = 100_000_000
"""Bytes of a header, at most: the format's own limit."""
INFO, VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"


class Shard(NamedTuple):
    """A part of an array, in a file."""

    name: str
    dtype: str
    box: Box
    elements: Any
    """Its bytes, in C's order, as an array of rows of an element's size each."""


def read(path: Path) -> Iterator[Shard]:
    """The shards of a file, which is mapped, not read.  Raises ArgumentError for one that is not safetensors."""
    with path.open("rb") as file:
        size = path.stat().st_size
        head = struct.unpack("<Q", file.read(8))[0] if size >= 8 else LONGEST + 1
        if not 2 <= head <= min(LONGEST, size - 8):
            raise ArgumentError(f"{path} is not a safetensors file: its header cannot be {head} bytes long")
        try:
            header = json.loads(file.read(head))
            told = header.pop("__metadata__", {})
            offsets = {name: each["saved_offsets"] for name, each in json.loads(told.get(INFO, "{}")).items()}
            rows = [(name, *_row(each), offsets.get(name)) for name, each in header.items()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ArgumentError(f"{path} is not a safetensors file: its header makes no sense") from None
        data = numpy.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), numpy.uint8)[8 + head :]
    for name, dtype, shape, begin, end, at in rows:
        at = [0] * len(shape) if at is None else at
        count = math.prod(shape)
        whole = 0 <= begin <= end <= len(data) and (not count or (end - begin) % count == 0)
        if not whole or len(at) != len(shape) or any(type(n) is not int or n < 0 for n in [*shape, *at]):
            raise ArgumentError(f"{path}: array {name!r} does not lie within the file")
        box = tuple(range(low, low + n) for low, n in zip(at, shape, strict=True))
        width = (end - begin) // count if count else 1
        yield Shard(name, dtype, box, data[begin:end].reshape(*shape, width) if count else data[:0].reshape(*shape, 1))


def _row(each: dict[str, Any]) -> tuple[str, list[int], int, int]:
    begin, end = each["data_offsets"]
    return str(each["dtype"]), list(each["shape"]), int(begin), int(end)


class Written:
    """A file that is made whole at once, with room for its shards: `parts` has views of them, by name."""

    def __init__(self, path: Path, shards: Sequence[tuple[str, str, Box, int]]) -> None:
        """`shards`: of each its array's name, its dtype, its box and the bytes of an element."""
        header: dict[str, Any] = {"__metadata__": {
            "format": "pt", VERSION: "1.0",
            INFO: json.dumps({name: {"saved_offsets": [r.start for r in box]} for name, _, box, _ in shards}),
        }}  # fmt: skip
        at = 0
        for name, dtype, box, width in shards:
            nbytes = width * math.prod(map(len, box))
            header[name] = {"dtype": dtype, "shape": [len(r) for r in box], "data_offsets": [at, at + nbytes]}
            at += nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("xb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        self.parts: dict[str, Any] = {}
        if at:
            with path.open("r+b") as file:
                data = numpy.frombuffer(mmap.mmap(file.fileno(), 0), numpy.uint8)[8 + len(text) :]
            for name, _, box, width in shards:
                begin, end = header[name]["data_offsets"]
                self.parts[name] = data[begin:end].reshape(*map(len, box), width)
