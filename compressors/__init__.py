"""Methods with state that send less: error feedback, sparse and low-rank sums, on hocket's public calls.

    method.py        what a method is
    compressor.py    `Compressor`: vectors by key
    entries.py       what it keeps for a key
    step.py          calls that count together
    memory.py        where vectors lie, and which library computes with them
    choice/          the methods by name, and which of them is fastest here
    quantizers.py    codecs with parameters, for `codec=` too
    wire.py          `encode`, `decode`: a vector as bytes, for carriers that are not hocket's
    residuals.py     where codecs find what is owed
    bucket.py        vectors that are averaged together

The methods:
    dense.py         all elements, each with fewer bits
    elias.py         codes of different lengths
    shared_scale.py  whole numbers times a scale that all ranks share
    sparse/          a few of the elements, and sums of sparse vectors
    low_rank.py      two thin matrices
    stateful.py      those that keep more than what is owed
    own.py           two functions of the user's
    adasum.py        no fewer bits: gradients that agree are averaged, others added
"""

from hocket.compression.adasum import AdaSum
from hocket.compression.bucket import Bucket
from hocket.compression.choice.fastest import choose
from hocket.compression.choice.names import resolved
from hocket.compression.compressor import Compressor
from hocket.compression.dense import Coded, DoubleSqueeze
from hocket.compression.elias import Elias
from hocket.compression.entries import Stats
from hocket.compression.low_rank import PowerSGD
from hocket.compression.method import Averaged, Method
from hocket.compression.own import Own
from hocket.compression.quantizers import FP8, QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.compression.shared_scale import SharedScale
from hocket.compression.sparse.allreduce import allreduce_sparse
from hocket.compression.sparse.largest_sums import OkTopK
from hocket.compression.sparse.methods import NonZero, RandomK, Sparse, Threshold, TopK
from hocket.compression.sparse.two_bits import TwoBits
from hocket.compression.stateful import DGC, EF21
from hocket.compression.step import Step
from hocket.compression.wire import decode, encode

__all__ = [
    "DGC", "EF21", "FP8", "QSGD", "AdaSum", "Averaged", "Bucket", "Coded", "Compressor", "DoubleSqueeze", "Elias",
    "Int", "Int4", "Int8", "Method", "Natural", "NonZero", "OkTopK", "OneBit", "Own", "PowerSGD", "RandomK",
    "SharedScale", "Sign", "Sparse", "Stats", "Step", "TernGrad", "Threshold", "TopK", "TwoBits", "allreduce_sparse",
    "choose", "decode", "encode", "resolved",
]  # fmt: skip
