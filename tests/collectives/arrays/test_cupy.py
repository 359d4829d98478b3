"""The real CuPy where there is no driver: host arrays are as they were, and it lends memory as borrowed.py expects.

Part of `make test-gpu`, whose extra brings CuPy.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hocket.collectives.arrays import borrowed

pytestmark = pytest.mark.gpu

WITHOUT_A_DRIVER = """
import cupy, numpy as np
import hocket
assert not cupy.is_available()
with hocket.local_world(2) as world:
    assert world.run(lambda comm: comm.allreduce(np.ones(3)).tolist()) == [[2.0] * 3] * 2
assert hocket.init().allreduce(np.ones(3)).tolist() == [1.0] * 3
host = np.ones(8, np.float32)
memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, device_id=0)
x = cupy.ndarray(8, np.float32, cupy.cuda.MemoryPointer(memory, 0))
try:
    hocket.allreduce(x)
except cupy.cuda.runtime.CUDARuntimeError as error:
    assert "cudaErrorInsufficientDriver" in str(error)
else:
    raise AssertionError("an array that no GPU has")
assert hocket.allreduce(host)[0] == 1
"""


def test_host_arrays_where_cupy_finds_no_driver() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_DRIVER], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]


def test_memory_is_lent_as_cupys() -> None:
    import cupy
    host = np.arange(8, dtype=np.float32)

    def array(address: int, count: int) -> object:
        memory = cupy.cuda.UnownedMemory(address, 4 * count, None, device_id=0)
        return cupy.ndarray(count, np.float32, cupy.cuda.MemoryPointer(memory, 0))

    lent = borrowed.lend(array(host.ctypes.data, 8), host.ctypes.data + 8, 16, 0, 5)
    assert isinstance(lent, cupy.ndarray) and lent.data.ptr == host.ctypes.data + 8
    assert lent.shape == (4,) and lent.dtype == np.float32 and lent.flags.c_contiguous
    assert callable(cupy.ElementwiseKernel("T a, T b", "T c", "c = a > b ? a : b", "larger"))
