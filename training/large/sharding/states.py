"""Checkpoints of shards: parts of arrays under the names of parameters, and where each part begins; no classes."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.compression.memory import saved as on_the_host
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.sharding.cutting import pieces

if TYPE_CHECKING:
    from hocket.training.large.sharding.shards import Shards

KIND = "sharded/1"
FIELDS = {"kind", "size", "rank", "step", "arrays", "numbers"}


def saved(shards: Shards) -> dict[str, Any]:
    """This rank's part."""
    mine = pieces(shards.flat, shards.units, shards.inside.rank)
    arrays = {
        f"{what}/{piece.name}": on_the_host(vector[piece.shard])
        for what, vector in shards.vectors.items() for piece in mine
    }  # fmt: skip
    numbers = {
        "first": {piece.name: piece.first for piece in mine},
        "shapes": {name: list(shape) for name, shape in shards.flat.shapes.items()},
        "optimizer": repr(shards.optimizer),
    }  # fmt: skip
    return {
        "kind": KIND, "size": shards.inside.size, "rank": shards.inside.rank, "step": shards.steps, "arrays": arrays,
        "numbers": numbers,
    }  # fmt: skip


def found(shards: Shards, given: Sequence[dict[str, Any]]) -> list[tuple[Array, slice, Array]]:
    """Each vector of this rank, a slice of it, and the values that come there."""
    _check(shards, given)
    return [
        (vector, piece.shard, _part(given, what, piece.name, piece.first, piece.shard.stop - piece.shard.start))
        for what, vector in shards.vectors.items() for piece in pieces(shards.flat, shards.units, shards.inside.rank)
    ]  # fmt: skip


def _part(given: Sequence[dict[str, Any]], what: str, name: str, first: int, count: int) -> Array:
    """Elements of an array, out of the ranks' parts of it."""
    key, there = f"{what}/{name}", np.zeros(count, bool)  # a part may be given twice
    for state in given:
        part = state["arrays"].get(key)
        if part is None:
            continue
        if not there.any():
            elements = np.empty(count, part.dtype)
        at = state["numbers"]["first"][name]
        begin, end = max(first, at), min(first + count, at + part.size)
        if begin < end:
            elements[begin - first : end - first] = part[begin - at : end - at]
            there[begin - first : end - first] = True
    if not there.all():
        has = f"{np.count_nonzero(there)} of {count}"
        raise ArgumentError(
            f"the state has {has} elements of {key!r} that this rank needs: give the states of all ranks")
    return elements


def _check(shards: Shards, given: Sequence[dict[str, Any]]) -> None:
    if not given or any(not isinstance(one, dict) or not one.keys() >= FIELDS for one in given):
        raise ArgumentError(f"{reprlib.repr(given)} is not a state: give what state_dict() returned, or all ranks'")
    for one in given:
        if one["kind"] != KIND:
            raise ArgumentError(f"the state is of {one['kind']!r}, which is unknown here; known: {KIND}")
    if len({(one["step"], one["size"]) for one in given}) > 1:
        raise ArgumentError("the states are not of one group and step: give those that all ranks saved together")
    shapes = {name: tuple(shape) for name, shape in given[0]["numbers"]["shapes"].items()}
    for name, shape in shards.flat.shapes.items():
        if shapes.get(name) != shape:
            raise ArgumentError(f"the state's {name!r} has shape {shapes.get(name)}, this parameter {shape}")
