"""The process group: how it is made, what it says of itself, how it ends.  Its calls are in calls/.

A Python subclass of torch's ProcessGroup: no compiled code against torch, and the shortest way for calls from Python,
as nothing stands between torch's functions and these methods.  torch's own ProcessGroup keeps its name and its options
in the backends that it holds; this one holds none, so it answers itself wherever torch would ask them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hocket import Communicator
from hocket.torch.callers import pass_over_torch
from hocket.torch.calls.collectives import Calls
from hocket.torch.calls.names import with_aliases
from hocket.torch.errors import ArgumentError, in_torchs_words
from hocket.torch.group import functional
from hocket.torch.group.bootstrap import child, communicator, limit_of, met
from hocket.torch.group.hooks import Hooks
from hocket.torch.group.identity import GroupIdentity
from hocket.torch.group.reconfigure import Reconfigurable
from hocket.torch.group.shim import Shim, Without
from hocket.torch.register import present

pass_over_torch()


_Base: Any = dist.ProcessGroup  # torch's stubs describe its C++ overloads, of which these methods are the union


@with_aliases
class ProcessGroupHocket(GroupIdentity, Reconfigurable, Hooks, Calls, Without, _Base):  # type: ignore[misc]
    """The group of `init_process_group("hocket")` and `new_group`.  `comm` is its `hocket.Communicator`."""

    comm: Communicator
    _made: weakref.WeakSet[ProcessGroupHocket]
    _shim: weakref.ref[Shim] | None = None

    def __init__(self, options: Any) -> None:
        self._begin(options.store, options.group_rank, options.group_size, str(options.group_id))
        with in_torchs_words():
            if getattr(options, "enable_reconfigure", False):
                self._await_reconfigure(options.group_rank, options.group_size, options.timeout.total_seconds())
            else:
                self.comm = communicator(options)

    @classmethod
    def alone(cls, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> ProcessGroupHocket:
        """A group that torch does not know, of ranks that meet through `store`, whatever other groups there are."""
        made = cls.__new__(cls)
        made._begin(store, rank, size, name)
        with in_torchs_words():
            made.comm = met(store, rank, size, timeout)
        return made

    @classmethod
    def reconfigurable(cls, timeout: timedelta, name: str) -> ProcessGroupHocket:
        """A group that torch does not know, which meets nobody before `reconfigure`."""
        made = cls.__new__(cls)
        made._begin(dist.HashStore(), 0, 1, name)  # type: ignore[attr-defined]
        with in_torchs_words():
            made._await_reconfigure(0, 1, timeout.total_seconds())
        return made

    def _begin(self, store: Any, rank: int, size: int, name: str) -> None:
        _Base.__init__(self, rank, size)
        self._store, self._name, self._desc, self._splits = store, name, "undefined", 0
        self._made = weakref.WeakSet()
        functional.complete()
        self._check_for_nans(rank)

    def split_group(
        self, new_ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None,
        group_name: str | None = None, group_desc: str | None = None, device_types: Any = None,
    ) -> ProcessGroupHocket | None:  # fmt: skip
        """A group of these ranks of this one, in this order, which they alone make; None on the others.

        All ranks call it.  `device_types` is nothing to a group that takes tensors of every device.
        """
        number, self._splits = self._splits, self._splits + 1
        name, ranks = group_name or f"{self._name}:split:{number}", list(new_ranks)
        if wrong := [r for r in ranks if r not in range(self.comm.size)]:
            raise ArgumentError(f"split_group: {wrong} are no ranks of a group of {self.comm.size}")
        if self.comm.rank not in ranks:
            return None
        seconds = (timeout or getattr(opts, "_timeout", None) or limit_of(self.comm)).total_seconds()
        made = ProcessGroupHocket.__new__(ProcessGroupHocket)
        store = dist.PrefixStore(f"{name}/", self._store)  # type: ignore[attr-defined]
        made._begin(store, ranks.index(self.comm.rank), len(ranks), name)
        made.setGroupDesc(group_desc or f"{self._desc}:split:{number}")
        with in_torchs_words():
            made.comm = child(self.comm, ranks, name, seconds)
        self._made.add(made)
        return made

    def __del__(self) -> None:
        """A group that is dropped, not destroyed, leaves the job, as with Gloo."""
        if "comm" in vars(self):
            self.comm.drop()

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in present()]

    def _get_backend(self, device: Any) -> Shim:
        """The same one for each device, as long as anyone has it."""
        found = self._shim() if self._shim is not None else None
        if found is None:
            found = Shim(self)
            self._shim = weakref.ref(found)
        return found

    get_backend = _get_backend

    def get_group_store(self) -> Any:
        return self._store

    def __repr__(self) -> str:
        return f"<ProcessGroupHocket {self._name!r}: rank {self.comm.rank} of {self.comm.size}>"
