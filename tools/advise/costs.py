"""The cost of a step of a transformer on a mesh: memory and bytes of a rank, and seconds by the simulator.

Memory of a rank: weights and gradients of its part, its share of the optimizer's state, and activations of the
micro-batches that are under way, s b h (10 + 24 / t) bytes of a layer in 16 bits.  Computation: 6 operations for each
parameter and token.  Sources: Korthikanti et al., "Reducing activation recomputation in large transformer models",
MLSys 2023; Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021; Rajbhandari et
al., "ZeRO", SC 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from hocket.algorithms import Topology, get, hierarchical, names, simulate
from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.prediction.topology import Link

ASSUMED = (
    "all layers cost the same, embeddings nothing; ranks fill hosts in order, tensor fastest, then pipe, then data; "
    "1F1B; tensor allreduces and the optimizer's exchange are waited for, messages between stages hide behind them; "
    "the groups of an axis call at once and share a host's link; no call is cut into segments; the optimizer's own "
    "time counts nothing"
)


@dataclass(frozen=True)
class Model:
    """A transformer, and how it is trained."""

    parameters: float
    layers: int
    hidden: int
    sequence: int
    batch: int
    """Sequences of a step, of all ranks."""
    itemsize: int = 2
    """Bytes of a weight, a gradient and an activation."""
    state: int = 12
    """Bytes of the optimizer's state for each parameter: Adam's, and weights in float32."""


class MeshPlan(NamedTuple):
    """A mesh and what a step costs on it."""

    data: int
    pipe: int
    tensor: int
    micro: int
    """Micro-batches."""
    stage: int
    """The stage of `Sharded`: 1, the optimizer's state is cut along data; 3, all is."""
    memory: float
    """Bytes of the rank that needs most."""
    sent: float
    """Bytes that a rank sends in a step, at least."""
    compute: float
    """Seconds that a rank computes."""
    bubble: float
    """Seconds that it is idle, as the pipeline fills and drains; messages included."""
    inside: float
    """Seconds of its tensor allreduces."""
    exchange: float
    """Seconds of gradients and parameters along data."""

    @property
    def step(self) -> float:
        return self.compute + self.bubble + self.inside + self.exchange


class Costs:
    """The costs of meshes of `size` ranks on a topology; `speed`: operations of a rank in a second."""

    def __init__(self, model: Model, there: Topology, size: int, speed: float) -> None:
        there.check(size)
        self.model, self.there, self.size, self.speed = model, there, size, speed
        self.call = lru_cache(maxsize=None)(self._call)

    def plans(self) -> list[MeshPlan]:
        """All meshes with their best number of micro-batches, the fastest first."""
        found = []
        for data, pipe, tensor in self._meshes():
            for stage in (1, 3) if data > 1 and pipe == 1 else (1,):
                ways = [self.plan(data, pipe, tensor, micro, stage) for micro in _divisors(self.model.batch // data)]
                found.append(min(ways, key=lambda plan: (plan.step, plan.memory)))
        return sorted(found, key=lambda plan: (plan.step, plan.memory))

    def _meshes(self) -> Iterator[tuple[int, int, int]]:
        model = self.model
        for tensor in (each for each in _divisors(self.size) if model.hidden % each == 0):
            for pipe in (each for each in _divisors(self.size // tensor) if model.layers % each == 0):
                data = self.size // tensor // pipe
                if model.batch % data == 0:
                    yield data, pipe, tensor

    def plan(self, data: int, pipe: int, tensor: int, micro: int, stage: int = 1) -> MeshPlan:
        """The cost of a step with so many ranks on each axis."""
        model = self.model
        part = model.parameters / pipe / tensor
        tokens, layers = model.batch // data // micro * model.sequence, model.layers // pipe
        activation = float(tokens * model.hidden * model.itemsize)
        one = 6 * part * tokens / self.speed
        summed, told = self.call("allreduce", activation, tensor, 1)
        summed, told = 4 * layers * summed, 4 * layers * told
        message = self._message(activation, pipe, tensor)
        slot = max(one + summed, 2 * message)
        fill = (pipe - 1) * (one + summed + 2 * message) + micro * (slot - (one + summed))
        weights = part * model.itemsize
        exchange = ("reduce_scatter", "allgather")
        scattered, gathered = (self.call(each, weights, data, pipe * tensor) for each in exchange)
        times = 2 * micro if stage == 3 else 1
        held = (2 * weights + part * model.state / data) if stage == 1 else (
            (2 * weights + part * model.state) / data + 2 * weights / layers)  # fmt: skip
        kept = layers * tokens * model.hidden * model.itemsize / 2 * (10 + 24 / tensor) * min(pipe, micro)
        sent = scattered[1] + times * gathered[1] + micro * (told + 2 * activation * (pipe > 1))
        return MeshPlan(
            data, pipe, tensor, micro, stage, held + kept, sent, micro * one, fill, micro * summed,
            scattered[0] + times * gathered[0],
        )  # fmt: skip

    def _message(self, nbytes: float, pipe: int, stride: int) -> float:
        """Seconds from a stage to the next one, along the slowest of the ways."""
        if pipe == 1:
            return 0.0
        there = along(self.there, stride)
        links = [there.ports(i, i + 1, pipe) for i in range(pipe - 1)]
        return max(there.latency(i, i + 1) + nbytes / min(map(there.bandwidth, link)) for i, link in enumerate(links))

    def _call(self, collective: str, nbytes: float, size: int, stride: int) -> tuple[float, float]:
        """(seconds, bytes that a rank sends) by the fastest algorithm, among ranks so far apart."""
        if size == 1:
            return 0.0, 0.0
        there = along(self.there, stride)
        groups, found = there.groups(size), []
        ways = [get(collective, name) for name in names(collective)]
        if collective in STAGES and 1 < len(groups) < size and size % there.ranks == 0:
            ways.append(hierarchical(collective, groups))
        for way in ways:
            if not way.requires(size):
                made = simulate(way, size, nbytes, there)
                found.append((made.seconds, float(made.sent)))
        return min(found)


def along(there: Topology, stride: int) -> Topology:
    """The topology between ranks that are so far apart, where all such groups call at once: each has its share of a
    host's link.

    >>> from hocket.algorithms import topology
    >>> found = along(topology("hosts:4x8,inside=1us/10GB,link=10us/8GB"), 4)
    >>> found.ranks, found.link.bandwidth
    (2, 2000000000.0)
    """
    together, rack = min(stride, there.ranks), there.ranks * there.hosts
    ranks = max(1, there.ranks // stride)
    inside, uplink = there.inside, there.uplink
    if inside is not None and there.shared:
        inside = _shared(inside, together)
    if uplink is not None:
        uplink = _shared(uplink, min(stride, rack))
    hosts = max(1, rack // stride // ranks) if there.racks else 0
    return replace(
        there, link=_shared(there.link, together), ranks=ranks, hosts=hosts, inside=inside, uplink=uplink,
        racks=max(1, there.racks * rack // max(rack, stride)) if there.racks else 0,
    )  # fmt: skip


def _shared(link: Link, groups: int) -> Link:
    return Link(link.latency, link.bandwidth / groups)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
