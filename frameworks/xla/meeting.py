"""The ranks of a group meet through the store of jax.distributed, each group as a job of its own.

XLA tells of a group its first device and a rank in it, and neither size nor members; those programs.py knows.
"""

from __future__ import annotations

import hashlib
import os
import threading

import jax
from jax._src import distributed

from hocket import Communicator, hosting
from hocket.errors import ArgumentError, TransportError
from hocket.extending import pass_over
from hocket.xla import programs
from hocket.xla.loading import CHOICE, FILE
from hocket.xla.store import JaxStore

PREFIX = "hocket/xla/"
BUILD = "2"
"""A number that the ranks of a group must have in common: the library's build."""
_lock = threading.Lock()
_used: dict[tuple[programs.Group, int], Communicator | None] = {}
"""The groups that XLA has asked for in this generation of processes, with ranks in them; None: it has failed."""


def begin() -> None:
    """XLA makes its backend: jax.distributed has its processes.  Once in each generation of them."""
    with _lock:
        _used.clear()
    state = distributed.global_state
    JaxStore(state.client, PREFIX).set(f"here/{state.process_id}", BUILD)
    pass_over(os.path.dirname(jax.__file__))
    programs.watch()


def size_of(color: int, key: int) -> int:
    """The size of the group that is being made."""
    return len(_group(color, key))


def _group(color: int, key: int) -> programs.Group:
    found = [each for each in programs.groups(color, key) if (each, key) not in _used]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ArgumentError(
            f"hocket does not know the group of device {color} with rank {key} here: its program was not compiled in "
            "this process by jax.jit; run one that was, on the same devices, before it"
        )
    raise ArgumentError(
        f"{len(found)} groups begin with device {color} and have rank {key} here, and XLA does not say which it means: "
        "start their first programs from one thread"
    )


def join(color: int, key: int) -> Communicator:
    """The communicator of that group, when all its ranks have come.

    Raises ArgumentError (a process that has no hocket under it, or another one), TimeoutError (who did not come).
    """
    with _lock:
        group = _group(color, key)
        _used[group, key] = None
    state = distributed.global_state
    here = JaxStore(state.client, PREFIX)
    for process in sorted({process for _, process in group} - {state.process_id}):
        _check(here.get(f"here/{process}"), process)
    name = hashlib.sha256(repr(group).encode()).hexdigest()[:16]
    host = hosting.own_address(str(state.coordinator_address).rpartition(":")[0])
    store = JaxStore(state.client, f"{PREFIX}{name}/")
    try:
        comm = _used[group, key] = hosting.join(key, len(group), store, host, make_default=False)
        return comm
    finally:
        if key == 0:
            store.clear()


def explained(collective: str | None, nbytes: int | None) -> str:
    """Each group in words: its devices, and the way to them."""
    told = []
    for (group, key), comm in list(_used.items()):
        devices = ", ".join(f"{device} (process {process})" for device, process in group)
        words = "it did not come about" if comm is None else comm.explain(collective, nbytes)
        told.append(f"devices {devices}; here rank {key}:\n{words}")
    return "\n".join(told) or "no program has needed a group of devices yet"


def _check(build: str | None, process: int) -> None:
    if build is None:
        raise TransportError(
            f"process {process} has no hocket under JAX's collectives, and this one has: start all by `hocket run`, or "
            f"set {FILE} and {CHOICE} (as `python -m hocket.xla` prints them) for all before they import jax"
        )
    if build != BUILD:
        raise TransportError(f"process {process} has another hocket (build {build}, here {BUILD}): install the same")
