"""Checkpoints of an outer loop: arrays under the names of parameters, and numbers; no classes."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.compression.memory import moved, put
from hocket.compression.memory import saved as on_the_host
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.outer.rounds import Flight

if TYPE_CHECKING:
    from hocket.training.outer.outer import Outer

FIELDS = {"kind", "size", "rank", "step", "arrays", "numbers", "owed"}
"""The fields of a state ..."""
NUMBERS = {"steps", "counts", "rounds", "since", "steps_at", "fragments", "flight"}
"""... and of its numbers."""
SAME = ("every", "by", "delay", "start")
"""Attributes of the loop that have to be as they were."""


def saved(outer: Outer) -> dict[str, Any]:
    """{"kind": "diloco/1", "size", "rank", "step", "arrays": {"phi/NAME": ...}, "numbers", "owed"}.

    A round that is under way is waited for, and saved as an average that has not counted yet.
    """
    flight, comm = outer._flight, outer.crew.comm
    vectors, under_way = {"phi": outer.phi, **outer.slots}, None
    arrays = {f"{what}/{name}": each for what, vector in vectors.items() for name, each in _named(outer, vector)}
    if flight is not None:
        if flight.ended is not None:
            flight.ended.result()
        parts = outer.flat.parts(flight.fragment.names, flight.gradient)
        arrays |= {f"flight/{name}": part for name, part in zip(flight.fragment.names, parts, strict=True)}
        under_way = {
            "number": flight.number, "due": flight.due, "at": list(flight.at), "members": list(flight.members),
            "weights": list(flight.weights), "bytes": flight.bytes,
        }  # fmt: skip
    numbers = {
        **outer.numbers(), "since": list(outer._since), "steps_at": list(outer._steps_at),
        "fragments": [list(each.names) for each in outer.fragments], "flight": under_way,
        **{name: getattr(outer, name, None) for name in SAME},
    }  # fmt: skip
    return {
        "kind": outer.kind, "size": comm.size, "rank": comm.rank, "step": outer.steps,
        "arrays": {name: on_the_host(array) for name, array in arrays.items()}, "numbers": numbers,
        "owed": outer.sending.state_dict(comm),
    }  # fmt: skip


def load(outer: Outer, given: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
    """Go on from such a state.  What compression owes is dealt anew to another number of ranks."""
    states: list[dict[str, Any]] = list(given) if isinstance(given, (list, tuple)) else [given]  # type: ignore[list-item]
    _check(outer, states)
    if outer._flight is not None and outer._flight.ended is not None:
        wait([outer._flight.ended])  # it counts for what was before
    one = states[outer.crew.comm.rank % len(states)]
    numbers, arrays = one["numbers"], one["arrays"]
    for what, vector in outer.arrays().items():
        for name, part in _named(outer, vector):
            put(part, arrays[f"{what}/{name}"])
    outer.steps, outer.counts, outer.rounds = (int(numbers[name]) for name in ("steps", "counts", "rounds"))
    outer._since, outer._steps_at = list(numbers["since"]), list(numbers["steps_at"])
    outer._extra = int(numbers.get("extra", 0))
    if numbers.get("every", outer.every) != outer.every:  # of a rank with another pace: the next is its own next
        outer._extra = outer.rounds - outer.now * len(outer.fragments) // outer.every
        while outer._next <= outer.now:
            outer._extra -= 1
    outer._flight = _flight(outer, numbers["flight"], arrays)
    outer.sending.load_state_dicts([each["owed"] for each in states])


def _flight(outer: Outer, under_way: dict[str, Any] | None, arrays: dict[str, Array]) -> Flight | None:
    if under_way is None:
        return None
    number, due, (counts, steps) = under_way["number"], under_way["due"], under_way["at"]
    fragment = outer.fragments[(number - 1) % len(outer.fragments)]
    parts = np.concatenate([arrays[f"flight/{name}"].reshape(-1) for name in fragment.names])
    gradient = moved(parts, outer.phi)
    return Flight(
        number, fragment, due, gradient, 0.0, (counts, steps), tuple(under_way["members"]),
        weights=tuple(under_way["weights"]), bytes=under_way["bytes"],
    )  # fmt: skip


def _check(outer: Outer, states: Sequence[dict[str, Any]]) -> None:
    if not states or any(not isinstance(one, dict) or not one.keys() >= FIELDS for one in states):
        raise ArgumentError(f"{reprlib.repr(states)} is not a state: give what state_dict() returned, or all ranks'")
    for one in states:
        kind, version = str(one["kind"]).split("/")[0], str(one["kind"])
        if kind != outer.kind.split("/")[0]:
            raise ArgumentError(f"the state is of {version!r}, this is {outer.kind!r}")
        if version != outer.kind:
            raise ArgumentError(f"the state is of version {version!r}, which is unknown here; known: {outer.kind}")
    at = [one["step"] if outer.weight is None else one["numbers"].get("rounds") for one in states]
    if len(set(at)) > 1 or len({one["size"] for one in states}) > 1:
        raise ArgumentError("the states are not of one job and step: give those that all ranks saved together")
    if len(states) not in (1, states[0]["size"]):
        raise ArgumentError(f"{len(states)} states were given of {states[0]['size']} ranks: give one, or all in order")
    if len(states) > 1 and [one["rank"] for one in states] != [*range(len(states))]:
        given = [one["rank"] for one in states]
        raise ArgumentError(f"the states are of ranks {reprlib.repr(given)}: give those of all ranks, in their order")
    if outer.replicated is False and len(states) == 1 and states[0]["size"] != outer.crew.comm.size:
        raise ArgumentError(f"{outer.kind}: each rank has parameters of its own; give the states of all ranks")
    if states[0]["owed"] is not None and len(states) == 1 and states[0]["size"] != outer.crew.comm.size:
        raise ArgumentError(f"the state is of {states[0]['size']} ranks, with residuals: give the states of all")
    if lacking := sorted(set[str]().union(*(NUMBERS - one["numbers"].keys() for one in states))):
        raise ArgumentError(f"the state's numbers lack {', '.join(lacking)}: give what state_dict() returned")
    for name in SAME[outer.weight is not None :]:
        has = getattr(outer, name, None)
        if (was := states[0]["numbers"].get(name, has)) != has:
            raise ArgumentError(f"the state was saved with {name}={was!r}, this loop has {name}={has!r}")
    cut, own = states[0]["numbers"]["fragments"], [list(each.names) for each in outer.fragments]
    if cut != own:
        raise ArgumentError(f"the state has fragments {reprlib.repr(cut)}, this loop {reprlib.repr(own)}")
    for what, vector in outer.arrays().items():
        for name, part in _named(outer, vector):
            for stored in (one["arrays"].get(f"{what}/{name}") for one in states):
                if stored is None or tuple(stored.shape) != part.shape:
                    got = "is missing" if stored is None else f"has shape {tuple(stored.shape)}"
                    raise ArgumentError(f"the state's array {what}/{name} {got}; this loop's has {part.shape}")


def _named(outer: Outer, vector: Array) -> list[tuple[str, Array]]:
    """The parameters' parts of a vector."""
    return list(zip(outer._order, outer.flat.parts(outer._order, vector), strict=True))
