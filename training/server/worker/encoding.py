"""A client's pushes on the wire: in the table's own dtype, or in fewer bits, whose loss comes with the next push."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.arguments import kind, unmasked
from hocket.codecs import CODECS
from hocket.compression import resolved
from hocket.compression.memory import fetched
from hocket.errors import ArgumentError
from hocket.extending import on_host
from hocket.training.server.optimizers import Array
from hocket.training.server.shards.store import Change
from hocket.training.server.tables import finite

Undo = Callable[[], None] | None
"""Takes back what an encoding has left, if a server refuses what was encoded."""


class Encoder:
    """`number`: a codec's, on the wire; 0: values travel as they are."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._residuals: dict[tuple[int, int], Array] = {}
        self._lock = threading.Lock()

    def encoded(self, changes: Sequence[Change]) -> list[tuple[Change, Undo]]:
        """The changes of one push.  What is lost of a slice is added to the next push of that slice.

        Raises ArgumentError, and leaves everything as it was, if something is not finite with what was lost before.
        """
        if not self._number:
            return [(change, None) for change in changes]
        codec, made = CODECS[self._number - 1], []
        with self._lock:
            for change in changes:
                slice_ = None if change.keys is not None else (change.table, change.part)
                before = None if slice_ is None else self._residuals.get(slice_)
                after = np.empty(change.values.size, np.float32)
                wire = codec.encode(change.values, secrets.randbits(32), (before, after))
                if not finite(after):
                    raise ArgumentError(f"a value is not finite by codec={codec.name!r}, with what earlier pushes lost")
                made.append((slice_, before, after, change._replace(values=wire, codec=self._number)))
            self._residuals.update({slice_: after for slice_, _, after, _ in made if slice_ is not None})
        return [(change, self._undo(slice_, before, after)) for slice_, before, after, change in made]

    def _undo(self, slice_: tuple[int, int] | None, before: Array | None, after: Array) -> Undo:
        if slice_ is None:
            return None

        def undo() -> None:  # pushes that were encoded since have had `after`
            with self._lock:
                self._residuals[slice_] = self._residuals[slice_] - after + (0 if before is None else before)

        return undo


def wire_codec(given: Any) -> int:
    """A codec's number on the wire; 0: none."""
    if given is None:
        return 0
    codec = getattr(resolved(given), "codec", None)
    if codec not in CODECS:
        raise ArgumentError(f"codec={given!r} must be one of {', '.join(map(str, CODECS))}, or None")
    return CODECS.index(codec) + 1


def as_values(given: Any, dtype: str) -> Array:
    """The values that are pushed, as a contiguous array of the table's dtype on the host; of a torch tensor too, and
    of arrays on a GPU, which are waited for."""
    if type(given) is np.ndarray and given.dtype == dtype and given.flags.c_contiguous:
        return given  # what follows costs more than all else of a small push
    unmasked(given, "values")
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = (given.float() if "float" in str(given.dtype) and given.itemsize < 4 else given).numpy()
    elif not on_host(given):
        given = fetched(given)
    try:
        array = np.asarray(given)
        if array.dtype.kind == "c":
            raise ArgumentError(f"values are {array.dtype}, and a table holds {dtype}: push x.real and x.imag")
        if array.dtype.kind not in "biufV" or array.dtype.names is not None:
            raise ArgumentError(f"values are {kind(given)} of {array.dtype}, not numbers: a table holds {dtype}")
        with np.errstate(over="ignore"):  # what is too large is not finite, which is told
            return np.asarray(array, dtype, order="C")
    except (TypeError, ValueError) as why:
        raise ArgumentError(f"values are {kind(given)} that cannot be {dtype}: {why}") from None
