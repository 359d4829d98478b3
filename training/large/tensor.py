"""Layers whose weights are cut among ranks: by columns, then by rows, and one sum at the end.

    hidden, kept = ColumnParallel(...).forward(x)
    y, kept_too = RowParallel(...).forward(relu(hidden))

A rank has some columns of the first layer's weight and the same rows of the second one's: what lies between needs no
other rank.  Law: results and gradients are those of layers that are not cut, to 1e-6 of float32.

Bytes of a rank, for x of n bytes: an allreduce forward (rows) and one backward (columns), 2 (p-1)/p n each.
`sequence=True`: x and y are cut by rows of x, too; an allgather and a reduce-scatter take the place of each allreduce,
for the same bytes, and what lies outside of the layers takes 1/p of the memory.

Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053; Korthikanti et al., "Reducing activation recomputation in
large transformer models", MLSys 2023 (sequence parallelism).
"""

from __future__ import annotations

from typing import Any

from hocket.compression.memory import contiguous, copied, dtype_of, is_array, zeros
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.told import tell


def part(count: int, comm: Any, what: str) -> slice:
    """This rank's columns or rows of so many; ArgumentError, alike on all ranks, where they do not divide."""
    if count % comm.size:
        raise ArgumentError(f"{what}={count} must be a multiple of the {comm.size} ranks of this axis")
    each = count // comm.size
    return slice(comm.rank * each, (comm.rank + 1) * each)


class Layer:
    """x of (rows, ..., inputs) times a weight of (inputs, outputs), plus a bias.

    `weight`, `bias`: of the whole layer, alike on all ranks, NumPy's or on a GPU, where x and dy then are, too; the
    rank keeps its part in `parameters`, by name.  `backward` adds up `gradients`: of this rank's part, of all rows;
    `clear` makes them zeros.  `comm`: a communicator or an axis of a mesh.  It can be a `Stage`, or a part of one:
    several forward passes may come before their backward.
    """

    alike: tuple[str, ...] = ()
    """Parameters that all ranks have whole."""

    def __init__(self, weight: Array, bias: Array | None, comm: Any, *, sequence: bool = False) -> None:
        self.comm, self.sequence = comm, sequence
        agree(comm, type(self).__name__, lambda: self._said(weight, bias))
        self.gradients = {name: zeros(array, array.shape, dtype_of(array)) for name, array in self.parameters.items()}
        for name, array in self.parameters.items():
            tell(array, comm, alike=name in self.alike)

    def clear(self) -> None:
        """Make the gradients zeros: a new step begins."""
        for array in self.gradients.values():
            array[...] = 0

    def _said(self, weight: Any, bias: Any) -> dict[str, Any]:
        """Cut the weight; what has to be the same on all ranks."""
        whole = [weight] if bias is None else [weight, bias]
        if not all(is_array(array) and array.ndim == n for array, n in zip(whole, (2, 1), strict=False)):
            raise ArgumentError("weight must be an array of (inputs, outputs), bias one of (outputs,), or None")
        if bias is not None and len(bias) != weight.shape[1]:
            raise ArgumentError(f"bias has {len(bias)} numbers, the weight {weight.shape[1]} outputs")
        self.parameters = self._cut(weight, bias)
        return {"shapes": [list(array.shape) for array in whole], "sequence": self.sequence}

    def _cut(self, weight: Array, bias: Array | None) -> dict[str, Array]:
        raise NotImplementedError

    def _times(self, x: Array) -> Array:
        """x, of all rows, times this rank's weight."""
        return contiguous(x @ self.parameters["weight"])

    def _back(self, dy: Array, x: Array) -> Array:
        """From the gradient of `_times(x)` to that of x; the weight's is added up."""
        rows = dy.reshape(-1, dy.shape[-1])
        self.gradients["weight"] += x.reshape(-1, x.shape[-1]).T @ rows
        if "bias" in self.parameters:
            self.gradients["bias"] += rows.sum(0)
        return contiguous(dy @ self.parameters["weight"].T)

    def _joined(self, x: Array) -> Array:
        """All rows: of `sequence` each rank has its own."""
        return self.comm.allgather(x) if self.sequence else x

    def _summed(self, y: Array) -> Array:
        """The sum of all ranks' y; of `sequence` this rank's rows of it."""
        if not self.sequence:
            return self.comm.allreduce(y)
        part(len(y), self.comm, "rows")
        return self.comm.reduce_scatter(y)


class ColumnParallel(Layer):
    """The rank has some columns: all of x goes in, the same columns of y come out."""

    def _cut(self, weight: Array, bias: Array | None) -> dict[str, Array]:
        mine = part(weight.shape[1], self.comm, "outputs")
        return _kept(weight[:, mine], None if bias is None else bias[mine])

    def forward(self, x: Array) -> tuple[Array, Array]:
        """y, (rows, ..., outputs / p), of x, (rows, ..., inputs), and all of x.  With `sequence` x has this rank's
        rows, and y all rows."""
        x = self._joined(x)
        return self._times(x) + self.parameters.get("bias", 0), x

    def backward(self, dy: Array, kept: Array) -> Array:
        """The gradient of x, of that of `forward`'s result."""
        return self._summed(self._back(dy, kept))


class RowParallel(Layer):
    """The rank has some rows: its columns of x go in, all of y comes out."""

    alike = ("bias",)

    def _cut(self, weight: Array, bias: Array | None) -> dict[str, Array]:
        return _kept(weight[part(weight.shape[0], self.comm, "inputs")], bias)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """y, (rows, ..., outputs), of x, (rows, ..., inputs / p), and x.  With `sequence` x has all rows, and y this
        rank's."""
        return self._summed(self._times(x)) + self.parameters.get("bias", 0), x

    def again(self, x: Array) -> Array:
        """The part that `forward` keeps, without its result and its sum (`Recomputed`)."""
        return x

    def backward(self, dy: Array, kept: Array) -> Array:
        """The gradient of x, of that of `forward`'s result."""
        return self._back(self._joined(dy), kept)


def _kept(weight: Array, bias: Array | None) -> dict[str, Array]:
    whole = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return {name: copied(contiguous(array)) for name, array in whole.items()}
