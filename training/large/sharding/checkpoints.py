"""Checkpoints of shards: parts of arrays under the names of parameters, and where each part begins; no classes.

Ranks of a group of any size go on from them: each gives the states that it has, and what it lacks comes from a rank
that has it (`redistribute`).  Nobody needs all.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import Layout
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.sharding.cutting import cut, pieces

if TYPE_CHECKING:
    from hocket.training.large.sharding.shards import Shards

KIND = "sharded/1"
FIELDS = {"kind", "size", "rank", "step", "arrays", "numbers"}
State = dict[str, Any]
Parts = Mapping[str, Sequence[Sequence[int]]]
"""By name, the parts of a flat array: where each begins, and its elements."""


def saved(shards: Shards, rank: int, vectors: Mapping[str, Array]) -> State:
    """The part of a rank whose shards are these, without a copy of them."""
    size = shards.inside.size
    mine = pieces(shards.flat, cut(shards.flat, [unit.names for unit in shards.units], rank, size), rank)
    numbers = {
        "first": {piece.name: piece.first for piece in mine},
        "shapes": {name: list(shape) for name, shape in shards.flat.shapes.items()},
        "optimizer": repr(shards.optimizer),
    }
    arrays = {f"{what}/{piece.name}": vector[piece.shard] for what, vector in vectors.items() for piece in mine}
    return {"kind": KIND, "size": size, "rank": rank, "step": shards.steps, "arrays": arrays, "numbers": numbers}


def told(shards: Shards, given: Sequence[State]) -> dict[str, Any]:
    """The parts that this rank has and wants, as JSON.  ArgumentError: these are no states of its parameters."""
    _check(shards, given)
    held: dict[str, list[list[int]]] = {}
    for key, name in _keys(shards):
        for part, first in _parts(given, key, name):
            held.setdefault(key, []).append([first, part.size])
    wanted = {piece.name: [[piece.first, piece.shard.stop - piece.shard.start]] for piece in shards.own}
    return {"step": [given[0]["step"], given[0]["size"]] if given else None, "held": held, "wanted": wanted}


def step_of(rows: Sequence[dict[str, Any]]) -> int:
    """The step of the states that all ranks have given.  Raises ArgumentError, on all alike."""
    steps = {tuple(row["step"]) for row in rows if row["step"] is not None}
    if not steps:
        raise ArgumentError("no rank has given a state: give those that are there")
    if len(steps) > 1:
        raise ArgumentError("the states are not of one group and step: give those that all ranks saved together")
    return int(next(iter(steps))[0])


def lacking(shards: Shards, rows: Sequence[dict[str, Any]]) -> str:
    """In words, what this rank needs and no rank has."""
    for key, name in _keys(shards):
        for first, count in rows[shards.comm.rank]["wanted"].get(name, ()):
            there = np.zeros(count, bool)
            for begin, n in (part for row in rows for part in row["held"].get(key, ())):
                there[max(0, begin - first) : max(0, begin + n - first)] = True
            if not there.all():
                has = f"{np.count_nonzero(there)} of {count}"
                return f"the state has {has} elements of {key!r} that this rank needs: give the states of all ranks"
    return ""


def moved(
    shards: Shards, given: Sequence[State], rows: Sequence[dict[str, Any]]
) -> list[tuple[Array, slice, Array]]:
    """Each vector of this rank, a slice of it, and the values that come there.  Collective."""
    keys = [*_keys(shards)]
    made = shards.comm.redistribute(
        {key: [part for part, _ in _parts(given, key, name)] for key, name in keys},
        {key: _layout(shards.flat.sizes[name], [row["held"].get(key, ()) for row in rows]) for key, name in keys},
        {key: _layout(shards.flat.sizes[name], [row["wanted"].get(name, ()) for row in rows]) for key, name in keys},
    )
    return [
        (vector, piece.shard, made[f"{what}/{piece.name}"][0])
        for what, vector in shards.vectors.items() for piece in shards.own
    ]  # fmt: skip


def _keys(shards: Shards) -> Iterator[tuple[str, str]]:
    """The names of the arrays of a state, and of the parameter that each belongs to."""
    return ((f"{what}/{name}", name) for what in shards.vectors for name in shards.flat.sizes)


def _parts(given: Sequence[State], key: str, name: str) -> Iterator[tuple[Array, int]]:
    """The parts of an array that some states have, and where each begins."""
    return ((one["arrays"][key], int(one["numbers"]["first"][name])) for one in given if key in one["arrays"])


def _layout(count: int, parts: Sequence[Sequence[Sequence[int]]]) -> Layout:
    return Layout((count,), [[(slice(first, first + n),) for first, n in own] for own in parts])


def _check(shards: Shards, given: Sequence[State]) -> None:
    if any(not isinstance(one, dict) or not one.keys() >= FIELDS for one in given):
        raise ArgumentError(f"{reprlib.repr(given)} is not a state: give what state_dict() returned, or all ranks'")
    for one in given:
        if one["kind"] != KIND:
            raise ArgumentError(f"the state is of {one['kind']!r}, which is unknown here; known: {KIND}")
    if len({(one["step"], one["size"]) for one in given}) > 1:
        raise ArgumentError("the states are not of one group and step: give those that all ranks saved together")
    shapes = {name: tuple(shape) for one in given[:1] for name, shape in one["numbers"]["shapes"].items()}
    for name, shape in shards.flat.shapes.items() if given else ():
        if shapes.get(name) != shape:
            raise ArgumentError(f"the state's {name!r} has shape {shapes.get(name)}, this parameter {shape}")
