"""Communication hooks of DDP: compression with what it owes, and one that torch allows to other backends only."""

from __future__ import annotations

from typing import Any

import torch

from hocket.errors import ArgumentError
from hocket.torch.register import NAME


def compress(module: Any, method: Any, feedback: bool = True, decay: float = 1.0) -> Any:
    """Let a DDP module average its gradients by a method of `hocket.compression`.  Returns the `Compressor`.

    Its keys are the parameters' names; its `state_dict()` belongs into this rank's checkpoint.  float32 on the CPU.  A
    bucket's gradients are averaged together, in the thread of the backward pass, which so waits for them.
    """
    from hocket.compression import Compressor

    group = getattr(module, "process_group", None)
    comm = getattr(group, "comm", None) or getattr(_backend(group), "comm", None)
    if comm is None or not hasattr(module, "register_comm_hook"):
        got = type(module).__name__
        raise ArgumentError(f"compress takes a DistributedDataParallel whose group is {NAME!r}, got {got}")
    compressor = Compressor(comm, method, feedback, decay)
    names = {id(parameter): name for name, parameter in module.module.named_parameters()}

    def compressed(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        begin, whole, parts = 0, bucket.buffer(), []
        for parameter in bucket.parameters():  # as they lie in the bucket
            parts.append(whole[begin : begin + parameter.numel()].view(parameter.shape))
            begin += parameter.numel()
        compressor.allreduce_all(parts, [names[id(parameter)] for parameter in bucket.parameters()])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(whole)
        return done

    module.register_comm_hook(None, compressed)
    return compressor


def _backend(group: Any) -> Any:
    """What carries the calls of torch's own group on the CPU; None if it has none."""
    try:
        return group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError):
        return None


def bf16_compress_hook(process_group: Any, bucket: Any) -> Any:
    """torch's hook of that name: gradients travel as bfloat16.  `model.register_comm_hook(None, bf16_compress_hook)`.

    torch's own is refused for every backend but NCCL and XCCL.  hocket adds bfloat16 up in float32 and rounds once.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook as torchs

    future: torch.futures.Future[torch.Tensor] = torchs(process_group, bucket)
    return future


# What DDP looks at: the name, and annotations, which it wants to be classes where there are any.
bf16_compress_hook.__name__, bf16_compress_hook.__annotations__ = "hocket_bf16_compress_hook", {}
