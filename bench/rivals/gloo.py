"""Gloo under the stopwatch, through torch.distributed on tensors made once.  Imports torch: only for its workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hocket.bench.harness.worker import Ordinary
from hocket.bench.rivals.tensors import as_tensor
from hocket.collectives.measuring.cases import Case
from hocket.errors import ArgumentError

OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


class Gloo(Ordinary):
    """A subject (worker.py): RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where the ranks meet."""

    name = "gloo"

    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.about = f"gloo of torch {torch.__version__}"

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        x, out = as_tensor(given), as_tensor(result)
        op = self._op(case) if case.kind.reduces else None
        root, at_root = case.root, self.rank == case.root
        match case.collective:
            case "allreduce":
                return partial(dist.all_reduce, x, op)
            case "reduce":
                return partial(_reduce, x, out, root, op)
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, out, x, op)
            case "broadcast":
                return partial(dist.broadcast, x, root)
            case "allgather":
                return partial(dist.all_gather_into_tensor, out, x)
            case "gather":
                return partial(dist.gather, x, self._blocks(out) if at_root else None, root)
            case "scatter":
                return partial(dist.scatter, out, self._blocks(x) if at_root else None, root)
            case "alltoall":
                return partial(dist.all_to_all_single, out, x)
            case "barrier":
                return dist.barrier
        raise ArgumentError(f"gloo has no {case.collective}")

    def barrier(self) -> None:
        dist.barrier()

    def chosen(self) -> dict[str, str]:
        return {}

    def _blocks(self, whole: Any) -> list[Any]:
        return list(whole.chunk(self.size))

    @staticmethod
    def _op(case: Case) -> Any:
        if case.op not in OPS:
            raise ArgumentError(f"gloo has no op {case.op!r}")
        return getattr(dist.ReduceOp, OPS[case.op])


def _reduce(x: Any, out: Any, root: int, op: Any) -> None:
    """torch reduces in place; ours leaves the input alone, so the copy belongs to the time."""
    out.copy_(x)
    dist.reduce(out, root, op)
