"""A CUDA tensor in a stream beside what the GPU computes meanwhile: where it is, or as a copy in host memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


class InPlace:
    """`seen` may be read and written inside `stream()`, behind what the current stream has now."""

    def __init__(self, x: torch.Tensor, stream: Any) -> None:
        cuda: Any = torch.cuda
        self.x, self._stream, self.seen = x, stream, x
        stream.wait_stream(cuda.current_stream(x.device))
        x.record_stream(stream)

    def stream(self) -> AbstractContextManager[Any]:
        """Make its stream the current one."""
        used: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return used

    def arrived(self) -> None:
        """`seen` is there."""

    def back(self) -> None:
        """x gets what `seen` holds, in the stream."""


class HostCopy(InPlace):
    """`seen` is a NumPy array, in memory that is pinned; torch keeps it for the next copy of this size."""

    def __init__(self, x: torch.Tensor, stream: Any) -> None:
        super().__init__(x, stream)
        self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        with self.stream():
            self._host.copy_(x, non_blocking=True)
        self.seen = self._host.numpy()  # type: ignore[assignment]

    def arrived(self) -> None:
        """Wait, on the host."""
        self._stream.synchronize()

    def back(self) -> None:
        with self.stream():
            self.x.copy_(self._host, non_blocking=True)
