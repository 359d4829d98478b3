"""`init()`: the processes that jax.distributed has started meet through its key-value store.

Rank 0 leaves its address there, and a key drawn for this job.  Without HOCKET_SECRET whoever reaches the coordinator
can read that, and JAX asks nobody who it is.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import distributed

import hocket
from hocket import Communicator, hosting
from hocket.jax import running

PREFIX = "hocket/jax/"


class JaxStore:
    """The store of jax.distributed, as `hocket.init` asks it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def set(self, key: str, value: str) -> None:
        self.client.key_value_set(PREFIX + key, value, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        try:
            return str(self.client.key_value_try_get(PREFIX + key))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def first(self, key: str, value: str) -> str:
        try:
            self.client.key_value_set(PREFIX + key, value)
            return value
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise
        return str(self.client.key_value_try_get(PREFIX + key))

    def clear(self) -> None:
        self.client.key_value_delete(PREFIX)


def init(*, timeout: float | None = None, make_default: bool = True, **options: Any) -> Communicator:
    """`hocket.init`; after jax.distributed.initialize(), its processes are the ranks, and its ids their numbers.

    `timeout`: seconds for all ranks to come (60).  `options` are those of hocket.init.  All ranks call it.

    Programs hold the communicator that they were traced with.  So if there was one before, JAX forgets all compiled
    programs (jax.clear_caches), and traces them again with the new one.
    """
    comm = _joined(timeout=timeout, make_default=make_default, **options)
    if running.known() and make_default:
        running.begin_anew()
        jax.clear_caches()
    return comm


def _joined(*, timeout: float | None, make_default: bool, **options: Any) -> Communicator:
    state = distributed.global_state
    if state.client is None:
        return hocket.init(timeout=timeout, make_default=make_default, **options)
    rank, size = int(state.process_id), int(state.num_processes)
    coordinator = str(state.coordinator_address).rpartition(":")[0]
    host = hosting.own_address(coordinator)
    store = JaxStore(state.client)
    try:
        return hosting.join(rank, size, store, host, timeout, make_default=make_default, **options)
    finally:
        if rank == 0:
            store.clear()
