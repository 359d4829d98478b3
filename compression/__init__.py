"""Methods with state that send less: error feedback, sparse and low-rank sums, on the hub's public calls."""

from hocket.compression.compressor import Compressor, Stats
from hocket.compression.dense import Coded, DoubleSqueeze
from hocket.compression.low_rank import PowerSGD
from hocket.compression.method import Averaged, Method
from hocket.compression.sparse import RandomK, TopK

__all__ = ["Averaged", "Coded", "Compressor", "DoubleSqueeze", "Method", "PowerSGD", "RandomK", "Stats", "TopK"]
