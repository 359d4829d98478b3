"""One call on GPU arrays: the stream that it is ordered in, and what is left to do when all of it has been issued."""

from __future__ import annotations

from hocket.collectives.arrays.streams import current_stream
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.gpu.context import GpuContext
from hocket.collectives.gpu.delegate import words_of
from hocket.collectives.gpu.fold import GpuFold
from hocket.collectives.gpu.meeting import KERNELS
from hocket.collectives.gpu.stream_ops import OnStream, refuse_capture
from hocket.collectives.plans.plan import Plan
from hocket.kernels.dtypes import DTYPES
from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.ops import OPS


class OnGpu:
    """`apart`: an asynchronous call, which goes into the queue's own stream; `finish` makes the caller's follow it."""

    def __init__(self, context: GpuContext, call: Call, how: Resolved, plan: Plan, apart: bool) -> None:
        self.call, self.device = call, context.device
        self.at = context.ops
        here = current_stream(call.model.array, self.device.ordinal)
        if apart or not plan.meets:
            refuse_capture(self.device, here)
        self.apart, self.stream = apart, self.at.own_stream() if apart else here
        if apart:
            self.device.follow(self.stream, here)
        self.placed = OnStream(self.at, self.stream, **self._kernels(how, plan))
        if plan.algorithm == "nccl":
            assert context.nccl is not None
            self.placed.delegate(context.nccl, *words_of(context.nccl, call, how))
        elif plan.meets:
            self._meet(call, plan.algorithm, how)
        self.user = GpuFold(how.function, call.model, self.device, self.stream) if how.function is not None else None

    def _kernels(self, how: Resolved, plan: Plan) -> dict[str, int]:
        """The functions that the plan's instructions launch, by what they do."""
        own, wire = self.call.model.dtype.name, DTYPES[plan.dtype].name
        wanted: dict[str, kernels.Kernel] = {}
        if plan.coded is not None:
            wanted = kernels.coders(plan.coded)._asdict()
            if self.call.residuals:
                kept = kernels.keepers(plan.coded)
                wanted |= {"encode_kept": kept.encode, "fold_kept": kept.fold, "add": kernels.reduce(own, "sum")}
        elif self.call.encoded is not None:
            wanted = {"encode": kernels.cast(own, wire), "decode": kernels.cast(wire, own)}
        elif how.before is not None or how.after is not None:
            wanted = {"scale": kernels.scale(own)}
        reduce, text = None, None
        if how.expression is not None:
            text = how.expression.text
            reduce = kernels.reduce_by(own, text)
        elif how.code >= 0 and (plan.coded is None or plan.mixed):
            reduce = kernels.reduce(wire, OPS[how.code].name)
        if reduce is not None and not plan.meets:
            wanted |= {"reduce": reduce, "many": kernels.many(reduce)}
        return {name: self.at.function(kernel, self.stream, text) for name, kernel in wanted.items()}

    def _meet(self, call: Call, algorithm: str, how: Resolved) -> None:
        """Let one kernel of each rank carry out the call, as the context `carries` it."""
        assert call.src is not None and call.dst is not None
        name, dtype, expression = KERNELS[call.collective, algorithm], call.src.dtype.name, None
        if how.expression is not None:
            expression = how.expression.text
            kernel = getattr(kernels.shots_by(dtype, expression), name)
        elif name == "allgather":
            kernel = kernels.ALLGATHER
        else:
            kernel = getattr(kernels.shots(dtype, OPS[how.code].name), name)
        count = call.src.nbytes if name == "allgather" else call.dst.count
        self.placed.meet(kernel, call.src.nbytes, count, expression)

    def finish(self) -> None:
        """All has been issued: let the caller's stream see it."""
        if self.apart and not self.at.closed:  # once closed, all work of that stream has ended
            self.device.follow(current_stream(self.call.model.array, self.device.ordinal), self.stream)
