"""hocket as one backend of a group with several: "cpu:hocket,cuda:nccl".  torch 2.14 and later.

The same calls on a subclass of torch's `Backend`, which these versions allow in Python.  torch's own process group
holds it, chooses it by the tensors' device, and reaches it through C++: slower for small calls than a group of hocket
alone (process_group.py).
"""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import Backend

from hocket import Communicator
from hocket.torch.calls.collectives import Calls
from hocket.torch.calls.names import with_aliases
from hocket.torch.errors import in_torchs_words
from hocket.torch.group.bootstrap import communicator, limit_of
from hocket.torch.group.identity import GroupIdentity
from hocket.torch.memory import Allocating
from hocket.torch.register import NAME

_Base: Any = Backend


def available() -> bool:
    """Can this torch's Backend be made in Python?"""
    return "size" in (_Base.__init__.__doc__ or "")


@with_aliases
class BackendHocket(GroupIdentity, Allocating, Calls, _Base):  # type: ignore[misc]
    """The backend that torch's process group holds."""

    always_work = True  # C++ wants one, also of calls that it waits for
    supports_splitting = supports_coalescing = supports_shrinking = False  # torch 2.15 crashes on ranks in no split

    def __init__(self, options: Any) -> None:
        _Base.__init__(self, options.group_rank, options.group_size)
        self._options = _Base.Options(NAME, options.timeout)
        with in_torchs_words():
            self.comm = communicator(options)

    @classmethod
    def of(cls, comm: Communicator) -> BackendHocket:
        """The backend of this communicator's ranks."""
        made = cls.__new__(cls)
        _Base.__init__(made, comm.rank, comm.size)
        made._options, made.comm = _Base.Options(NAME, limit_of(comm)), comm
        return made

    @property
    def options(self) -> Any:
        return self._options

    def setGroupName(self, name: str) -> None:
        """torch's group keeps the name."""

    setGroupDesc = setGroupName
