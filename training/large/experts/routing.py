"""Which experts a token goes to, and what each counts: pure functions of the gates, and their gradient.

Sources: Fedus et al., "Switch transformers", JMLR 2022 (top 1); Lepikhin et al., "GShard", ICLR 2021 (top 2, and a
capacity in groups of tokens).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hocket.training.flat import Array


class Route(NamedTuple):
    """The rows that travel, in the order of experts, and what they came from."""

    tokens: Array
    """Each row has its token, ... its token, ..."""
    experts: Array
    """... its expert, ..."""
    weights: Array
    """... and what its result counts."""
    dropped: int
    """Rows that were left out: their expert had no room."""
    chosen: Array
    """The experts of each token, (tokens, top), and ..."""
    total: Array
    """... the sum of their gates, by which weights were divided; of top 1 ones."""


def route(gates: Array, top: int, room: int | None) -> Route:
    """Gates of (tokens, experts): the `top` highest ones.  An expert takes the first `room` tokens; None: all.

    >>> routed = route(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), top=1, room=1)
    >>> routed.tokens.tolist(), routed.experts.tolist(), routed.dropped
    ([0, 2], [0, 1], 1)
    """
    count = gates.shape[1]
    chosen = np.argsort(-gates, 1, kind="stable")[:, :top]
    weights = np.take_along_axis(gates, chosen, 1)
    total = weights.sum(1, keepdims=True) if top > 1 else np.ones_like(weights)
    total[total == 0] = 1  # a masked token, whose gates are all 0, counts nothing
    tokens, experts = np.repeat(np.arange(len(gates)), top), chosen.ravel()
    order = np.argsort(experts, kind="stable")
    if room is not None:
        counts = np.bincount(experts, minlength=count)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = order[place < room]
    weights = (weights / total).ravel()[order]
    return Route(tokens[order], experts[order], weights, len(tokens) - len(order), chosen, total)


def room(capacity: float | None, top: int, tokens: int, experts: int) -> int | None:
    """Tokens of a rank that an expert takes: rounded up, but not for the rounding of floats.

    >>> room(1.1, top=1, tokens=100, experts=10)        # 1.1 * 100 / 10 is 11.000000000000002
    11
    """
    return None if capacity is None else math.ceil(capacity * top * tokens / experts * (1 - 1e-12))


def balancing(gates: Array, scale: float) -> tuple[float, Array]:
    """The loss that balances experts, and its gradient of the gates.

    scale * experts * sum_e f_e P_e: f_e is the share of tokens whose highest gate is e's, P_e the average of its gates,
    softmax's; `scale` at least, where all are alike.  Switch's, with alpha = 0.01; GShard's is experts^-2 of it.  Of a
    rank's tokens, as the capacity is: both papers' groups.

    >>> balancing(np.array([[0.75, 0.25], [0.75, 0.25]]), 1.0)[0]
    1.5
    """
    tokens, count = gates.shape
    if not tokens:
        return 0.0, np.zeros_like(gates)
    first = np.argsort(-gates, 1, kind="stable")[:, 0]
    share = np.bincount(first, minlength=count) / tokens
    each = (scale * count / tokens) * share
    return float((gates * each).sum()), np.broadcast_to(each, gates.shape).astype(gates.dtype)


def gradient(routed: Route, each: Array, shape: tuple[int, int]) -> Array:
    """The gradient of the gates; `each`: of the rows' weights."""
    gradients = np.zeros(shape, each.dtype)
    gradients[routed.tokens, routed.experts] = each
    if routed.chosen.shape[1] == 1:
        return gradients
    shares, both = np.zeros_like(gradients), np.zeros_like(gradients)
    shares[routed.tokens, routed.experts] = routed.weights
    np.put_along_axis(both, routed.chosen, 1, 1)
    gradients -= (shares * gradients).sum(1, keepdims=True)
    gradients *= both / routed.total
    return gradients
