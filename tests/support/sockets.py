"""The bytes that a call really costs, as the kernel counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.collectives.communicator.communicator import Communicator
from hocket.system.machine import tcp_info


def sent(comm: Communicator, call: Callable[..., Any], *args: Any, **how: Any) -> int:
    """The bytes that the sockets of this rank send for `call(*args, **how)`, the second time."""
    call(*args, **how)
    comm.barrier()
    engine = comm.membership.main.engine

    def acknowledged() -> int:
        total = 0
        for fd in {fd for _, fd in engine.descriptors()}:
            total += tcp_info(fd)["bytes_acked"]
        return total

    begin = acknowledged()
    call(*args, **how)
    comm.barrier()
    return acknowledged() - begin
