"""The speed of the reduction kernels and of the codecs.  `python -m hocket.bench.kernels [--level avx2]`

GB/s of memory traffic: (k + 1) n bytes for a sum of k inputs, 2n for memcpy (np.copyto), 3n for np.add of two.
Of a codec: GB/s of float32, those of all operands where it sums; a copy's are counted once.
What a call costs on empty arrays is subtracted: the engine calls the kernels without Python.  Medians of repeated
calls, all in one run; only the ratios within a table mean anything on a shared machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hocket.compression import QSGD, Natural, OneBit, TernGrad
from hocket.conformance.oracle import numpy_dtype
from hocket.kernels.codecs import CODECS, Codec
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DTYPES, DType

Array = np.ndarray[Any, Any]
SIZES = {"64 KB": 1 << 16, "4 MB": 1 << 22}
TRIALS = 7


def seconds(call: Callable[[], object]) -> float:
    """The median time of a call, over trials of about 2 ms each."""
    call()
    start = time.perf_counter()
    call()
    repeats = max(1, int(0.002 / max(time.perf_counter() - start, 1e-7)))
    trials = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        trials.append((time.perf_counter() - start) / repeats)
    return sorted(trials)[TRIALS // 2]


def row(dtype: DType, np_dtype: np.dtype[Any], nbytes: int) -> list[float]:
    """GB/s of memcpy, sums of two and four inputs, and np.add."""
    count = nbytes // dtype.itemsize
    zeros = np.zeros(count, np_dtype)
    nothing = zeros[:0]
    inputs = [zeros.copy() if np_dtype.names else np.ones(count, np_dtype) for _ in range(4)]
    op = "minloc" if dtype.kind == "pair" else "sum"
    calls: list[tuple[int, Callable[[Array, list[Array]], object]]] = [
        (2, lambda out, x: np.copyto(out, x[0])),
        (3, lambda out, x: reduce.reduce_arrays(out, x[:2], op)),
        (5, lambda out, x: reduce.reduce_arrays(out, x, op)),
    ]
    if not np_dtype.names:
        calls.append((3, lambda out, x: np.add(x[0], x[1], out=out)))
    rates = []
    for streams, call in calls:
        elapsed = seconds(partial(call, zeros, inputs)) - seconds(partial(call, nothing, [nothing] * 4))
        rates.append(streams * nbytes / max(elapsed, 1e-9) / 1e9)
    return rates


OTHERS = (OneBit(), QSGD(7), TernGrad(), Natural())


def coded(codec: Codec, nbytes: int) -> list[float]:
    """GB/s of memcpy, encode, decode, and sums of two and four operands."""
    x = np.random.default_rng(1).standard_normal(nbytes // 4).astype(np.float32)
    y, wires = np.empty_like(x), np.empty((5, codec.nbytes(len(x))), np.uint8)
    for wire in wires[1:]:
        reduce.encode_array(wire, x, codec)
    calls: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: np.copyto(y, x)),
        (1, lambda: reduce.encode_array(wires[0], x, codec)),
        (1, lambda: reduce.decode_array(y, wires[1], codec)),
        (2, lambda: reduce.fold_arrays(wires[0], [*wires[1:3]], codec, len(x))),
        (4, lambda: reduce.fold_arrays(wires[0], [*wires[1:]], codec, len(x))),
    ]
    return [operands * nbytes / seconds(call) / 1e9 for operands, call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=reduce.levels(), default=reduce.levels()[-1])
    reduce.use_level(parser.parse_args().level)
    print(f"{reduce.features()}\n")
    for name, nbytes in SIZES.items():
        print(f"{name:<14}  GB/s: memcpy   sum k=2   sum k=4    np.add")
        for dtype in DTYPES:
            np_dtype = numpy_dtype(dtype)
            if np_dtype is not None and dtype.kind != "opaque":
                print(f"{dtype.name:<16}" + "".join(f"{rate:10.1f}" for rate in row(dtype, np_dtype, nbytes)))
        print()
        print(f"{name:<14}  GB/s: memcpy    encode    decode   sum k=2   sum k=4")
        for codec in (*CODECS, *OTHERS):
            print(f"{codec.name:<16}" + "".join(f"{rate:10.1f}" for rate in coded(codec, nbytes)))
        print()


if __name__ == "__main__":
    main()
