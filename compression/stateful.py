"""Methods that keep more than what is owed: the difference to the last gradient, or a momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.method import Array, Averaged, Kept, Method
from hocket.compression.sparse import TopK, checked
from hocket.errors import ArgumentError


class EF21(Method):
    """What each rank sends is its gradient's difference to what the others believe it to be; nothing is owed.

    The first call sends the whole vector, 2n(p-1)/p bytes per rank; the others cost what `method` costs.  What comes is
    an average of beliefs, which gradients that change slowly make true.

    Source: Richtarik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback",
    NeurIPS 2021.
    """

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def name(self) -> str:
        return f"ef21:{self.method.name}"

    def average(self, comm: Any, vector: Array, result: Array, kept: Kept, seed: int) -> Averaged:
        if "mine" not in kept:
            comm.allreduce(vector, "avg", result)
            state, nbytes = {"mine": vector.copy(), "mean": result.copy()}, vector.nbytes
        else:
            inner = {name.partition(".")[2]: array for name, array in kept.items() if name.startswith("of.")}
            change = vector - kept["mine"]
            made = self.method.average(comm, change, result, inner, seed)
            result += kept["mean"]
            state, nbytes = {"mine": vector - change, "mean": result.copy()}, made.nbytes
            state |= {f"of.{name}": array for name, array in made.kept.items()}
        vector[...] = 0
        return Averaged(state, nbytes)


class DGC(Method):
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
        return f"dgc:{self.density:g}" + (f":{self.codec}" if self.codec else "")

    def average(self, comm: Any, vector: Array, result: Array, kept: Kept, seed: int) -> Averaged:
        step = int(kept["step"][0]) if kept else 0
        u, v = (kept[name] if kept else np.zeros_like(vector) for name in ("u", "v"))
        gradient = vector
        if self.clip is not None:
            most, length = self.clip / math.sqrt(comm.size), float(np.linalg.norm(vector))
            gradient = vector * np.float32(most / length) if length > most else vector
        m = np.float32(self.momentum)
        u = m * (u + gradient) if self.nesterov else m * u + gradient
        v = v + (u + gradient if self.nesterov else u)
        early = step // self.every
        before = v.copy()
        density = self.warmup[early] if early < len(self.warmup) else self.density
        made = TopK(density, codec=self.codec).average(comm, v, result, {}, seed)
        if self.masking:
            u = np.where(before != v, np.float32(0), u)
        vector[...] = 0
        return Averaged({"step": np.array([step + 1]), "u": u, "v": v}, made.nbytes)

    def redealt(self, kepts: Sequence[Kept], count: int, rank: int, size: int) -> Kept:
        """What has gathered is shared out as what is owed is; an average divides by another number now."""
        taken = kepts[rank::size]
        if not taken or not all(kepts):
            return {}
        ratio = np.float32(size / len(kepts))
        return {"step": taken[0]["step"]} | {
            name: np.asarray(sum(kept[name] for kept in taken) * ratio, np.float32) for name in ("u", "v")
        }
