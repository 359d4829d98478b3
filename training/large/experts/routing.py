"""Which experts a token goes to, and what each counts: pure functions of the gates, and their gradient.

All stay where the gates are, but the number of rows of each expert, by which they are sent: it goes to the host.

Sources: Fedus et al., "Switch transformers", JMLR 2022 (top 1); Lepikhin et al., "GShard", ICLR 2021 (top 2, and a
capacity in groups of tokens).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hocket.compression.memory import (
    alike,
    cast,
    chosen,
    dtype_of,
    fetched,
    moved,
    namespace,
    numbered,
    order,
    zeros,
)
from hocket.extending import on_host
from hocket.training.flat import Array


class Route(NamedTuple):
    """The rows that travel, in the order of experts, and what they came from."""

    tokens: Array
    """Each row has its token, ... its token, ..."""
    experts: Array
    """... its expert, ..."""
    weights: Array
    """... and what its result counts."""
    places: Array
    """Its place among all choices: token * top + which of its token's."""
    counts: np.ndarray[Any, Any]
    """Rows of each expert, on the host."""
    dropped: int
    """Rows that were left out: their expert had no room."""
    picked: Array
    """The experts of each token, (tokens, top), and ..."""
    total: Array
    """... the sum of their gates, by which weights were divided; of top 1 ones."""


def route(gates: Array, top: int, room: int | None) -> Route:
    """Gates of (tokens, experts): the `top` highest ones.  An expert takes the first `room` tokens; None: all.

    >>> routed = route(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), top=1, room=1)
    >>> routed.tokens.tolist(), routed.experts.tolist(), routed.dropped
    ([0, 2], [0, 1], 1)
    """
    tokens, count = gates.shape
    picked = order(-gates)[:, :top]
    weights = gates[numbered(gates, tokens)[:, None], picked]
    total = weights.sum(1)[:, None]
    if top == 1:
        total[...] = 1
    total = chosen(total != 0, total, 1.0)  # a masked token, whose gates are all 0, counts nothing
    experts = picked.reshape(-1)
    places, counts = order(experts), fetched(_counts(experts, count))
    if room is not None:
        begins, counts = np.cumsum(counts) - counts, np.minimum(counts, room)
        first = [np.arange(begin, begin + many) for begin, many in zip(begins, counts, strict=True)]
        places = places[moved(np.concatenate(first), places)]
    dropped = tokens * top - len(places)
    each = (weights / total).reshape(-1)[places]
    return Route(places // top, experts[places], each, places, counts, dropped, picked, total)


def _counts(experts: Array, count: int) -> Array:
    """Rows of each expert."""
    return (experts[:, None] == numbered(experts, count)[None]).sum(0)


def added(routed: Route, rows: Array, into: Array) -> Array:
    """`into`, which has a row for each token, becomes the sum of the token's rows, always in one order."""
    xp, top, most = namespace(rows), routed.picked.shape[1], len(rows)
    none = alike(rows, (1, rows.shape[1]))
    none[...] = 0
    where = alike(routed.places, len(into) * top)
    where[...] = most  # a row that was left out
    where[routed.places] = numbered(rows, most)
    into[...] = xp.concatenate([rows, none])[where].reshape(len(into), top, rows.shape[1]).sum(1)
    return into


def room(capacity: float | None, top: int, tokens: int, experts: int) -> int | None:
    """Tokens of a rank that an expert takes: rounded up, but not for the rounding of floats.

    >>> room(1.1, top=1, tokens=100, experts=10)        # 1.1 * 100 / 10 is 11.000000000000002
    11
    """
    return None if capacity is None else math.ceil(capacity * top * tokens / experts * (1 - 1e-12))


def balancing(gates: Array, scale: float) -> tuple[Any, Array]:
    """The loss that balances experts, a number (on a GPU one there), and its gradient of the gates.

    scale * experts * sum_e f_e P_e: f_e is the share of tokens whose highest gate is e's, P_e the average of its gates,
    softmax's; `scale` at least, where all are alike.  Switch's, with alpha = 0.01; GShard's is experts^-2 of it.  Of a
    rank's tokens, as the capacity is: both papers' groups.

    >>> balancing(np.array([[0.75, 0.25], [0.75, 0.25]]), 1.0)[0]
    1.5
    """
    tokens, count = gates.shape
    slope = alike(gates, gates.shape)
    if not tokens:
        return 0.0, slope
    each = cast(_counts(order(-gates)[:, 0], count), "float64") * (scale * count / tokens**2)
    slope[...] = each
    loss = (gates * each).sum()
    return float(loss) if on_host(gates) else loss, slope


def gradient(routed: Route, each: Array, shape: tuple[int, int]) -> Array:
    """The gradient of the gates; `each`: of the rows' weights."""
    gradients, shares, both = (zeros(each, shape, dtype_of(each)) for _ in "gsb")
    gradients[routed.tokens, routed.experts] = each
    if routed.picked.shape[1] == 1:
        return gradients
    shares[routed.tokens, routed.experts] = routed.weights
    both[numbered(each, shape[0])[:, None], routed.picked] = 1
    gradients -= (shares * gradients).sum(1)[:, None]
    gradients *= both / routed.total
    return gradients
