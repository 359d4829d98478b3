"""From what torch knows of a group to its communicator.

The default group's ranks meet through torch's store (control/store.py): only rank 0's address is read there, and the
address of a job that is over is noticed and read again, so a restart under torchrun works.  If the default group is
hocket's, other groups are made from its communicator, by their members alone, without new connections to rank 0.
A communicator that is there already is handed over (elastic.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hocket
from hocket import Communicator
from hocket.errors import MismatchError

LONGEST = 1e9
"""Seconds: torch's timeouts end somewhere."""
_handed_over: list[Communicator] = []


class TorchStore:
    """torch's store, as `hocket.init` asks it."""

    def __init__(self, store: Any) -> None:
        self.store = store

    @property
    def where(self) -> str:
        """The store's address, below what torch puts around it; "" where it has none."""
        store = self.store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return f"{store.host}:{store.port}" if hasattr(store, "port") else ""

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self.store.get(key) if self.store.check([key]) else None
        return found

    def first(self, key: str, value: str) -> bytes:
        found: bytes = self.store.compare_set(key, "", value)
        return found


def communicator(options: Any) -> Communicator:
    """The members' communicator; its calls wait as long as the group's timeout says."""
    if _handed_over:
        return _handed_over[0]
    default = parent()
    if default is None:
        return met(options.store, options.group_rank, options.group_size, options.timeout)
    ranks = list(options.global_ranks_in_group) or list(range(default.size))
    return child(default, ranks, f"{options.group_id}", options.timeout.total_seconds())


def child(comm: Communicator, ranks: list[int], name: str, seconds: float) -> Communicator:
    """The communicator of these ranks of `comm`, made over its connections by them alone."""
    made = comm.create_group(ranks, name, timeout=seconds)
    made.set_timeout(seconds)
    return made


def limit_of(comm: Communicator) -> timedelta:
    """The most that its calls may take, as torch can say it."""
    return timedelta(seconds=min(comm.timeout, LONGEST))


@contextlib.contextmanager
def handing_over(comm: Communicator) -> Iterator[None]:
    """The group that is made in the block has this communicator."""
    _handed_over.append(comm)
    try:
        yield
    finally:
        _handed_over.clear()


def met(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    """The communicator of ranks that meet through torch's store, whatever groups there are."""
    seconds = timeout.total_seconds()
    comm = hocket.init(rank, size, store=TorchStore(store), timeout=seconds, make_default=False)
    comm.set_timeout(seconds)
    same_torch(comm)
    return comm


def same_torch(comm: Communicator) -> None:
    """MismatchError, on all ranks, where their torch is of different minor versions: its own code would call different
    things in places that nobody could tell from the user's program."""
    versions = comm.share(str(torch.__version__), "the version of torch")
    if len({each.split(".")[1] for each in versions}) > 1:
        said = {rank: f"torch {each}" for rank, each in enumerate(versions)}
        comm.close(1)
        text = ", ".join(f"rank {rank} has {each}" for rank, each in said.items())
        raise MismatchError(f"the ranks have different versions: {text}: install one on all", said)


def parent() -> Communicator | None:
    """The default group's communicator, if there is one yet and it is hocket's: the same answer on all ranks."""
    from hocket.torch.group.process_group import ProcessGroupHocket

    default = dist.group.WORLD
    return default.comm if isinstance(default, ProcessGroupHocket) else None
