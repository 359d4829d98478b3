"""hocket inside JAX: collectives in programs that jax.jit compiles for the CPU.

    calls.py         what users call, with the checks of arguments
    start.py         `initialize`: jax.distributed, with hocket under JAX's own collectives (hocket.xla); `explain`;
                     `init`: where it has started the processes, they meet through its key-value store
    causes.py        `cause`: hocket's own error behind JAX's; what happens at the end of the process

    primitives.py    the calls as primitives of JAX: shapes, vmap, and how each runs on NumPy arrays
    gradients.py     their derivatives
    order.py         one ordered effect keeps all calls in program order

    running.py       from a compiled call's text to the function that carries it out
    handler.pyx      what XLA calls: its buffers become NumPy arrays, without a copy
    xla_ffi.pxd      the parts of XLA's C interface that this takes
"""

from hocket.arguments import installed
from hocket.xla import loading

loading.prepare()  # before jax is imported, which reads once which library carries out its collectives

# isort: split
with installed("jax"):
    from hocket.jax.calls import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        recv,
        reduce,
        reduce_scatter,
        send,
        sendrecv,
    )
from hocket.jax.causes import cause  # noqa: E402
from hocket.jax.start import explain, init, initialize, renew  # noqa: E402

__all__ = [
    "allgather", "allreduce", "alltoall", "barrier", "broadcast", "cause", "explain", "init", "initialize", "recv",
    "reduce", "reduce_scatter", "renew", "send", "sendrecv",
]  # fmt: skip
