"""Versions of a stage's weights: each backward pass has those of its forward pass, while newer ones are in use.

A version is copied when an update replaces it, if passes that began with it are under way: memory is that of at most
K-k versions on rank k of K, the newest one among them.
Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019, 3.3 (stashing).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from hocket.compression.memory import copied
from hocket.training.flat import Array


class Versions:
    """`parameters`: arrays that are changed in place by `update()`, after each backward pass."""

    def __init__(self, parameters: Mapping[str, Array], update: Callable[[], object]) -> None:
        self.parameters, self.update = parameters, update
        self.now = 0
        """Updates so far."""
        self.most = 1
        """Versions that were held at once."""
        self._of: dict[int, int] = {}
        """The version with which each micro-batch that is under way began."""
        self._kept: dict[int, dict[str, Array]] = {}

    def begin(self, micro: int) -> None:
        """A forward pass is done now."""
        self._of[micro] = self.now

    @contextlib.contextmanager
    def backward(self, micro: int) -> Iterator[None]:
        """For the block the parameters are those with which the micro-batch began; then they are updated."""
        version = self._of.pop(micro)
        newest = None
        if version != self.now:
            newest = self._copy()
            self._put(self._kept[version])
        yield
        if newest is not None:
            self._put(newest)
        if self.now in self._of.values():
            self._kept[self.now] = newest or self._copy()
        self._kept = {number: kept for number, kept in self._kept.items() if number in self._of.values()}
        self.most = max(self.most, 1 + len(self._kept))
        self.update()
        self.now += 1

    def _copy(self) -> dict[str, Array]:
        return {name: copied(array) for name, array in self.parameters.items()}

    def _put(self, version: Mapping[str, Array]) -> None:
        for name, array in version.items():
            self.parameters[name][...] = array
