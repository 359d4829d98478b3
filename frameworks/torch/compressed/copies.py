"""A CUDA tensor's copy in host memory, there and back, beside what the GPU computes meanwhile."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


class HostCopy:
    """Begins behind what the current stream has now, in a stream of its own; `host` is there after `arrived`.

    The memory is pinned, and torch keeps it for the next copy of this size.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.host = x, torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(x.device)
        self._stream.wait_stream(cuda.current_stream(x.device))
        with self.stream():
            self.host.copy_(x, non_blocking=True)
        x.record_stream(self._stream)

    def stream(self) -> AbstractContextManager[Any]:
        """Make its stream the current one."""
        used: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return used

    def arrived(self) -> None:
        """Wait, on the host."""
        self._stream.synchronize()

    def back(self) -> None:
        """x gets what `host` holds, in the stream."""
        with self.stream():
            self.x.copy_(self.host, non_blocking=True)
