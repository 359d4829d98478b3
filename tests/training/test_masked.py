"""NumPy's masked arrays are refused wherever numbers are taken: below the mask they would be read as they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import Compressor, allreduce_sparse, encode
from hocket.errors import ArgumentError
from hocket.training import SGD, Client, Delayed, LocalSGD, Range, Scheduler, Sharded, serve


def masked(dtype: Any = np.float32) -> Any:
    return np.ma.masked_array(np.full(4, 9, dtype), [False, True, False, False])


def plain() -> dict[str, Any]:
    return {"w": np.zeros(4, np.float32)}


DOORS: dict[str, Callable[[Communicator], object]] = {
    "allreduce_sparse, values": lambda c: allreduce_sparse(c, np.arange(4), masked(), 9),
    "allreduce_sparse, indices": lambda c: allreduce_sparse(c, masked(np.int64), np.ones(4, np.float32), 9),
    "Compressor": lambda c: Compressor(c, "int8").allreduce(masked(), key="w"),
    "encode": lambda c: encode(masked(), "int8"),
    "Scheduler": lambda c: Scheduler(c).declare("w", masked()),
    "Delayed, parameters": lambda c: Delayed(Scheduler(c), {"w": masked()}, lr=1.0),
    "Delayed, gradients": lambda c: Delayed(Scheduler(c), plain(), lr=1.0).step({"w": masked()}),
    "LocalSGD": lambda c: LocalSGD(c, {"w": masked()}, every=1),
    "Sharded, parameters": lambda c: Sharded(SGD(1.0), c, {"w": masked()}),
    **{
        f"Sharded, gradients, stage {stage}": lambda c, stage=stage: Sharded(  # type: ignore[misc]
            SGD(1.0), c, plain(), stage=stage).step({"w": masked()}) for stage in (1, 2, 3)
    },
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_mask_is_not_lost_in_silence(door: str) -> None:
    with pytest.raises(ArgumentError, match="masked array"):
        hocket.local_world(1).run(DOORS[door])


def test_nor_by_a_push() -> None:
    def both(comm: Communicator) -> None:
        with serve(comm, {"w": Range((4,))}, on=[0], works=True) as server, Client(server) as client:
            with pytest.raises(ArgumentError, match="values is a masked array"):
                client.push("w", masked())
            client.push("w", masked().filled(0))
            assert client.pull("w").tolist() == [9, 0, 9, 9]

    hocket.local_world(1).run(both)
