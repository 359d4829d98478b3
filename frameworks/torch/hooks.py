"""Communication hooks of DDP that torch allows to other backends only, by the hook's name."""

from __future__ import annotations

from typing import Any

import torch


def bf16_compress_hook(process_group: Any, bucket: Any) -> Any:
    """torch's hook of that name: gradients travel as bfloat16.  `model.register_comm_hook(None, bf16_compress_hook)`.

    torch's own is refused for every backend but NCCL and XCCL.  hocket adds bfloat16 up in float32 and rounds once.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook as torchs

    future: torch.futures.Future[torch.Tensor] = torchs(process_group, bucket)
    return future


# What DDP looks at: the name, and annotations, which it wants to be classes where there are any.
bf16_compress_hook.__name__, bf16_compress_hook.__annotations__ = "hocket_bf16_compress_hook", {}
