"""`hocket reshard IN OUT --to 3`: a checkpoint in shards, written again for another number of ranks, without a program.

IN is a folder of safetensors files, each with one rank's shards: torch's DCP writes them by HuggingFaceStorageWriter
with save_distributed=True, and reads what is written here.  Files with whole arrays count as one rank's.  Each array is
cut along one axis.  Files are mapped, and copied part by part: memory does not grow with the model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hocket.collectives.layouts.boxes import Box, inside
from hocket.collectives.layouts.deal import deal
from hocket.collectives.layouts.layout import Layout
from hocket.errors import ArgumentError, Error
from hocket.tools.reshard.files import Shard, Written, read


class Array(NamedTuple):
    """An array, and the shards of each file."""

    dtype: str
    width: int
    """Bytes of an element."""
    shape: tuple[int, ...]
    shards: list[list[Shard]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket reshard`.  0; 1: the checkpoint is not whole; 2: bad arguments."""
    made = argparse.ArgumentParser(prog="hocket reshard", description=__doc__, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    made.add_argument("source", metavar="IN", type=Path, help="the folder of the checkpoint")
    made.add_argument("target", metavar="OUT", type=Path, help="a folder that is not there yet")
    made.add_argument("--to", type=int, required=True, metavar="N", help="ranks that will read it, a file for each")
    made.add_argument("--axis", type=int, default=0, help="along which arrays are cut (0); those with fewer axes: 0")
    options = made.parse_args(argv)
    if options.to < 1 or options.axis < 0:
        made.error(f"--to {options.to} and --axis {options.axis} must be at least 1 and 0")
    if options.target.exists():
        made.error(f"{options.target} is there already: give a new folder")
    try:
        arrays = known(sorted(options.source.glob("*.safetensors")))
        if not arrays:
            made.error(f"{options.source} has no safetensors files with arrays")
        moved = reshard(arrays, options.target, options.to, options.axis)
    except (Error, OSError) as why:
        print(f"hocket reshard: {why}", file=sys.stderr)
        return 1
    print(f"{len(arrays)} arrays, {moved / 1e6:.1f} MB, in {options.to} files")
    return 0


def known(paths: Sequence[Path]) -> dict[str, Array]:
    """The arrays of these files, by name."""
    found: dict[str, Array] = {}
    for number, path in enumerate(paths):
        for shard in read(path):
            width, ends = shard.elements.shape[-1], tuple(r.stop for r in shard.box)
            before = found.get(shard.name, Array(shard.dtype, width, ends, [[] for _ in paths]))
            if before.dtype != shard.dtype or len(before.shape) != len(ends):
                raise ArgumentError(f"{path}: array {shard.name!r} has another dtype or other axes than in other files")
            shape = tuple(map(max, before.shape, ends))
            found[shard.name] = before._replace(shape=shape, width=max(width, before.width))
            found[shard.name].shards[number].append(shard)
    return found


def reshard(arrays: dict[str, Array], target: Path, size: int, axis: int) -> int:
    """Write the arrays for so many ranks.  Returns the bytes.  Raises ArgumentError: a part is in no file."""
    names = sorted(arrays)
    layouts = {name: _cut(arrays[name].shape, size, axis) for name in names}
    pairs = [
        (name, Layout.of_ranges(each.shape, [[s.box for s in own] for own in each.shards]), layouts[name], each.width)
        for name, each in ((name, arrays[name]) for name in names)
    ]
    ranks = max([size, *(len(each.shards) for each in arrays.values())])
    moves = deal(pairs, [[*range(ranks)]])
    part = target.with_name(f"{target.name}.part")
    part.mkdir()
    try:
        files = [Written(part / _file(rank), [*_of(arrays, layouts, rank)]) for rank in range(size)]
        for move in moves:
            name = names[move.array]
            of = arrays[name].shards[move.source.rank][move.source.place]
            into = files[move.target.rank].parts[name]
            into[inside(move.box, move.target.box)] = of.elements[inside(move.box, move.source.box)]
        del files
        part.rename(target)
    except BaseException:
        shutil.rmtree(part)
        raise
    return sum(path.stat().st_size for path in target.iterdir())


def _cut(shape: tuple[int, ...], size: int, axis: int) -> Layout:
    if not shape:
        return Layout.replicated((), 1)  # rank 0 has it
    return Layout.cut(shape, size, axis if axis < len(shape) else 0)


def _of(arrays: dict[str, Array], layouts: dict[str, Layout], rank: int) -> Sequence[tuple[str, str, Box, int]]:
    return [
        (name, arrays[name].dtype, box, arrays[name].width)
        for name, layout in layouts.items() for box in layout.of(rank) if all(box) or not all(layout.shape)
    ]  # fmt: skip


def _file(rank: int) -> str:
    return f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"
