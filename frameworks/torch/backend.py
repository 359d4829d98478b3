"""hocket as one backend of a group with several: "cpu:hocket,cuda:nccl".  torch 2.14 and later.

The same calls on torch's `Backend`, which there can be made in Python.  torch's own process group holds it, chooses it
by the tensors' device, and reaches it through C++: slower for small calls than a group of hocket alone (group.py).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend

import hocket
from hocket.torch.bootstrap import communicator
from hocket.torch.calls import Calls
from hocket.torch.failing import in_torchs_words
from hocket.torch.names import with_aliases
from hocket.torch.register import NAME

_Base: Any = Backend


def available() -> bool:
    """Can this torch's Backend be made in Python?"""
    return "size" in (_Base.__init__.__doc__ or "")


@with_aliases
class BackendHocket(Calls, _Base):  # type: ignore[misc]
    """What torch's process group holds."""

    always_work = True  # C++ wants one, also of calls that it waits for
    supports_splitting = supports_coalescing = supports_shrinking = False

    def __init__(self, options: Any) -> None:
        _Base.__init__(self, options.group_rank, options.group_size)
        self._options = _Base.Options(NAME, options.timeout)
        with in_torchs_words():
            self.comm = communicator(options)

    @property
    def options(self) -> Any:
        return self._options

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self.comm.rank

    def getSize(self) -> int:
        return self.comm.size

    def setGroupName(self, name: str) -> None:
        """torch's group has it."""

    setGroupDesc = setGroupName

    def setSequenceNumberForGroup(self) -> None:
        """Calls are numbered anyway, and the numbers compared in every message."""

    def getSequenceNumberForGroup(self) -> int:
        return int(self.comm._main.engine.sequence)

    def setTimeout(self, timeout: timedelta) -> None:
        self.comm.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        self.comm.close()

    def abort(self) -> None:
        self.comm.give_up(hocket.Error("abort() was called"))
        self.comm.close()
