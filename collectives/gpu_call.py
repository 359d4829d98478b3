"""One call on GPU arrays: the stream that it is ordered in, and what is left to do when all of it has been issued."""

from __future__ import annotations

from typing import Any

from hocket.collectives.buffers import Buffer, empty_like
from hocket.collectives.calls import Call
from hocket.collectives.gpu_fold import GpuFold
from hocket.collectives.lending import current
from hocket.collectives.ops import Resolved
from hocket.collectives.staging import current_stream
from hocket.kernels.ops import OPS


class OnGpu:
    """`apart`: an asynchronous call, which goes into the queue's own stream; `finish` makes the caller's follow it."""

    def __init__(self, accelerator: Any, call: Call, how: Resolved, apart: bool) -> None:
        from hocket.collectives.device import OnStream

        self.call, self.device, self.at = call, accelerator.device, accelerator.accelerated
        here = current_stream(call.model.array, self.device.ordinal)
        self.at.refuse_capture(here)
        self.apart, self.stream = apart, self.at.own_stream() if apart else here
        if apart:
            self.device.follow(self.stream, here)
        if how.expression is not None:
            kernel = self.at.kernel_by(call.model.dtype, how.expression.text)
        else:
            kernel = self.at.kernel(call.model.dtype, OPS[how.code].name) if how.code >= 0 else 0
        self.placed = OnStream(self.at, self.stream, kernel)
        if how.after and call.dst is not None and call.dst.count:
            self.placed.then_scale(call.dst.dtype, call.dst.address, call.dst.count, how.after)
        self.user = GpuFold(how.function, call.model, self.device, self.stream) if how.function is not None else None

    def empty_like(self, model: Buffer) -> Any:
        """An array like the call's, which may be dropped when its use has been issued."""
        with self.device, current(model.array, self.device.ordinal, self.stream):
            return empty_like(model, model.shape)

    def scale(self, out: Buffer, source: Buffer, factor: float) -> None:
        """out = source * factor, in the order of the call's stream."""
        self.at.scale(source.dtype, out.address, source.address, source.count, factor, self.stream)

    def finish(self) -> None:
        """All has been issued: let the caller's stream see it."""
        if self.apart and not self.at.closed:  # else all in that stream is done
            self.device.follow(current_stream(self.call.model.array, self.device.ordinal), self.stream)
