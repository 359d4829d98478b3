"""The ranks meet through one `allGather` of the barrier stage: rank 0 gives its address and a key drawn for this job.

So the key travels through Spark's driver, as protected as Spark's own messages are (`spark.authenticate`,
`spark.network.crypto.enabled`); it is in no command line, no environment and no log.
"""

from __future__ import annotations

from typing import Any

from hocket import Communicator, hosting


class BarrierStore:
    """A store of the one note that rank 0 leaves.  All tasks call `allGather` once: 0 in `set`, the others in `get`."""

    trusted = True  # who reaches the driver can run tasks

    def __init__(self, context: Any) -> None:
        self.context = context
        self.note: str | None = None

    def set(self, key: str, value: str) -> None:
        self.note = self.context.allGather(value)[0]

    def get(self, key: str) -> str | None:
        """Waits for rank 0, the first time."""
        if self.note is None:
            self.note = self.context.allGather("")[0]
        return self.note


def join(context: Any, timeout: float) -> Communicator:
    """The communicator of all tasks of a barrier stage; its ranks are their partitions.  All tasks call it."""
    hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
    rank, size = context.partitionId(), len(hosts)
    other = next((host for host in hosts if host != hosts[rank]), "127.0.0.1")
    host = hosting.own_address(other)  # which reaches the other hosts; their names alone may mean loopback
    return hosting.join(rank, size, BarrierStore(context), host, timeout, make_default=False)
