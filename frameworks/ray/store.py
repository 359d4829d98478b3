"""The ranks meet through Ray's key-value store, where rank 0 leaves its address and a key drawn for this group.

The note is removed as soon as all ranks are there, or rank 0 has given up.  Its name has Ray's namespace in it, as the
names of actors do, so that two jobs on one cluster can each have a group "default".
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import ray
from ray.experimental import internal_kv

from hocket import Communicator, hosting

SPACE = b"hocket"
"""The keys' namespace in Ray's store."""


class RayStore:
    """Ray's store, as `hocket.init` asks it."""

    trusted = True  # who reaches it can start actors

    def __init__(self, group: str) -> None:
        parts = ray.get_runtime_context().namespace, group
        self.prefix = "".join(quote(part, safe="") + "/" for part in parts)
        """Without the slashes of names, so that no group's is the beginning of another's."""

    def set(self, key: str, value: str) -> None:
        internal_kv._internal_kv_put(self.prefix + key, value, namespace=SPACE)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = internal_kv._internal_kv_get(self.prefix + key, namespace=SPACE)
        return found

    def first(self, key: str, value: str) -> bytes:
        internal_kv._internal_kv_put(self.prefix + key, value, overwrite=False, namespace=SPACE)
        found: bytes | None = self.get(key)
        assert found is not None
        return found

    def clear(self) -> None:
        internal_kv._internal_kv_del(self.prefix, del_by_prefix=True, namespace=SPACE)


def join(group: str, rank: int, size: int, timeout: float | None = None, **options: Any) -> Communicator:
    """The communicator of the ranks that call this with the same `group`.  Called in a task or an actor."""
    store = RayStore(group)
    try:
        return hosting.join(rank, size, store, ray.util.get_node_ip_address(), timeout, **options)
    finally:
        if rank == 0:
            store.clear()
