"""The ranks of a group meet through the store of jax.distributed, each group as a job of its own.

XLA tells of a group its first device and a rank in it, and neither size nor members; those programs.py knows.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading

import jax
from jax._src import distributed

from hocket import Communicator, hosting
from hocket.errors import ArgumentError, TransportError
from hocket.extending import pass_over
from hocket.xla import absent, programs, telling
from hocket.xla.loading import CHOICE, FILE
from hocket.xla.store import JaxStore

PREFIX = "hocket/xla/"
BUILD = "3"
"""A number that the ranks of a group must have in common: the library's build."""
_lock = threading.Lock()
_used: dict[tuple[programs.Group, int], Communicator | None] = {}
"""The groups that XLA has asked for in this generation of processes, with ranks in them; None: it has failed."""
_meetings: dict[tuple[str, int], absent.Meeting] = {}
"""By the group's name and the rank: those that are being made."""
_teller: telling.Teller | None = None


def begin() -> None:
    """XLA makes its backend: jax.distributed has its processes.  Once in each generation of them."""
    global _teller
    with _lock:
        _used.clear()
    if _teller is None:
        atexit.register(programs.end)
    else:
        _teller.close()
    state = distributed.global_state
    _teller = telling.Teller(_host(), account)
    JaxStore(state.client, PREFIX).set(f"here/{state.process_id}", json.dumps([BUILD, *_teller.place, _teller.word]))
    pass_over(os.path.dirname(jax.__file__))
    programs.watch()


def _host() -> str:
    """This process's address, as the others know it."""
    return hosting.own_address(str(distributed.global_state.coordinator_address).rpartition(":")[0])


def account() -> telling.Account:
    """This process's account."""
    from hocket.xla import serving

    busy = serving.busy()
    calls: dict[str, tuple[int, bool, list[int]]] = {}
    for (group, _), comm in list(_used.items()):
        if comm is not None:
            begun, inside, members = calls.get(_name(group), (comm.sequence, False, [process for _, process in group]))
            calls[_name(group)] = min(begun, comm.sequence), inside or comm in busy.values(), members
    meets = {name: meeting.missing for (name, _), meeting in list(_meetings.items()) if meeting.missing}
    return telling.account(meets, calls, set(busy))


def _name(group: programs.Group) -> str:
    return hashlib.sha256(repr(group).encode()).hexdigest()[:16]


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

    Raises ArgumentError (a process that has no hocket under it, or another one); what absent.Meeting raises.
    """
    with _lock:
        group = _group(color, key)
        _used[group, key] = None
    state, name, processes = distributed.global_state, _name(group), [process for _, process in group]
    here, store = JaxStore(state.client, PREFIX), JaxStore(state.client, f"{PREFIX}{name}/")
    places: dict[int, tuple[str, int, str]] = {}

    def ask(process: int) -> telling.Account | None:
        if process == state.process_id:
            return account()
        if process not in places:
            places[process] = _place(here.get(f"here/{process}"), process)
        return telling.ask(*places[process])

    devices = f"devices {', '.join(str(device) for device, _ in group)} (processes {', '.join(map(str, processes))})"
    meeting = _meetings[name, key] = absent.Meeting(devices, state.process_id, ask)
    try:
        for process in sorted(set(processes) - {state.process_id}):
            places[process] = _place(here.get(f"here/{process}"), process)
        meeting.gather(store, key, processes, hosting.patience())
        comm = _used[group, key] = hosting.join(key, len(group), store, _host(), make_default=False)
    except BaseException as error:
        for each in {name, *meeting.hopeless}:  # the others need not wait
            JaxStore(state.client, f"{PREFIX}{each}/").first("failed", f"process {state.process_id}: {error}")
        raise
    finally:
        del _meetings[name, key]
    if key == 0:
        store.clear()
    return comm


def explained(collective: str | None, nbytes: int | None) -> str:
    """Each group in words: its devices, and the way to them."""
    told = []
    for (group, key), comm in list(_used.items()):
        devices = ", ".join(f"{device} (process {process})" for device, process in group)
        words = "it did not come about" if comm is None else comm.explain(collective, nbytes)
        told.append(f"devices {devices}; here rank {key}:\n{words}")
    return "\n".join(told) or "no program has needed a group of devices yet"


def _place(told: str | None, process: int) -> tuple[str, int, str]:
    """Where this process tells what it does, and the word for it."""
    if told is None:
        raise TransportError(
            f"process {process} has no hocket under JAX's collectives, and this one has: start all by `hocket run`, or "
            f"set {FILE} and {CHOICE} (as `python -m hocket.xla` prints them) for all before they import jax"
        )
    build, host, port, word = json.loads(told)
    if build != BUILD:
        raise TransportError(f"process {process} has another hocket (build {build}, here {BUILD}): install the same")
    return host, port, word
