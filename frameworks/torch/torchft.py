"""hocket's process group for torchft, which makes groups again while training goes on.

    pg = ProcessGroupHocket(timeout=timedelta(seconds=30))      # instead of torchft's ProcessGroupGloo
    manager = torchft.Manager(pg=pg, ...)
"""

from __future__ import annotations

from typing import Any

from torchft.process_group import ProcessGroupWrapper

from hocket.torch.group.process_group import ProcessGroupHocket as Group

_Base: Any = ProcessGroupWrapper


class ProcessGroupHocket(_Base):  # type: ignore[misc]
    """The group for `torchft.Manager(pg=)`.  `timeout`: for the ranks to meet, and of each call.

    Ranks that are lost end the others' calls with PeerLostError.  torchft makes the group again without them.
    """

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Group:
        return Group.alone(store, rank, world_size, self._timeout, "torchft")

    def getBackendName(self) -> str:
        return "torchft-hocket"
