"""C programs on hocket: what c_programs.h hands MPI's functions to, with the handles that MPI's ABI has as numbers.

Imported in the Python that MPI_Init makes inside the program.  As with MPI, an error ends the program.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.xla import loading

ABI = {name.removeprefix("MPIABI_"): value for name, value in loading.constants().items()}
"""MPI's constants by their names, without MPI_."""
TYPES = {
    ABI[name]: np.dtype(dtype)
    for name, dtype in {
        "BYTE": "u1", "CHAR": "i1", "SIGNED_CHAR": "i1", "UNSIGNED_CHAR": "u1", "SHORT": "i2", "UNSIGNED_SHORT": "u2",
        "INT": "i4", "UNSIGNED": "u4", "LONG": "i8", "UNSIGNED_LONG": "u8", "LONG_LONG": "i8",
        "UNSIGNED_LONG_LONG": "u8", "FLOAT": "f4", "DOUBLE": "f8", "C_BOOL": "?",
        "INT8_T": "i1", "INT16_T": "i2", "INT32_T": "i4", "INT64_T": "i8", "UINT8_T": "u1", "UINT16_T": "u2",
        "UINT32_T": "u4", "UINT64_T": "u8", "C_FLOAT_COMPLEX": "c8", "C_DOUBLE_COMPLEX": "c16",
    }.items()
}  # fmt: skip
OPS = {ABI[name]: name.lower() for name in ("SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR")}
MADE = 0x1000
"""Handles from here on are communicators that were split off; the ABI leaves them to libraries."""
_comms: dict[int, hocket.Communicator] = {}
_Status = ctypes.POINTER(ctypes.c_int)
_Word = ctypes.c_size_t


def of(handle: int) -> hocket.Communicator:
    """The communicator behind a handle."""
    if handle not in _comms:
        raise ValueError(f"{handle:#x} is not a communicator here, as MPI_COMM_WORLD is and what MPI_Comm_split made")
    return _comms[handle]


def array(address: int, count: int, datatype: int) -> Any:
    """The program's memory, as it lies."""
    if datatype not in TYPES:
        raise TypeError(f"the datatype {datatype:#x} is not one of MPI's basic types")
    if count < 0:
        raise ValueError(f"count is {count}")
    if not count:
        return np.empty(0, TYPES[datatype])
    dtype = TYPES[datatype]
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def init() -> None:
    _comms[ABI["COMM_WORLD"]] = hocket.init()


def finalize() -> None:
    _comms.pop(ABI["COMM_WORLD"]).close()
    _comms.clear()


def comm_rank(comm: int, rank: Any) -> None:
    rank[0] = of(comm).rank


def comm_size(comm: int, size: Any) -> None:
    size[0] = of(comm).size


def comm_split(comm: int, color: int, key: int, made: Any) -> None:
    part = of(comm).split(None if color == ABI["UNDEFINED"] else color, key)
    made[0] = ABI["COMM_NULL"] if part is None else max([MADE, *_comms]) + 1
    if part is not None:
        _comms[made[0]] = part


def comm_free(comm: Any) -> None:
    of(comm[0]).close()
    del _comms[comm[0]]
    comm[0] = ABI["COMM_NULL"]


def allreduce(send: int, recv: int, count: int, datatype: int, op: int, comm: int) -> None:
    if op not in OPS:
        raise TypeError(f"the op {op:#x} is not one of {', '.join(f'MPI_{name.upper()}' for name in OPS.values())}")
    into = array(recv, count, datatype)
    of(comm).allreduce(into if send == ABI["IN_PLACE"] else array(send, count, datatype), OPS[op], out=into)


def bcast(data: int, count: int, datatype: int, root: int, comm: int) -> None:
    of(comm).broadcast(array(data, count, datatype), root)


def barrier(comm: int) -> None:
    of(comm).barrier()


def send(data: int, count: int, datatype: int, to: int, tag: int, comm: int) -> None:
    if to != ABI["PROC_NULL"]:
        of(comm).send(array(data, count, datatype), to, tag)


def recv(data: int, count: int, datatype: int, source: int, tag: int, comm: int, status: Any) -> None:
    """A message may be shorter than the room for it: the room is cut to it."""
    if source == ABI["PROC_NULL"]:
        return _tell(status, source, ABI["ANY_TAG"])
    wanted = None if source == ABI["ANY_SOURCE"] else source, None if tag == ABI["ANY_TAG"] else tag
    found = of(comm).probe(*wanted)
    assert found is not None  # it waits for ever
    room = array(data, count, datatype)
    if found.nbytes > room.nbytes:
        text = f"a message of {found.nbytes} bytes came from rank {found.source}, and there is room for {room.nbytes}"
        raise ValueError(text)
    of(comm).recv(room[: found.nbytes // room.itemsize], found.source, found.tag)
    return _tell(status, found.source, found.tag)


def _tell(status: Any, source: int, tag: int) -> None:
    if status:
        status[0], status[1], status[2] = source, tag, ABI["SUCCESS"]


def abort(comm: int, code: int) -> None:
    print(f"hocket: MPI_Abort({code})", file=sys.stderr, flush=True)
    os._exit(code & 255 or 1)


def carried_out(name: str, function: Callable[..., None], *kinds: Any) -> Any:
    """A function for C: 0; where it fails, the other ranks hear of it, and the program ends."""

    def body(*given: Any) -> int:
        try:
            function(*given)
        except BaseException as error:
            print(f"hocket: MPI_{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if world := _comms.get(ABI["COMM_WORLD"]):
                world.abort(error)
            os._exit(1)
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(body)


_int, _ints, _words = ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(_Word)
TABLE = [
    carried_out("Init", init), carried_out("Finalize", finalize), carried_out("Comm_rank", comm_rank, _Word, _ints),
    carried_out("Comm_size", comm_size, _Word, _ints),
    carried_out("Comm_split", comm_split, _Word, _int, _int, _words), carried_out("Comm_free", comm_free, _words),
    carried_out("Allreduce", allreduce, _Word, _Word, _int, _Word, _Word, _Word),
    carried_out("Bcast", bcast, _Word, _int, _Word, _int, _Word), carried_out("Barrier", barrier, _Word),
    carried_out("Send", send, _Word, _int, _Word, _int, _int, _Word),
    carried_out("Recv", recv, _Word, _int, _Word, _int, _int, _Word, _ints), carried_out("Abort", abort, _Word, _int),
]  # fmt: skip
"""In the order of c_programs.h."""
ctypes.CDLL(loading.LIBRARY).hocket_serve_c(
    (ctypes.c_void_p * len(TABLE))(*(ctypes.cast(each, ctypes.c_void_p) for each in TABLE))
)
