"""Kernels of kernels/gpu/catalogue.py as functions of a GPU: compiled for it when they are first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.gpu.source import module_source
from hocket.system.cuda import nvrtc

if TYPE_CHECKING:
    from hocket.system.cuda.driver import Device


def function(device: Device, kernel: kernels.Kernel) -> int:
    """The CUfunction of `kernel` on this GPU."""
    major, minor = device.capability

    def load() -> bytes:
        text, options = module_source(kernel.module)
        return nvrtc.compile(text, options, 10 * major + minor, kernel.name)[0]

    return device.function(kernel.module, kernel.name, load)
