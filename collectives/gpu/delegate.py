"""NCCL's communicator of a queue's members, and the call of it that carries out one of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.delegates.mpi import op_of
from hocket.collectives.delegates.nccl import FUNCTIONS, INSTEAD, OF_BOOL, OPS, TYPES
from hocket.errors import ArgumentError, TransportError
from hocket.system.cuda import nccl
from hocket.system.cuda.driver import Device


def words_of(made: nccl.Nccl, call: Call, how: Resolved) -> tuple[int, list[int]]:
    """The function that does what `call` says, and its arguments: those of the arrays and the stream are 0."""
    function, dtype = FUNCTIONS[call.collective], call.model.dtype
    address = made.function(function.name)
    if not address:
        version = nccl.dotted(nccl.version())
        raise ArgumentError(f"NCCL {version} has no {call.collective}: install a later one (2.28 has it), or {INSTEAD}")
    count = call.count if call.counts is None else call.counts[0]
    words = [0, 0, count, TYPES[dtype.name]] if how.name else [0, 0, count * dtype.itemsize, TYPES["uint8"]]
    if function.op:
        words.append((OF_BOOL if dtype.name == "bool" else OPS)[op_of(how)])
    words += [call.root] * function.root
    return address, [*words, 0, 0]


def made(
    device: Device, rank: int, size: int, share: Callable[..., list[Any]], usable: Callable[[], object], limit: float
) -> nccl.Nccl:  # fmt: skip
    """NCCL's communicator of the members, who all are on their way to this.

    ArgumentError on all of them alike if it cannot be had.  They meet by what `share` gives: rank 0's number, once.
    """
    mine: dict[str, Any] = {"why": "", "version": None, "gpu": device.uuid, "shares": nccl.shares()}
    try:
        mine["version"] = nccl.version()
    except TransportError as error:
        mine["why"] = str(error)
    told = share(mine)
    why = next((f"rank {r}: {each['why']}" for r, each in enumerate(told) if each["why"]), "") or _unlike(told)
    if why:
        raise ArgumentError(f"algorithm 'nccl' cannot be used here: {why}")
    number = share(nccl.unique_id().hex() if rank == 0 else "")[0]  # not before: it leaves a thread that listens
    return nccl.Nccl(device, rank, size, bytes.fromhex(number), usable, limit)


def _unlike(told: list[dict[str, Any]]) -> str:
    """Why ranks that all have NCCL cannot meet by it; "": they can."""
    version = told[0]["version"]
    for rank, each in enumerate(told):
        if each["version"] != version:
            return f"rank 0 has NCCL {nccl.dotted(version)}, rank {rank} {nccl.dotted(each['version'])}: install one"
        first = next(r for r, other in enumerate(told) if other["gpu"] == each["gpu"])
        if first != rank and not (tuple(version) >= nccl.SHARES and all(other["shares"] for other in told)):
            return (
                f"ranks {first} and {rank} share a GPU, which NCCL refuses; {INSTEAD}, or set "
                "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks, for NCCL 2.30 and later ones"
            )
    return ""
