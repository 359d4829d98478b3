"""Methods with state that send less: error feedback, sparse and low-rank sums, on the hub's public calls."""

from hocket.compression.codecs import FP8, QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.compression.compressor import Compressor, Stats
from hocket.compression.dense import Coded, DoubleSqueeze
from hocket.compression.low_rank import PowerSGD
from hocket.compression.method import Averaged, Method
from hocket.compression.sparse import RandomK, TopK
from hocket.compression.stateful import DGC, EF21

__all__ = [
    "DGC", "EF21", "FP8", "QSGD", "Averaged", "Coded", "Compressor", "DoubleSqueeze", "Int", "Int4", "Int8", "Method",
    "Natural", "OneBit", "PowerSGD", "RandomK", "Sign", "Stats", "TernGrad", "TopK",
]  # fmt: skip
