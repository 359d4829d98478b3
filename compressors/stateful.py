"""Methods that keep more than what is owed: the difference to the last gradient, or a momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array, cast, chosen, copied, empty, namespace, size, squared, zeros
from hocket.compression.method import Averaged, Method, MethodState, Together, joined, single, times
from hocket.compression.sparse.methods import TopK, checked
from hocket.errors import ArgumentError


class EF21(Together):
    """Each rank sends its gradient's difference to the mean of the peers' estimates; nothing is owed.

    The first call sends the whole vector, 2n(p-1)/p bytes per rank; the others cost what `method` costs.  The result
    is the mean of these estimates, which are near where gradients change slowly.  So send each rank's momentum, the
    running sum or mean of its gradients, in place of a noisy gradient, and have none behind it: that sums up what was
    late already, and training may fail.

    Source: Richtarik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback",
    NeurIPS 2021; Fatkhullin et al., "Momentum Provably Improves Error Feedback!", NeurIPS 2023.
    """

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def name(self) -> str:
        return f"ef21:{self.method.name}"

    @property
    def host(self) -> str:
        return self.method.host

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """All together, where all have had a first call, or none."""
        if len({"mine" in kept for kept in kepts}) > 1:
            return super().average_all(comm, vectors, results, kepts, seeds)
        flat, shapes = vectors.flat, [one.shape for one in vectors.parts]
        if "mine" not in kepts[0]:
            comm.allreduce(flat, "avg", results.flat)
            changes = Bucket.of(zeros(flat, size(flat)), shapes)
            averages = [Averaged({}, vector.nbytes) for vector in vectors.parts]
        else:
            changes = Bucket.of(empty(flat, size(flat)), shapes)
            for change, vector, kept in zip(changes.parts, vectors.parts, kepts, strict=True):
                namespace(flat).subtract(vector, kept["mine"], out=change)
            inner = [
                {name.partition(".")[2]: array for name, array in kept.items() if name.startswith("of.")}
                for kept in kepts
            ]
            averages = self.method.average_all(comm, changes, results, inner, seeds)
            for result, kept in zip(results.parts, kepts, strict=True):
                result += kept["mean"]
        states = []
        for vector, change, result, one in zip(vectors.parts, changes.parts, results.parts, averages, strict=True):
            state = {"mine": vector - change, "mean": copied(result)}
            states.append(Averaged(state | {f"of.{name}": array for name, array in one.kept.items()}, one.nbytes))
        vectors.flat[...] = 0
        return states


class DGC(Together):
    """Deep Gradient Compression: what is not sent gathers momentum where it waits, as it would have after it came.

    `density`: of the elements that are sent, 6 bytes each to every other rank; `codec`: as TopK's.  `momentum`: the
    optimizer must then have none of its own.  `clip`: gradients longer than clip / sqrt(p) are shortened to it.
    `warmup`: the densities of the first calls with a key, one for each `every` calls.  `masking`: what was sent loses
    its momentum, too.

    The state is the method's own, so `Compressor(..., feedback=False)` or not makes no difference.

    Source: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training",
    ICLR 2018.
    """

    def __init__(
        self, density: float = 0.001, momentum: float = 0.9, clip: float | None = None, nesterov: bool = False,
        warmup: Sequence[float] = (), every: int = 1, masking: bool = True, codec: str | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= momentum < 1 or every < 1 or (clip is not None and clip <= 0):
            raise ArgumentError(f"DGC: momentum={momentum!r} must be in [0, 1), {every=} and {clip=} above 0")
        self.codec = codec
        self.density, self.momentum, self.clip, self.nesterov = checked(density), momentum, clip, nesterov
        self.warmup, self.every, self.masking = [checked(each) for each in warmup], every, masking

    @property
    def name(self) -> str:
        return joined("dgc", f"{self.density:g}", self.codec)

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """All together, where all have had as many calls."""
        steps = {int(kept["step"][0]) if kept else 0 for kept in kepts}
        if len(steps) > 1:
            return super().average_all(comm, vectors, results, kepts, seeds)
        step, m, flat = steps.pop(), single(self.momentum), vectors.flat
        shapes = [one.shape for one in vectors.parts]
        us, vs = (Bucket.of(empty(flat, size(flat)), shapes) for _ in range(2))
        for vector, u, v, kept in zip(vectors.parts, us.parts, vs.parts, kepts, strict=True):
            gradient, before = self._clipped(vector, comm.size), kept or {"u": 0.0, "v": 0.0}
            u[...] = m * (before["u"] + gradient) if self.nesterov else m * before["u"] + gradient
            v[...] = before["v"] + (u + gradient if self.nesterov else u)
        density = self.density
        if step // self.every < len(self.warmup):
            density = self.warmup[step // self.every]
        whole = copied(vs.flat)
        averages = TopK(density, codec=self.codec).average_all(comm, vs, results, kepts, seeds)
        if self.masking:
            us.flat[...] = chosen(whole == vs.flat, us.flat, 0.0)
        vectors.flat[...] = 0
        return [
            Averaged({"step": np.array([step + 1]), "u": copied(u), "v": copied(v)}, one.nbytes)
            for u, v, one in zip(us.parts, vs.parts, averages, strict=True)
        ]

    def _clipped(self, vector: Array, ranks: int) -> Array:
        if self.clip is None:
            return vector
        xp, most = namespace(vector), self.clip / math.sqrt(ranks)
        if xp is np:
            length = float(np.linalg.norm(vector))
            return vector * np.float32(most / length) if length > most else vector
        by = most / xp.sqrt(squared(vector))
        return vector * cast(chosen(by < 1, by, 1.0), "float32")

    def rescaled(self, kept: MethodState, factor: float) -> MethodState:
        """Scale what waits; not the momentum, which is of gradients, as an optimizer's is."""
        return times(kept, "v", factor)

    def redealt(self, kepts: Sequence[MethodState], count: int, rank: int, size: int) -> MethodState:
        """Share out what has gathered like what is owed; an average divides by another number now.

        A rank beyond those that were takes over zeros.  All count as many calls, which decide what is sent together.
        """
        if not all(kepts):
            return {}
        first, ratio = kepts[0], np.float32(size / len(kepts))
        shared = {
            name: np.asarray(sum((kept[name] for kept in kepts[rank::size]), np.zeros_like(first[name])) * ratio)
            for name in ("u", "v")
        }
        return {"step": first["step"], **shared}
