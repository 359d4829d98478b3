"""torch.distributed in a job that outlives its ranks: the default group of those who are there now.

    comm = hocket.init(elastic=True)               # members, and newcomers (join=, HOCKET_JOIN)
    hocket.torch.use(comm)                         # in place of init_process_group("hocket")
    try:
        ...
    except RuntimeError as error:                  # DDP's C++ makes one of every error
        if not hocket.torch.is_loss(error):
            raise
        comm = hocket.torch.renew({"step": step})  # all that live call it

Groups and modules made on the old default group (`new_group`, DDP, DeviceMesh) are made anew.  Let go of an old DDP
module first: its hooks stay on the parameters as long as it is there.  The default group's store reaches this process
alone: what needs a store of all ranks has to bring one.

`reconfigurable` is the other way, torch's own: the caller chooses the members.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hocket import Communicator
from hocket.errors import ArgumentError, PeerLostError
from hocket.torch.errors import in_torchs_words
from hocket.torch.group import bootstrap
from hocket.torch.register import NAME

if TYPE_CHECKING:
    from hocket.torch.group.process_group import ProcessGroupHocket


def use(comm: Communicator) -> None:
    """Make torch.distributed's default group of these ranks.  One that is there is destroyed first.

    The group's timeout is `comm.timeout`.  Local, but where another group is destroyed that still works.

    >>> import hocket, hocket.torch, torch, torch.distributed as dist
    >>> hocket.torch.use(hocket.init(0, 1))
    >>> dist.all_reduce(x := torch.ones(2))
    >>> x, dist.get_world_size()
    (tensor([1., 1.]), 1)
    >>> dist.destroy_process_group()
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    store, limit = dist.HashStore(), bootstrap.limit_of(comm)  # type: ignore[attr-defined]
    with bootstrap.handing_over(comm):
        dist.init_process_group(NAME, store=store, rank=comm.rank, world_size=comm.size, timeout=limit)


def renew(info: Any = None, **more: Any) -> Communicator:
    """Go on after a loss, or let newcomers in: `Communicator.renew` of the default group, which is that of the
    communicator returned then.  All that live call it.

    Raises what `Communicator.renew` does, in torch's classes, and ArgumentError if the default group is not hocket's.
    """
    comm = bootstrap.parent()
    with in_torchs_words():
        if comm is None:
            raise ArgumentError("renew: the default group is not hocket's: begin with hocket.torch.use(comm)")
        made = comm.renew(info, **more)
    use(made)
    return made


def is_loss(error: BaseException) -> bool:
    """Did a rank's loss cause this error, so that `renew` is what follows?  Local.

    Where torch's C++ has made a RuntimeError of it, what tells is that a rank of the default group is lost.
    """
    comm = bootstrap.parent()
    lost = comm is not None and bool(comm.lost)
    return isinstance(error, PeerLostError) or (lost and isinstance(error, RuntimeError))


def reconfigurable(timeout: timedelta = timedelta(seconds=300)) -> ProcessGroupHocket:
    """A group of members that `reconfigure` chooses, as often as they change, beside torch's default group or without.

    It does what the default group of `enable_reconfigure=True` does, but a program may have several, the others go on
    while one meets anew, and torch need not be 2.14.  torch does not know it: `group.rank()` and `group.size()` tell,
    not `dist.get_rank(group)`.  `timeout`: of its calls.  `torchft.Manager(pg=)` after torchft 0.2 takes it.  Local.

    >>> import hocket.torch, torch, types
    >>> group = hocket.torch.reconfigurable()
    >>> both = [group.get_reconfigure_handle()]        # each member's, brought to all by the program
    >>> group.reconfigure(types.SimpleNamespace(uuid=1, handles=both, timeout=None)).wait()
    True
    >>> group.allreduce(x := torch.ones(2)).wait(), group.size()
    (True, 1)
    >>> group.shutdown()
    """
    from hocket.torch.group.process_group import ProcessGroupHocket

    return ProcessGroupHocket.reconfigurable(timeout, "reconfigurable")
