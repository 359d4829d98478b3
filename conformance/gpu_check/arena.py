"""All buffers of a launch in one piece of memory, with poison between them, fetched whole to find stray writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.oracle import Array, same
from hocket.kernels.dtypes import DType
from hocket.kernels.gpu.catalogue import Kernel

POISON, GUARD = 0xA5, 64


class Spot(NamedTuple):
    start: int
    nbytes: int
    address: int


class Arena:
    """Memory of the GPU and its image in the host's."""

    def __init__(self, gpu: Gpu, nbytes: int = 24 << 20) -> None:
        self.gpu, self.used = gpu, 0
        self.image, self.after = np.full(nbytes, POISON, np.uint8), np.empty(nbytes, np.uint8)
        self.address = gpu.alloc(nbytes)

    def clear(self) -> None:
        self.image[: self.used] = POISON
        self.used = 0

    def room(self, nbytes: int, offset: int = 0) -> Spot:
        """`offset` past a multiple of 64, with poison around it."""
        start = -(-(self.used + GUARD) // 64) * 64 + offset
        self.used = start + nbytes + GUARD
        return Spot(start, nbytes, self.address + start)

    def put(self, x: Array, offset: int = 0) -> Spot:
        spot = self.room(x.nbytes, offset)
        self.image[spot.start : spot.start + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
        return spot

    def run(self, kernel: Kernel, grid: int, *values: Any) -> None:
        device, used = self.gpu.device, self.used
        device.copy(self.address, self.image.ctypes.data, used, 0)
        self.gpu.launch(kernel, grid, *values)
        device.copy(self.after.ctypes.data, self.address, used, 0)
        device.synchronize(0)

    def wrong(self, *results: tuple[Spot, DType, Array]) -> str:
        """The differences from these results, and from the image everywhere else."""
        want = self.image[: self.used].copy()
        for spot, _, expected in results:
            where = slice(spot.start, spot.start + spot.nbytes)
            got = np.frombuffer(self.after[where].tobytes(), expected.dtype)
            bad = np.flatnonzero(~same(got, expected))
            if len(bad):
                return f"{len(bad)} of {len(got)}, first {bad[0]}: {got[bad[0]]!r}, not {expected[bad[0]]!r}"
            want[where] = self.after[where]
        changed = np.flatnonzero(want != self.after[: self.used])
        return f"{len(changed)} bytes beside the result were written" if len(changed) else ""
