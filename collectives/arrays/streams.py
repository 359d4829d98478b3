"""In which CUDA stream a call on GPU arrays is ordered."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hocket.errors import ArgumentError

LEGACY = 1
"""The CUDA stream that every other one waits for (CU_STREAM_LEGACY)."""
_asked = threading.local()


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Order this thread's calls on GPU arrays in this stream, inside the block.

    `stream`: anything with `__cuda_stream__` (as CuPy's, torch's and cuda.core's have), or its address; 0 is the legacy
    stream.  outside_group of such a block CuPy's and torch's arrays use their library's current stream; others use what
    `__cuda_array_interface__` says, or the legacy stream.  Raises ArgumentError.

    >>> import hocket
    >>> with hocket.on_stream(0):
    ...     pass
    """
    before = getattr(_asked, "stream", None)
    _asked.stream = _address(stream)
    try:
        yield
    finally:
        _asked.stream = before


def _address(stream: Any) -> int:
    if hasattr(stream, "__cuda_stream__"):
        version, stream = stream.__cuda_stream__()
        if version != 0:
            raise ArgumentError(f"on_stream: version {version} of __cuda_stream__ is unknown; hocket reads version 0")
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < 0:
        raise ArgumentError(f"on_stream: {stream!r} is not a stream: pass one with __cuda_stream__, or an address")
    return stream or LEGACY


def is_asked() -> bool:
    """Is this thread inside an `on_stream` block?"""
    return getattr(_asked, "stream", None) is not None


def current_stream(array: Any, device: int) -> int:
    """The stream of this GPU that the caller works on."""
    asked: int | None = getattr(_asked, "stream", None)
    return library_stream(array, device) if asked is None else asked


def library_stream(array: Any, device: int) -> int:
    """The stream in which the array's own library works now."""
    if hasattr(array, "data_ptr"):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return int(getattr(array, "__cuda_array_interface__", {}).get("stream") or LEGACY)
