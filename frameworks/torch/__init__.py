"""hocket under torch.distributed: `init_process_group("hocket")`, and everything that stands on it.

Importing torch makes the name known (the entry point `torch.backends`); where that is switched off, import this.

    register.py      the name, and what makes a group of it
    group/           from that name to hocket's communicator, and the group's end
    calls/           a call under torch's name, and what comes of it
    errors.py        hocket's errors, of classes that torch's users catch
    callers.py       errors name no lines of torch's
    memory.py        tensors that the ranks of a host share, and FSDP2's buffers
    compressed/      gradients of DDP and FSDP2 with fewer bits
    training/        DistributedOptimizer; Served and ServedEmbedding; a module's parameters for `hocket.training`;
                     callbacks of Lightning and Hugging Face's Trainer
    functions.py     collectives through which gradients flow: what models are made of
    elastic.py       the default group of a communicator, and of the next generation's; groups whose members change
    layouts.py       DTensors on another mesh
    check.py         do all ranks hold the same model?
    profiled.py      what torch's profiler saw, in hocket's traces
    debug.py         a page of hocket's calls in torch's debug HTTP server
    torchft.py       a group that is made again while training goes on
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hocket.arguments import installed

with installed("torch"):
    from hocket.torch.check import check
from hocket.torch.compressed.hooks import bf16_compress_hook, compress
from hocket.torch.compressed.states import with_arrays, with_tensors
from hocket.torch.elastic import is_loss, reconfigurable, renew, use
from hocket.torch.group.monitor import monitored_barrier
from hocket.torch.profiled import into_trace
from hocket.torch.register import register

if TYPE_CHECKING:
    from hocket.torch.compressed.sharded import Checkpointed as Checkpointed
    from hocket.torch.debug import debug_handlers as debug_handlers
    from hocket.torch.layouts import redistribute as redistribute
    from hocket.torch.memory import empty as empty
    from hocket.torch.training.module import Served as Served
    from hocket.torch.training.optimizer import DistributedOptimizer as DistributedOptimizer
    from hocket.torch.training.served import ServedEmbedding as ServedEmbedding

__all__ = [
    "Checkpointed", "DistributedOptimizer", "Served", "ServedEmbedding", "bf16_compress_hook", "check", "compress",
    "debug_handlers", "empty", "into_trace", "is_loss", "monitored_barrier", "reconfigurable", "redistribute",
    "register", "renew", "use", "with_arrays", "with_tensors",
]  # fmt: skip
LATER = {
    "Checkpointed": "compressed.sharded",
    "DistributedOptimizer": "training.optimizer",
    "Served": "training.module",
    "ServedEmbedding": "training.served",
    "debug_handlers": "debug",
    "empty": "memory",
    "redistribute": "layouts",
}
"""Names that few programs use, and their modules."""


def __getattr__(name: str) -> Any:
    """Load names that few programs use when they do."""
    if name in LATER:
        return getattr(import_module(f"hocket.torch.{LATER[name]}"), name)
    raise AttributeError(f"module 'hocket.torch' has no attribute {name!r}")


register()
