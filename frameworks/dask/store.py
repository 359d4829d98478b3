"""The ranks meet through a variable of the scheduler, where rank 0 leaves its address and a key drawn for this job.

So the key travels on the connections between the workers and the scheduler, encrypted where the cluster uses TLS; it is
in no command line, no environment, no task's arguments and no log.  The variable goes as soon as all ranks are there.
"""

from __future__ import annotations

from typing import Any

import distributed
from distributed.comm.addressing import get_address_host

from hocket import Communicator, hosting


class DaskStore:
    """A variable, as `hocket.init` asks it.  There is one key."""

    trusted = True  # who reaches the scheduler can run tasks

    def __init__(self, job: str, timeout: float) -> None:
        self.variable: Any = distributed.Variable(job, client=distributed.get_client())
        self.timeout = timeout

    def set(self, key: str, value: str) -> None:
        self.variable.set(value)

    def get(self, key: str) -> str | None:
        """Waits for it at the scheduler, which would log each question in vain."""
        try:
            return str(self.variable.get(timeout=self.timeout))
        except TimeoutError:
            return None

    def clear(self) -> None:
        self.variable.delete()


def join(job: str, rank: int, size: int, timeout: float) -> Communicator:
    """Called in a task: the communicator of all tasks that call it with this `job`."""
    store = DaskStore(job, timeout)
    host = get_address_host(distributed.get_worker().address)
    try:
        return hosting.join(rank, size, store, host, timeout, make_default=False)
    finally:
        if rank == 0:
            store.clear()
