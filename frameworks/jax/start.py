"""`initialize()`: JAX's processes, with hocket under them.  `init()`: they meet through JAX's key-value store.

Rank 0 leaves its address there, and a key drawn for this job.  Without HOCKET_SECRET whoever reaches the coordinator
can read that, and JAX asks nobody who it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.extend.backend import clear_backends

import hocket
from hocket import Communicator, hosting
from hocket.jax import running
from hocket.xla import loading
from hocket.xla.store import JaxStore

PREFIX = "hocket/jax/"


def initialize(*args: Any, **given: Any) -> None:
    """`jax.distributed.initialize`, after which JAX's own collectives are hocket's: psum, shard_map, what pjit inserts.

    Without arguments the processes are those that a launcher has started which `hocket.init` knows.  Arguments are
    passed on as they are.  A program that has chosen Gloo keeps Gloo.  The default communicator stays what it was.

    Raises ImportError if jax was imported before hocket's library could be named to it, or cannot load it.
    """
    chosen = jax.config.jax_cpu_collectives_implementation
    wanted = os.environ.get(loading.CHOICE, "mpi") == "mpi" and (loading.CHOICE not in os.environ or chosen == "mpi")
    if wanted and not loading.loaded():
        raise ImportError(loading.LATE.format(why=loading.refusal(os.environ) or "jax was imported before hocket.jax"))
    if args or given:
        jax.distributed.initialize(*args, **given)
    else:
        with hocket.init(make_default=False) as comm:
            text = f"{hosting.own_address()}:{_free_port()}".encode() if comm.rank == 0 else b""
            where = comm.broadcast(np.frombuffer(text.ljust(300), np.uint8).copy()).tobytes().decode().strip()
            rank, size = comm.rank, comm.size
        jax.distributed.initialize(where, size, rank)
    if wanted:
        jax.config.update("jax_cpu_collectives_implementation", "mpi")


def explain(collective: str | None = None, nbytes: int | None = None) -> str:
    """Say by what JAX's own collectives go: hocket or another, and for each group of devices what `comm.explain` says.

    Groups are those that programs have needed in this process by now.
    """
    chosen = jax.config.jax_cpu_collectives_implementation
    if chosen != "mpi" or not loading.loaded():
        return f"JAX's own collectives go by {chosen}, not by hocket"
    from hocket.xla import meeting  # where XLA has made its backend, this is there

    return f"JAX's own collectives go by hocket\n{meeting.explained(collective, nbytes)}"


def renew(coordinator_address: str, num_processes: int, process_id: int, **given: Any) -> None:
    """`initialize` again, in processes that go on after others were lost: they agree on the three numbers.

    All arrays and compiled programs of before are gone.  Before the first `initialize` set
    jax.config.update("jax_enable_recoverability", True): else JAX's coordination service ends who is left.
    Take another address than before: then the old service stays until all have met at the new one.  JAX ends a process
    whose service goes while it leaves.
    """
    state, before = distributed.global_state, None
    if coordinator_address != state.coordinator_address:  # the others may still be leaving it
        before, state.service = state.service, None
    with contextlib.suppress(Exception):  # of those that were lost
        jax.distributed.shutdown()
    clear_backends()
    jax.clear_caches()
    state.client = state.service = None
    initialize(coordinator_address, num_processes, process_id, **given)
    if before is not None:
        with contextlib.suppress(Exception):
            before.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


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
    store = JaxStore(state.client, PREFIX)
    try:
        return hosting.join(rank, size, store, host, timeout, make_default=make_default, **options)
    finally:
        if rank == 0:
            store.clear()
