"""LARS and LAMB: optimizers for large batches, whose rate in each layer depends on norms of that layer.

So they need to know where each parameter begins, which `Sharded` tells them (`Pieces`).  Norms are exact (norm.py): a
model that is cut among ranks has the bits of one that is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.optimizers import chunks, least, moments, positive, share


class Pieces(Protocol):
    """The parameters of which a vector has all, or a part."""

    names: Sequence[str]
    """All names, on all ranks the same."""
    places: Sequence[tuple[str, slice, bool]]
    """This rank's: name, where it lies in the vector, and whether it has one dimension or none."""

    def norms(self, *vectors: Array) -> list[dict[str, float]]:
        """Norms of whole parameters by name, for each vector.  Collective."""


class Layered:
    """An optimizer whose `apply` takes `pieces`, too."""

    lr: float
    vectors: bool
    """Do biases, and others of one dimension, count as layers?  Else they have the plain rate, and no decay."""
    slots: tuple[str, ...]

    def apply(
        self, x: Array, gradient: Array, slots: dict[str, Array], step: int, pieces: Pieces | None = None
    ) -> None:
        """Change `x` and the slots in place.  `gradient` is overwritten."""
        if pieces is None:
            self._refuse()
        self._step(x, gradient, slots, step, pieces)

    def _step(self, x: Array, gradient: Array, slots: dict[str, Array], step: int, pieces: Pieces) -> None:
        raise NotImplementedError

    def _refuse(self) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__} needs to know where each parameter begins, and this vector does not tell: give it "
            "to Sharded (a communicator of one rank will do); for a server's Range take Adam, SGD or Adagrad"
        )


class Lars(Layered):
    """LARS: v = momentum v + lr t (g + decay x), x -= v, with t = trust |x| / (|g| + decay |x|) in each layer.

    Algorithm 1 of You, Gitman and Ginsburg, "Large batch training of convolutional networks", arXiv 1708.03888.  The
    rate is inside the momentum, as there: timm's form has it outside, and differs while `lr` changes.  t is 1 where a
    norm is 0.  `vectors=False`: biases and scales have t = 1 and no decay, as all published results have it.
    Set `lr` between steps for a schedule: LARS needs a warm-up.  Memory: one vector.
    """

    slots: tuple[str, ...] = ("momentum",)

    def __init__(
        self, lr: float, momentum: float = 0.9, decay: float = 1e-4, trust: float = 1e-3, vectors: bool = False
    ) -> None:
        self.lr, self.momentum = positive(lr, "lr"), share(momentum, "momentum")
        self.decay, self.trust, self.vectors = least(decay, "decay"), positive(trust, "trust"), bool(vectors)

    def __repr__(self) -> str:
        return (
            f"Lars(lr={self.lr:g}, momentum={self.momentum:g}, decay={self.decay:g}, trust={self.trust:g}, "
            f"vectors={self.vectors})"
        )

    def _step(self, x: Array, gradient: Array, slots: dict[str, Array], step: int, pieces: Pieces) -> None:
        of_x, of_g = pieces.norms(x, gradient)
        for name, where, thin in pieces.places:
            plain = thin and not self.vectors
            decay, trust = 0.0 if plain else float(self.decay), 1.0
            if not plain and of_x[name] > 0 and of_g[name] > 0:
                trust = self.trust * of_x[name] / (of_g[name] + decay * of_x[name])
            for w, g, v in _pieces(where, x, gradient, slots["momentum"]):
                if decay:
                    g += decay * w
                g *= float(self.lr * trust)
                v *= float(self.momentum)
                v += g
                w -= v


class Lamb(Layered):
    """LAMB: x -= lr t u, u = m' / (sqrt(v') + eps) + decay x, with t = |x| / |u| in each layer; m', v' are Adam's.

    Algorithm 2 of You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", arXiv
    1904.00962, with phi(z) = z and the bias of m and v corrected.  t is 1 where a norm is 0.  `vectors=False`: biases
    and scales have t = 1 and no decay, as in BERT's training.  That one clips gradients by their norm, too:
    `Sharded(clip=1.0)`.  Set `lr` between steps for a schedule.  Memory: two vectors.
    """

    slots: tuple[str, ...] = ("m", "v")

    def __init__(
        self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, decay: float = 0.01,
        vectors: bool = False,
    ) -> None:  # fmt: skip
        self.lr, self.eps, self.decay = positive(lr, "lr"), positive(eps, "eps"), least(decay, "decay")
        self.betas, self.vectors = (share(betas[0], "betas"), share(betas[1], "betas")), bool(vectors)

    def __repr__(self) -> str:
        return (
            f"Lamb(lr={self.lr:g}, betas={self.betas}, eps={self.eps:g}, decay={self.decay:g}, vectors={self.vectors})"
        )

    def _step(self, x: Array, gradient: Array, slots: dict[str, Array], step: int, pieces: Pieces) -> None:
        one = 1 / (1 - self.betas[0] ** step)
        for _, where, thin in pieces.places:
            decay = 0.0 if thin and not self.vectors else float(self.decay)
            for w, g, m, v in _pieces(where, x, gradient, slots["m"], slots["v"]):
                moments(g, m, v, self.betas, step, float(self.eps))
                g *= one
                if decay:
                    g += decay * w
        of_x, of_u = pieces.norms(x, gradient)
        for name, where, thin in pieces.places:
            ratio = 1.0
            if not (thin and not self.vectors) and of_x[name] > 0 and of_u[name] > 0:
                ratio = of_x[name] / of_u[name]
            for w, g in _pieces(where, x, gradient):
                g *= float(self.lr * ratio)
                w -= g


def _pieces(where: slice, *vectors: Array) -> list[list[Array]]:
    """The same pieces of each vector, which stay in a core's cache."""
    parts = [vector[where] for vector in vectors]
    return [[part[one] for part in parts] for one in chunks(parts[0])]
