"""The process group: how it is made, what it says of itself, how it ends.  Its calls are in calls/.

A Python subclass of torch's ProcessGroup: no compiled code against torch, and the shortest way for calls from Python,
as nothing stands between torch's functions and these methods.  torch's own ProcessGroup keeps its name and its options
in the backends that it holds; this one holds none, so it answers itself wherever torch would ask them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hocket import Communicator
from hocket.torch.callers import pass_over_torch
from hocket.torch.calls.methods import Calls
from hocket.torch.calls.names import with_aliases
from hocket.torch.errors import in_torchs_words
from hocket.torch.group import functional
from hocket.torch.group.bootstrap import communicator, met
from hocket.torch.group.identity import Identity
from hocket.torch.register import NAME, present


class Shim:
    """What torch's Python code gets by `group._get_backend(device)`: without what only other backends have."""

    supports_splitting = supports_coalescing = supports_shrinking = supports_time_estimate = False
    options = None

    def __init__(self, group: ProcessGroupHocket) -> None:
        self.group = group

    def name(self) -> str:
        return NAME

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


pass_over_torch()


_Base: Any = dist.ProcessGroup  # torch's stubs describe its C++ overloads, of which these methods are the union


@with_aliases
class ProcessGroupHocket(Identity, Calls, _Base):  # type: ignore[misc]
    """What `init_process_group("hocket")` and `new_group` make.  `comm` is its `hocket.Communicator`."""

    comm: Communicator

    def __init__(self, options: Any) -> None:
        self._begin(options.store, options.group_rank, options.group_size, str(options.group_id))
        with in_torchs_words():
            self.comm = communicator(options)

    @classmethod
    def alone(cls, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> ProcessGroupHocket:
        """A group that torch does not know, of ranks that meet through `store`, whatever other groups there are."""
        made = cls.__new__(cls)
        made._begin(store, rank, size, name)
        with in_torchs_words():
            made.comm = met(store, rank, size, timeout)
        return made

    def _begin(self, store: Any, rank: int, size: int, name: str) -> None:
        _Base.__init__(self, rank, size)
        self._store, self._name, self._desc = store, name, "undefined"
        functional.complete()

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
        if self not in dist.distributed_c10d._world.pg_map:
            return []  # being made: torch 2.15 would attach its flight recorder, which needs a compiled backend
        return [torch.device(name) for name in present()]

    def _get_backend(self, device: Any) -> Shim:
        return Shim(self)

    def get_group_store(self) -> Any:
        return self._store

    def __repr__(self) -> str:
        return f"<ProcessGroupHocket {self._name!r}: rank {self.comm.rank} of {self.comm.size}>"
