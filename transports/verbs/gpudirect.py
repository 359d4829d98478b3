"""Can a network card read and write a GPU's memory here?  Asked of the drivers, never assumed.

The CUDA driver exports a range of device memory as a dma-buf, which ibv_reg_dmabuf_mr registers (Device.pin).
No kernel module of NVIDIA's (nvidia-peermem) is needed; Linux 5.12 and a driver that offers it are.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from hocket.errors import TransportError
from hocket.transports.verbs.device import library, registers_dma_bufs

DRIVER = "libcuda.so.1"
DMA_BUF_SUPPORTED = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
PAGE = 65536  # of device memory: what is exported begins and ends at multiples


@functools.cache
def _driver() -> Any:
    """The CUDA driver, or why there is none."""
    try:
        cuda = ctypes.CDLL(DRIVER)
    except OSError as why:
        return str(why)
    code = cuda.cuInit(0)
    return f"the CUDA driver does not start (error {code})" if code else cuda


def refusal(device: int = 0) -> str | None:
    """None, or why the memory of CUDA device number `device` cannot be registered with an RDMA device."""
    why = library()
    if why:
        return why
    if not registers_dma_bufs():
        return "libibverbs is older than 34: it has no ibv_reg_dmabuf_mr"
    driver = _driver()
    if isinstance(driver, str):
        return driver
    handle, offers = ctypes.c_int(), ctypes.c_int()
    code = driver.cuDeviceGet(ctypes.byref(handle), device)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(offers), DMA_BUF_SUPPORTED, handle)
    if code:
        return f"there is no CUDA device {device} (error {code})"
    return None if offers.value else "the CUDA driver does not offer its memory as dma-bufs"


def dma_buf(address: int, nbytes: int) -> tuple[int, int]:
    """(descriptor, offset) of a dma-buf that holds this device memory.  The caller closes the descriptor."""
    driver = _driver()
    if isinstance(driver, str):
        raise TransportError(driver)
    first = address // PAGE * PAGE
    length = (address + nbytes - first + PAGE - 1) // PAGE * PAGE
    descriptor = ctypes.c_int(-1)
    code = driver.cuMemGetHandleForAddressRange(
        ctypes.byref(descriptor), ctypes.c_ulonglong(first), ctypes.c_size_t(length), DMA_BUF_FD, ctypes.c_ulonglong(0)
    )
    if code:
        raise TransportError(f"the CUDA driver does not export {nbytes} bytes at {address:#x} (error {code})")
    return descriptor.value, address - first
