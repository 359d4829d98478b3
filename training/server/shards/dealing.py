"""The states of all shards, dealt to another number of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hocket.training.flat import Array
from hocket.training.server.optimizers import Optimizer
from hocket.training.server.shards.store import GATHERED, ROUND, Item, unlike
from hocket.training.server.tables import Layout, Part, shares

State = Mapping[Item, Mapping[str, Array]]
"""A shard's arrays, as `Tables.dump` gives them."""


def dealt(old: Layout, states: Sequence[State], new: Layout, shard: int) -> State:
    """The state of this shard of `new`, made of those of all shards of `old`, which has the same tables."""
    made: dict[Item, Mapping[str, Array]] = {}
    for number, part in new.of(shard):
        if part is None:
            made[number, 0] = _rows([state[number, 0] for state in states], shard, new.shards)
        else:
            optimizer: Optimizer = new.tables[number].optimizer  # type: ignore[assignment]
            near = [each for each in old.parts[number] if each.first < part.end and part.first < each.end]
            given = [states[each.shard][number, each.number] for each in near]
            made[number, part.number] = _slice(part, near, given, optimizer)
    return made


def _rows(given: Sequence[Mapping[str, Array]], shard: int, shards: int) -> Mapping[str, Array]:
    mine = [shares(each["keys"]) % shards == shard for each in given]
    both = list(zip(given, mine, strict=True))
    return {name: np.concatenate([each[name][chosen] for each, chosen in both]) for name in given[0]}


def _slice(
    part: Part, near: Sequence[Part], given: Sequence[Mapping[str, Array]], optimizer: Optimizer
) -> Mapping[str, Array]:
    """Slices are pushed to at once, so what is one number (their steps) may differ only by when snapshots were made."""
    made = {}
    for name in given[0]:
        if name in (GATHERED, ROUND):  # of workers that are gone
            made[name] = np.zeros(2, np.int64) if name == ROUND else np.zeros(part.end - part.first)
        elif optimizer.slots.get(name):
            made[name] = np.max([each[name] for each in given], 0)
        else:
            cuts = [slice(max(part.first - each.first, 0), part.end - each.first) for each in near]
            made[name] = np.concatenate([each[name][cut] for each, cut in zip(given, cuts, strict=True)])
    return made


def misfit(layout: Layout, shard: int, state: State) -> str:
    """Why this cannot be the state of this shard, or ""."""
    wanted = {(number, part.number if part else 0) for number, part in layout.of(shard)}
    if wanted != set(state):
        return f"its parts of tables are {sorted(state)}, those of shard {shard} {sorted(wanted)}"
    return next((why for item in wanted if (why := unlike(layout, shard, item, state[item]))), "")
