"""`compress=`: gradients in fewer bits, by a method of hocket.compression, with what it owes kept by variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket import Communicator
from hocket.compression import Compressor


class Compressing:
    """The float32 gradients of an optimizer."""

    def __init__(self, comm: Communicator, method: str) -> None:
        self._compressor = Compressor(comm, method)

    def average(self, arrays: Sequence[Any], names: Sequence[str], lr: float) -> None:
        """Average these in place, as far as the method sends them.  `lr`: what they are multiplied by."""
        keys = [f"{i} {name}" for i, name in enumerate(names)]
        with self._compressor.step():
            self._compressor.allreduce_all(list(arrays), keys, "avg", lr)
