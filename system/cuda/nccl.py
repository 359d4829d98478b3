"""NCCL by its own library, libnccl.so.2, which is opened when it is first asked for: no build and no wheel needs it.

It comes with torch and with CuPy, and as nvidia-nccl-cu13.  Their bindings of it, and nccl4py, differ from version to
version; the C functions that are used here have been the same since NCCL 2.14.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket.errors import TransportError
from hocket.system.cuda.driver import Device
from hocket.system.cuda.nvrtc import places

NAME = "libnccl.so.2"
LEAST, SHARES = (2, 14), (2, 30)
"""The first version whose calls need not block; and the first that lets ranks share a GPU, if the environment asks for
it (NCCL_MULTI_RANK_GPU_ENABLE=1)."""
ID_BYTES, IN_PROGRESS, NAP, LAST_CALL = 128, 7, 0.001, 1.0
WHO = Callable[[], object]


class _Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * ID_BYTES)]


class _Config(ctypes.Structure):
    """ncclConfig_t of 2.14; later versions take it by its size and version, and fill in the rest."""

    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int)]  # fmt: skip


class _Comm(ctypes.Structure):
    """hk_nccl of nccl.h."""

    _fields_ = [("comm", ctypes.c_void_p), ("inside", ctypes.c_uint64), ("state", ctypes.c_void_p),
                ("words", ctypes.c_void_p), ("last", ctypes.c_void_p)]  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    """The library, wherever it is; TransportError if it is nowhere, or too old."""
    for path in places((NAME,), "libnccl.so.2"):
        try:
            found = ctypes.CDLL(path)
        except OSError:
            continue
        break
    else:
        raise TransportError(f"{NAME} is not found: pip install nvidia-nccl-cu13, or set LD_LIBRARY_PATH")
    if _version(found) < LEAST:
        raise TransportError(f"NCCL {dotted(_version(found))} is too old: 2.14 or a later one is needed")
    found.ncclGetErrorString.restype = found.ncclGetLastError.restype = ctypes.c_char_p
    found.ncclGetLastError.argtypes = [ctypes.c_void_p]
    found.ncclCommInitRankConfig.argtypes = [ctypes.c_void_p, ctypes.c_int, _Id, ctypes.c_int, ctypes.c_void_p]
    found.ncclCommGetAsyncError.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    found.ncclCommAbort.argtypes = found.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    return found


def _version(found: ctypes.CDLL) -> tuple[int, ...]:
    code = ctypes.c_int()
    found.ncclGetVersion(ctypes.byref(code))
    major = 10000 if code.value >= 10000 else 1000  # before 2.9
    return code.value // major, code.value % major // 100, code.value % 100


def version() -> tuple[int, ...]:
    """Such as (2, 30, 4)."""
    return _version(library())


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def unique_id() -> bytes:
    """The number by which ranks find each other; it opens a port, at which one communicator meets."""
    made = _Id()
    _check(library().ncclGetUniqueId(ctypes.byref(made)))
    return bytes(made.bytes)


def shares() -> bool:
    """Has the user asked NCCL to let ranks share a GPU?"""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0").strip() not in ("", "0")


def _check(code: int, comm: Any = None) -> None:
    if code not in (0, IN_PROGRESS):
        words = library().ncclGetErrorString(code).decode(errors="replace")
        last = (library().ncclGetLastError(comm) or b"").decode(errors="replace").strip()
        raise TransportError(f"NCCL: {words}{last and f' ({last})'}")


class Nccl:
    """A communicator of NCCL's.  All `size` ranks make it together, with one `unique_id`.

    `usable` is called while they are awaited, and raises when one is lost.  TransportError in NCCL's words, or when
    `limit` seconds are over (0: never).
    """

    def __init__(self, device: Device, rank: int, size: int, number: bytes, usable: WHO, limit: float) -> None:
        self.device, nccl = device, library()
        self.call = _Comm(None, 0, *(_address(nccl, f"nccl{name}") for name in
                                     ("CommGetAsyncError", "GetErrorString", "GetLastError")))  # fmt: skip
        self.address, self.ending = ctypes.addressof(self.call), threading.Lock()
        self.about = f"NCCL {dotted(version())}"
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, 10000 * LEAST[0] + 100 * LEAST[1], 0)
        began, comm, state = time.monotonic(), ctypes.c_void_p(), ctypes.c_int(IN_PROGRESS)
        try:
            with device:
                told = _Id((ctypes.c_ubyte * ID_BYTES)(*number))
                _check(nccl.ncclCommInitRankConfig(ctypes.byref(comm), size, told, rank, ctypes.byref(config)), comm)
                while True:
                    _check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)), comm)
                    _check(state.value, comm)
                    if state.value == 0:
                        break
                    usable()
                    if 0 < limit < time.monotonic() - began:
                        raise TransportError(f"NCCL: not all {size} ranks met within {limit:g} s")
                    time.sleep(NAP)
        except BaseException:
            self.call.comm = comm
            self.abort()
            raise
        self.call.comm = comm

    def function(self, name: str) -> int:
        """The address of a function; 0: this version has none of that name."""
        return _address(library(), name)

    def abort(self) -> None:
        """End what it does on the GPU, and it: in a thread, as NCCL may wait there for the other ranks' aborts."""
        threading.Thread(target=self._end, args=("ncclCommAbort",), name="hocket-nccl-abort", daemon=True).start()

    def close(self) -> None:
        """End it, if `abort` has not: all that was issued has been done, and all ranks come to this."""
        self._end("ncclCommDestroy")

    def _end(self, how: str) -> None:
        with self.ending:
            comm, self.call.comm = self.call.comm, None
        if not comm:
            return
        deadline = time.monotonic() + LAST_CALL
        time.sleep(NAP)  # all threads see that by now
        while self.call.inside and time.monotonic() < deadline:  # who cannot leave is freed by the abort
            time.sleep(NAP)
        with contextlib.suppress(TransportError), self.device:  # unless that GPU is lost
            getattr(library(), how)(comm)


def _address(found: ctypes.CDLL, name: str) -> int:
    function = getattr(found, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0
