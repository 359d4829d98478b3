"""The codecs of float32, for what stands on hocket: their table, their kinds, and what makes codes shorter still.

`hocket.compression` makes codecs with parameters, and checks them.
"""

from hocket.kernels.codecs import CODECS, FP8, HALF_NAMES, L2, MAX, NATURAL, ONEBIT, SIGN, WHOLE, Codec
from hocket.kernels.cpu.elias import restore, shorten

__all__ = [
    "CODECS", "FP8", "HALF_NAMES", "L2", "MAX", "NATURAL", "ONEBIT", "SIGN", "WHOLE", "Codec", "restore", "shorten",
]  # fmt: skip
