"""The backend "HOCKET" of ray.util.collective: one communicator for each group."""

from __future__ import annotations

import logging
from typing import Any

from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp, unset_timeout_ms

from hocket.errors import Error
from hocket.ray.errors import ArgumentError, in_rays_words
from hocket.ray.register import NAME
from hocket.ray.store import join
from hocket.ray.tensors import alike, dealt, flat, joined, readable, writable

OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}
log = logging.getLogger("hocket.ray")
_Base: Any = BaseGroup


class HocketGroup(_Base):  # type: ignore[misc]
    """The group behind Ray's calls.  Tensors come in lists, as there could be several GPUs in an actor; here there is
    one.

    Tensors are NumPy arrays, torch tensors or CuPy arrays, of the dtypes of hocket's calls.  Results are in place.
    Errors are hocket's, and RuntimeErrors too.
    """

    @in_rays_words
    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self.comm = join(group_name, rank, world_size, make_default=False)

    @classmethod
    def backend(cls) -> str:
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Waits, for 5 s at most, until the others destroy it too; then everything of it is gone.

        If the others' last calls differ from this actor's, the log says so: Ray has more to clean up after this.
        """
        try:
            self.comm.close()
        except Error as error:
            log.error("destroy_collective_group(%r): %s", self.group_name, error)

    @in_rays_words
    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        self.comm.allreduce(writable(_only(tensor)), _op(allreduce_options), timeout=_limit(allreduce_options))

    @in_rays_words
    def barrier(self, barrier_options: Any = None) -> None:
        self.comm.barrier(timeout=_limit(barrier_options))

    @in_rays_words
    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """The root's tensor becomes the result; the others' stay."""
        root = getattr(reduce_options, "root_rank", 0)
        x = (writable if root == self.rank else readable)(_only(tensor))
        out = x if root == self.rank else None
        self.comm.reduce(x, root, _op(reduce_options), out=out, timeout=_limit(reduce_options))

    @in_rays_words
    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        root = getattr(broadcast_options, "root_rank", 0)
        self.comm.broadcast(writable(_only(tensor)), root, timeout=_limit(broadcast_options))

    @in_rays_words
    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = None) -> None:
        """Rank r's tensor becomes the r-th of the list.  One copy more than `comm.allgather`."""
        x, tensors = _only(tensor), _only(tensor_list)
        alike(tensors, x, "allgather")
        dealt(self.comm.allgather(flat(x), timeout=_limit(allgather_options)), tensors)

    @in_rays_words
    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = None
    ) -> None:
        """The tensor becomes the sum of all ranks' `rank`-th.  The list, unlike with Gloo, stays as it is."""
        x, tensors = _only(tensor), _only(tensor_list)
        alike(tensors, x, "reducescatter")
        op, limit = _op(reducescatter_options), _limit(reducescatter_options)
        dealt(self.comm.reduce_scatter(joined(tensors, x), op, timeout=limit), [x])

    @in_rays_words
    def send(self, tensor: list[Any], send_options: Any) -> None:
        self.comm.send(readable(_only(tensor)), send_options.dst_rank, timeout=_limit(send_options))

    @in_rays_words
    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        self.comm.recv(writable(_only(tensor)), recv_options.src_rank, timeout=_limit(recv_options))


def _only(tensors: list[Any]) -> Any:
    if len(tensors) != 1:
        raise ArgumentError(
            f"{len(tensors)} tensors: hocket's groups have one rank for each actor; give each GPU an actor of its own"
        )
    return tensors[0]


def _op(options: Any) -> str:
    return OPS[getattr(options, "reduceOp", ReduceOp.SUM)]


def _limit(options: Any) -> float | None:
    """The call's own time limit in seconds, if it has one."""
    given = getattr(options, "timeout_ms", unset_timeout_ms)
    return None if given == unset_timeout_ms else float(given.total_seconds())
