"""What a client's pushes are on the wire: fewer bits, whose loss comes with the next push."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from hocket.codecs import CODECS
from hocket.compression import resolved
from hocket.errors import ArgumentError
from hocket.training.server.optimizers import Array
from hocket.training.server.shards.store import Change


class Encoder:
    """`number`: a codec's, on the wire; 0: values travel as they are."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._residuals: dict[str, Array] = {}

    def encoded(self, name: str, change: Change) -> Change:
        """This change of a table.  What is lost of a slice is added to the next push of that slice."""
        if not self._number:
            return change
        with_codec, values, residual = CODECS[self._number - 1], change.values, None
        if change.keys is None:
            before = self._residuals.setdefault(f"{name}/{change.part}", np.zeros(values.size, np.float32))
            residual = (before, before)
        wire = with_codec.encode(values, secrets.randbits(32), residual)
        return change._replace(values=wire, codec=self._number)


def wire_codec(given: Any) -> int:
    """A codec's number on the wire; 0: none."""
    if given is None:
        return 0
    codec = getattr(resolved(given), "codec", None)
    if codec not in CODECS:
        raise ArgumentError(f"codec={given!r} must be one of {', '.join(map(str, CODECS))}, or None")
    return CODECS.index(codec) + 1
