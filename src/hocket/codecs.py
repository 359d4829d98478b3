"""The codecs of float32, for what stands on hocket: their table, their kinds, shorter codes, others' codecs; the places
of large elements, and products with thin matrices.

`hocket.compression` makes codecs with parameters, and checks them.
"""

from typing import Any

from hocket.kernels import thin
from hocket.kernels.codecs import CODECS, FP8, HALF_NAMES, L2, MAX, NATURAL, ONEBIT, SIGN, WHOLE, Codec
from hocket.kernels.cpu.elias import restore, shorten
from hocket.kernels.select import not_below
from hocket.system.packages import declared

__all__ = [
    "CODECS", "FP8", "HALF_NAMES", "L2", "MAX", "NATURAL", "ONEBIT", "SIGN", "WHOLE", "Codec", "not_below",
    "others", "restore", "shorten", "thin",
]  # fmt: skip
GROUP = "hocket.codecs"
"""A group of entry points: a name, and a function that makes a codec or a method of what follows the name's colon."""


def others() -> dict[str, Any]:
    """The entry points of codecs that other packages declare, by name."""
    return {entry.name: entry for entry in declared(GROUP)}
