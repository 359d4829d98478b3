"""The states of all shards, dealt to another number of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hocket.training.flat import Array
from hocket.training.server.optimizers import Optimizer
from hocket.training.server.shards.store import GATHERED, ROUND, Item, unlike
from hocket.training.server.tables import Places, TableSlice, shares

State = Mapping[Item, Mapping[str, Array]]
"""A shard's arrays, as `Tables.dump` gives them."""


class Lazy(State):
    """A state whose arrays are read, or made, when they are asked for: more of them than fit in memory."""

    def __init__(self, calls: Mapping[Item, Callable[[], Mapping[str, Array]]]) -> None:
        self._calls = calls

    def __getitem__(self, item: Item) -> Mapping[str, Array]:
        return self._calls[item]()

    def __iter__(self) -> Iterator[Item]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


def dealt(old: Places, states: Sequence[State], new: Places, shard: int) -> State:
    """The state of this shard of `new`, made of those of all shards of `old`, which has the same tables."""
    made: dict[Item, Callable[[], Mapping[str, Array]]] = {}
    for number, part in new.of(shard):
        if part is None:
            theirs = [(state, item) for state in states for item in state if item[0] == number]
            made |= {(number, i): partial(_rows, *each, shard, new.shards) for i, each in enumerate(theirs)}
        else:
            optimizer: Optimizer = new.tables[number].optimizer  # type: ignore[assignment]
            near = [each for each in old.parts[number] if each.first < part.end and part.first < each.end]
            given = [(states[each.shard], (number, each.number)) for each in near]
            made[number, part.number] = partial(_slice, part, near, given, optimizer)
    return Lazy(made)


def _rows(state: State, item: Item, shard: int, shards: int) -> Mapping[str, Array]:
    arrays = state[item]
    mine = shares(arrays["keys"]) % shards == shard
    return {name: each[mine] for name, each in arrays.items()}


def _slice(
    part: TableSlice, near: Sequence[TableSlice], of: Sequence[tuple[State, Item]], optimizer: Optimizer
) -> Mapping[str, Array]:
    """Slices are pushed to at once, so what is one number (their steps) may differ only by when snapshots were made."""
    made, given = {}, [state[item] for state, item in of]
    for name in given[0]:
        if name in (GATHERED, ROUND):  # of workers that are gone
            made[name] = np.zeros(3, np.int64) if name == ROUND else np.zeros(part.end - part.first)
        elif optimizer.slots.get(name):
            made[name] = np.max([each[name] for each in given], 0)
        else:
            cuts = [slice(max(part.first - each.first, 0), part.end - each.first) for each in near]
            made[name] = np.concatenate([each[name][cut] for each, cut in zip(given, cuts, strict=True)])
    return made


def misfit(layout: Places, shard: int, state: State) -> str:
    """Why this cannot be the state of this shard, or ""."""
    wanted = {(number, part.number if part else 0) for number, part in layout.of(shard)}
    rows = {number for number, part in layout.of(shard) if part is None}
    found = {(number, 0 if number in rows else part) for number, part in state}
    if wanted != found:
        return f"its parts of tables are {sorted(found)}, those of shard {shard} {sorted(wanted)}"
    return next((why for item in wanted if (why := unlike(layout, shard, item, state[item]))), "")
