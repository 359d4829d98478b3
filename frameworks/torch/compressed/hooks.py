"""Communication hooks: compression with what it owes, for DDP and FSDP2; one that torch keeps for other backends."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import torch

from hocket.errors import ArgumentError
from hocket.torch.compressed.buckets import Buckets, checked
from hocket.torch.group.carrier import carrier, comm_of
from hocket.torch.register import NAME

told = logging.getLogger("hocket.torch.compress")
told.setLevel(logging.INFO)  # what was chosen is shown whatever HOCKET_LOG is: who asks for "auto" wants to know it

if TYPE_CHECKING:
    from hocket.compression.choice.fastest import Measured
    from hocket.torch.compressed.rates import Rates


def compress(
    module: Any, method: Any, feedback: bool = True, decay: float = 1.0, gather: bool = False, lr: Any = None,
    keep: str = "gpu",
) -> Any:
    """Let a module average its gradients by a method of `hocket.compression`.  Returns the `Compressor`.

    `module`: a DistributedDataParallel, or one that `fully_shard` was called on, whose group is hocket's; float32.  A
    bucket of DDP's is averaged as one, in a thread and by a communicator of the Compressor's own, while the backward
    pass goes on.  FSDP2's wait.  All ranks call this together.  DDP's parameters may be on a GPU: a bucket is averaged
    where it is, in a stream beside the backward pass, or for methods that work in host memory alone as a copy there;
    `keep="host"`: what is owed lies in host memory meanwhile.

    A backward pass of DDP's counts as a whole: a NaN or an infinity in one gradient makes all of them NaN, on all
    ranks, and what is owed stays as it was, so a step that is skipped for it loses nothing.  It is a `step()` of the
    Compressor already, and fails inside another.  What is owed to a parameter that no rank has used
    (find_unused_parameters=True) stays, too.  FSDP2's modules count each by itself.

    `lr`: the optimizer, whose learning rates are read in each backward pass, or a function that returns the rate.  When
    it changes, what is owed is rescaled, as in `Compressor.allreduce`; without `lr` it is not.  With a gradient scaler:
    `lr=lambda: optimizer.param_groups[0]["lr"] / scaler.get_scale()`.

    The keys are the names of DDP's parameters, or of FSDP2's modules.  `state_dict()` is of this rank, and belongs into
    its checkpoint; `hocket.torch.Checkpointed` puts it into one of torch.distributed.checkpoint.

    method="auto" measures int8, int4, powersgd:4 and topk:0.01 on gradients of the module's shapes, over its group's
    links, and says what it found ("powersgd:4: 267 ms -> 35 ms"), in rank 0's log and in the `report` of what it
    returns.  It returns None, and changes nothing, where float32 is as fast.  DDP only.

    FSDP2 wants a codec of blocks ("int8", "int4", ...): rows of gradients are encoded once.  `gather=True`: parameters
    come by what changed since they were gathered last; each rank then keeps a copy of all of them.
    """
    from hocket.compression import Compressor
    from hocket.torch.compressed.rates import Rates

    rates, found = Rates(lr), None
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp and isinstance(module, fsdp.FSDPModule):
        from hocket.torch.compressed.sharded import shard_comm, use

        comm = comm_of(shard_comm(module))
        compressor = Compressor(comm, method, feedback, decay, keep) if comm else None
        if compressor:
            use(module, compressor, gather, rates)
    else:
        comm = comm_of(getattr(module, "process_group", None)) if hasattr(module, "register_comm_hook") else None
        if comm and gather:
            raise ArgumentError("gather=True is for modules that fully_shard was called on: DDP gathers nothing")
        if comm and checked(module) and method == "auto":
            found = _fastest(module, comm)
            if found.method is None:
                return None
            method = found.method
        compressor = Compressor(comm.dup(), method, feedback, decay, keep) if comm and checked(module) else None
        if compressor:
            compressor.report = str(found) if found else None
            _hook(module, compressor, rates)
    if compressor is None:
        got = type(module).__name__
        group = getattr(module, "process_group", None)
        whose = f" whose group is {carrier(group)}" if group is not None else ""
        raise ArgumentError(f"compress takes a DistributedDataParallel or FSDPModule of {NAME!r}, got {got}{whose}")
    return compressor


def _fastest(module: Any, comm: Any) -> Measured:
    from hocket.compression import choose

    found = choose(comm, [tuple(p.shape) for p in module.parameters() if p.requires_grad])
    if comm.rank == 0:
        told.info("compress: %s", found)
    return found


def _hook(module: Any, compressor: Any, rates: Rates) -> None:
    module.register_comm_hook(None, Compressed(Buckets(module, compressor, rates)))


class Compressed:
    """DDP's hook.  It is saved and copied with a module, as torch's hooks are, but without what it holds: torch makes
    loaded modules and copies without hooks, so they average in full until `compress` is called on them."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.__name__ = self.__qualname__ = "hocket_compress"  # DDP logs it

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        return self._buckets.average(bucket)

    def __reduce__(self) -> Any:
        return _in_full, ()


def _in_full() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return allreduce_hook


def bf16_compress_hook(process_group: Any, bucket: Any) -> Any:
    """torch's hook of that name: gradients travel as bfloat16.  `model.register_comm_hook(None, bf16_compress_hook)`.

    torch's own is refused for every backend but NCCL and XCCL.  hocket adds bfloat16 up in float32 and rounds once.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook as torchs

    future: torch.futures.Future[torch.Tensor] = torchs(process_group, bucket)
    return future


# What DDP looks at: the name, and annotations, which it wants to be classes where there are any.
bf16_compress_hook.__name__, bf16_compress_hook.__annotations__ = "hocket_bf16_compress_hook", {}
