"""Where an array lies: the one place that asks, for calls and for all that is built on them.

No GPU library is imported here: the array brings its own.
"""

from __future__ import annotations

from typing import Any

import numpy

HOST = -1
"""NumPy can see its memory."""
ELSEWHERE = -2
"""Neither NumPy nor CUDA can: another device, or a GPU that no driver here knows."""


def gpu_of(array: Any) -> int:
    """The GPU that it is on; HOST or ELSEWHERE.  What is no array at all is the host's."""
    if isinstance(array, numpy.ndarray):
        return HOST
    kind = getattr(getattr(array, "device", None), "type", None)
    if isinstance(kind, str):  # torch's
        return int(array.get_device()) if kind == "cuda" else HOST if kind == "cpu" else ELSEWHERE
    if not hasattr(array, "__cuda_array_interface__"):
        return HOST
    if hasattr(array, "device"):
        return int(array.device.id)
    from hocket.system.cuda import driver  # only a process with arrays on a GPU needs it

    address = array.__cuda_array_interface__["data"][0]  # an array without elements has none
    found = driver.device_of(address) if address else driver.current()
    return found if found >= 0 else ELSEWHERE


def on_host(array: Any) -> bool:
    """Can NumPy see its memory?"""
    return gpu_of(array) == HOST


def place(array: Any) -> str:
    """For an error: where it lies."""
    return "in host memory" if on_host(array) else f"on {getattr(array, 'device', 'a GPU')}"
