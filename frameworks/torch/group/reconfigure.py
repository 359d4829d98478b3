"""`dist._reconfigure`: a group meets anew, of the processes whose handles are given.  torch 2.14 and later.

torch's contract leaves the choice of members to the caller: parts of a group may part, shrink to one, and come
together again.  That is more than `Communicator.renew` allows, which never lets two parts of a job both go on.  So the
members meet as a new job does, at an address that the handle of the first one tells: no store is needed any more, and
any rank may be lost.  The group of an elastic job (elastic.py) goes on by `renew`, under its laws.

It is torch's default group, or one that torch does not know (`hocket.torch.reconfigurable`).  What was made on it is
over; groups that are reconfigured themselves go on.
"""

from __future__ import annotations

import gc
import re
import secrets
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist

import hocket
from hocket import Communicator, hosting
from hocket.torch.calls.works import Work
from hocket.torch.errors import ArgumentError, MismatchError, PeerLostError, in_torchs_words
from hocket.torch.group.bootstrap import limit_of, met, same_torch
from hocket.torch.group.carrier import carrier_of
from hocket.torch.register import NAME

HANDLE = re.compile(r"hocket:1:(?P<address>tcp:.+:\d+):(?P<key>[0-9a-f]{64}|secret)")
"""`secret`: the ranks prove HOCKET_SECRET, which a handle must not tell."""
UNMET = (
    "the ranks of this group have not met: all of them call dist._reconfigure(uuid, handles) first, as it was made "
    "with enable_reconfigure=True"
)
OVER = "its group was reconfigured: groups, meshes and modules that were made on it before are made anew"

COUNTING = {
    f"torch.distributed.{name}"
    for name in (
        "device_mesh.DeviceMesh", "fsdp._fully_shard._fsdp_common.DataParallelMeshInfo",
        "fsdp._common_utils._FSDPState", "fsdp._flat_param.FlatParamHandle", "pipelining.stage._PipelineStageBase",
        "optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer",
    )
}  # fmt: skip
"""torch's classes that keep a rank or a size of the group that they are made on."""


class Unmet:
    """In the place of a communicator, of a group whose ranks have not met, or that is over: calls raise `why`."""

    sequence = 0
    lost: tuple[int, ...] = ()
    door = None

    def __init__(self, rank: int, size: int, timeout: float, why: str) -> None:
        self.rank, self.size, self.timeout, self.why = rank, size, timeout, why

    def set_timeout(self, seconds: float) -> None:
        self.timeout = seconds

    def close(self, *args: Any, **named: Any) -> None:
        """There is nothing to end."""

    abort = drop = close

    def __getattr__(self, name: str) -> Any:
        raise ArgumentError(self.why)


class Door:
    """The place where others meet this process, if its handle is the first: a port that is held, and a key."""

    def __init__(self) -> None:
        host = hosting.here()
        family, kind, *_, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._held = socket.socket(family, kind)  # bound, not listening: `hocket.init` can listen there beside it
        try:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind(place)
        except OSError as why:
            self._held.close()
            raise ArgumentError(f"enable_reconfigure: no port of {host} to meet at ({why}): set HOCKET_IFACE") from None
        at = f"[{host}]" if ":" in host else host
        key = "secret" if hosting.has_secret() else secrets.token_hex(32)
        self.handle = f"hocket:1:tcp:{at}:{self._held.getsockname()[1]}:{key}"

    def close(self) -> None:
        self._held.close()

    __del__ = close


class ReconfigureCall(NamedTuple):
    """A call of `reconfigure` that was found to be right."""

    rank: int
    handles: list[str]
    address: str
    secret: str | None


class Reconfigurable:
    """A part of the process group: its door, if it has `enable_reconfigure`."""

    comm: Communicator
    _store: Any
    _made: Iterable[Any]
    """The groups that `split_group` has made of it."""
    _door: Door | None = None
    _uuids: frozenset[int] = frozenset()

    def _await_reconfigure(self, rank: int, size: int, timeout: float) -> None:
        """Begin without a communicator: calls raise until the ranks have met."""
        self._door, self.comm = Door(), _unmet(rank, size, timeout, UNMET)

    @property
    def supports_reconfigure(self) -> bool:
        return self._door is not None

    def get_error(self) -> Any:
        """torch's word for the state of this group."""
        kinds: Any = torch._C._distributed_c10d.ErrorType
        return kinds.REMOTE_ERROR if self.comm.lost else kinds.SUCCESS

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        if self._door is not None:
            self._door.close()

    def get_reconfigure_handle(self) -> str:
        """This process's part of what `reconfigure` takes.  Another one after each time that the ranks have met."""
        return self._open_door().handle

    def reconfigure(self, opts: Any) -> Work:
        """Let those meet whose handles are given: a list numbers them, of a set the sorted one does.  All call it.

        `opts` (`ReconfigureOptions`): uuid, handles, timeout.  The group is these ranks' when this returns; what was
        made on it before is over.  Raises ArgumentError (this process's handle is missing, one is no handle of
        hocket's or stands there twice, a uuid was used before): the group goes on then as it was.  TimeoutError
        (`missing`): others did not come; then the group waits for another reconfigure, with another uuid.  Cost:
        what `hocket.init` costs.
        """
        with in_torchs_words():
            asked = self._asked(int(opts.uuid), opts.handles)
            limit = limit_of(self.comm).total_seconds()
            seconds = opts.timeout.total_seconds() if opts.timeout else limit
            before = (self.comm.rank, self.comm.size)
            self._uuids |= {int(opts.uuid)}
            self._part()
            self.comm = _unmet(*before, limit, UNMET)
            made = hocket.init(
                asked.rank, len(asked.handles), address=asked.address if len(asked.handles) > 1 else None,
                secret=asked.secret, timeout=seconds, make_default=False,
            )  # fmt: skip
            made.set_timeout(limit)
            same_torch(made)
            _agree(made, int(opts.uuid))
            self.comm, door = made, self._open_door()
            self._door = Door()
            door.close()
            self._tell_torch(before)
        return Work([], [])

    def _asked(self, uuid: int, handles: Iterable[str]) -> ReconfigureCall:
        own, ordered = self._open_door().handle, list(handles)
        if not isinstance(handles, list):
            ordered.sort()
        found = [HANDLE.fullmatch(each) for each in ordered]
        if wrong := [handle for handle, match in zip(ordered, found, strict=True) if match is None]:
            raise ArgumentError(f"reconfigure: {wrong[0]!r} is not a handle of this hocket's (get_reconfigure_handle)")
        if len(set(ordered)) < len(ordered):
            raise ArgumentError("reconfigure: a handle stands there twice: each process has one")
        if own not in ordered:
            raise ArgumentError(
                f"reconfigure: this process's handle is not one of the {len(ordered)} given: who is left out does not "
                "call it, and handles change each time that the ranks have met"
            )
        if uuid in self._uuids:
            raise ArgumentError(f"reconfigure: uuid {uuid} was already used by this group: each call has a new one")
        first = found[0]
        assert first is not None
        key = None if first["key"] == "secret" or own.endswith(":secret") else first["key"]
        return ReconfigureCall(ordered.index(own), ordered, first["address"], key)

    def _part(self) -> None:
        """End the group as it was, with those made on it, here and for ranks that still wait for this one."""
        others, of_torch = list(_made_of(self)), cast(Any, dist.distributed_c10d._world)
        if self is of_torch.default_pg:
            known = [each for each in of_torch.pg_map if each is not self and getattr(each, "_door", None) is None]
            others += [each for root in known for each in (root, *_made_of(root))]
        for carrier in [*filter(None, map(carrier_of, others)), self]:
            comm = carrier.comm
            comm.abort(ArgumentError(OVER))
            comm.close(1)
            carrier.comm = _unmet(comm.rank, comm.size, comm.timeout, OVER)

    def _tell_torch(self, before: tuple[int, int]) -> None:
        """Put right what torch keeps of a default group, and end what counts on this rank and size if they changed."""
        world: Any = dist.distributed_c10d._world
        if self in world.pg_group_ranks:
            world.pg_group_ranks[self] = {rank: rank for rank in range(self.comm.size)}
        if before != (self.comm.rank, self.comm.size):
            over: Any = getattr(type(self), "unwatched", type(self)).__new__(type(self))
            over._begin(self._store, *before, f"{self.getGroupName()}: {OVER}")
            over.comm = _unmet(*before, self.comm.timeout, OVER)
            _end_what_counts_ranks(self, over)
            if "torch._dynamo" in sys.modules:  # compiled programs have the earlier rank and size in them, as numbers
                sys.modules["torch._dynamo"].reset()

    def _open_door(self) -> Door:
        if self._door is None:
            raise ArgumentError(
                f"Backend {NAME} does not support get_reconfigure_handle of this group, nor reconfigure: make it by "
                f'init_process_group("{NAME}", enable_reconfigure=True)'
            )
        return self._door

    def getGroupName(self) -> str:
        raise NotImplementedError


def shrunk(group: Any, without: list[int]) -> Communicator:
    """The communicator of the ranks of `group` but these, for `dist.shrink_group`; `group` is over.

    In an elastic job the members agree on it (`Communicator.renew`).  Else they meet through the group's store, which
    has to live.
    """
    comm, left = group.comm, [rank for rank in range(group.comm.size) if rank not in without]
    if comm.door is not None:
        made = comm.renew(without=without, admit=False)
        if made.size != len(left):
            group.comm = made  # for who tries again, or calls hocket.torch.renew()
            raise PeerLostError(f"shrink_group: lost, too: {made.previous_lost}; the group has {made.size} ranks", [])
        group.comm = _unmet(comm.rank, comm.size, comm.timeout, OVER)  # torch destroys it
        return cast(Communicator, made)
    limit, rank = limit_of(comm), left.index(comm.rank)
    group._part()
    store = dist.PrefixStore(f"shrink/{without}", group.get_group_store())  # type: ignore[attr-defined]
    return met(store, rank, len(left), limit)


def _unmet(rank: int, size: int, timeout: float, why: str) -> Any:
    return Unmet(rank, size, timeout, why)


def _agree(comm: Communicator, uuid: int) -> None:
    """All mean the same reconfiguration.  And torch numbers the groups that are made later alike on all of them."""
    world: Any = dist.distributed_c10d._world
    rows = comm.allgather(np.array([uuid, world.group_count], np.int64)).reshape(comm.size, 2)
    if len(uuids := sorted({int(row[0]) for row in rows})) > 1:
        comm.close(1)
        raise MismatchError(f"reconfigure: the ranks have given different uuids: {uuids}")
    world.group_count = int(rows[:, 1].max())


def _made_of(group: Any) -> Iterator[Any]:
    """All that `split_group` has made of it, and of those."""
    for each in list(getattr(group, "_made", ())):
        yield each
        yield from _made_of(each)


def _end_what_counts_ranks(group: Any, over: Any) -> None:
    """Give those who have the earlier rank and size in mind a group that is over, whose calls say so.

    Else they would go on in silence without what the lost ranks held.
    """
    kinds: dict[type, bool] = {}
    default = group is cast(Any, dist.distributed_c10d._world).default_pg
    for each in gc.get_objects():
        kind = type(each)
        if kind not in kinds:
            kinds[kind] = any(f"{base.__module__}.{base.__qualname__}" in COUNTING for base in kind.__mro__)
        if kinds[kind]:
            own = vars(each)
            for name, value in list(own.items()):
                if value is group or (default and name == "group" and value is None):  # a stage's default group
                    own[name] = over
            names = own.get("_dim_group_names", [])
            names[:] = [over.group_name if name == group.group_name else name for name in names]
