"""A store that PMIx keeps: of Open MPI's mpirun and of prterun, by the library that the launcher itself uses.

    PMIx_Init | PMIx_Put and PMIx_Commit, by rank 0 | PMIx_Fence, by all | PMIx_Get

A process that has begun must end by PMIx_Finalize, else the launcher kills the job; and one that begins again after
that crashes (Open MPI 5.0.11's).  So it begins once, and ends when Python does.  An Open MPI that begins later in this
process fails: ranks with mpi4py meet through MPI, and not here.
The structures are those of PMIx 3 to 5, as far as they are used.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.errors import TimeoutError, TransportError

NAME = "libpmix.so.2"
PLACES = ("lib/openmpi", "lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
WILDCARD, GLOBAL, STRING, UINT32 = 2**32 - 2, 3, 3, 14
"""PMIX_RANK_WILDCARD, PMIX_GLOBAL, and the types of values."""


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (("string", ctypes.c_char_p), ("uint32", ctypes.c_uint32), ("room", ctypes.c_char * 64))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class Pmix:
    """The library, begun, once in a process.  TransportError: it does not begin, or says no."""

    begun: Pmix | None = None

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._me, self._pid = library, _Process(), os.getpid()
        self._check("PMIx_Init", library.PMIx_Init(ctypes.byref(self._me), None, ctypes.c_size_t(0)))
        Pmix.begun = self
        atexit.register(self._end)

    def size(self) -> int:
        value = self._get(WILDCARD, "pmix.job.size")
        assert value is not None and value.type == UINT32
        return int(value.data.uint32)

    def put(self, key: str, text: str) -> None:
        value = _Value(STRING)
        value.data.string = text.encode()
        put = self._library.PMIx_Put(ctypes.c_uint8(GLOBAL), key.encode(), ctypes.byref(value))
        self._check("PMIx_Put", put)
        self._check("PMIx_Commit", self._library.PMIx_Commit())

    def fence(self) -> None:
        """Wait for all ranks."""
        self._check("PMIx_Fence", self._library.PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0)))

    def get(self, key: str) -> bytes | None:
        """A text of rank 0's."""
        value = self._get(0, key)
        return None if value is None or value.type != STRING else bytes(value.data.string)

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._library.PMIx_Finalize(None, ctypes.c_size_t(0))

    def _get(self, rank: int, key: str) -> Any:
        who, found = _Process(self._me.namespace, rank), ctypes.POINTER(_Value)()
        none = None, ctypes.c_size_t(0)
        failed = self._library.PMIx_Get(ctypes.byref(who), key.encode(), *none, ctypes.byref(found))
        return None if failed else found.contents

    def _check(self, call: str, code: int) -> None:
        if code:
            raise TransportError(f"{call} failed with {code} (PMIx)")


class PmixStore:
    """A store (store.py) for one meeting of all ranks.  `timeout`: seconds for all to come."""

    where = "the process manager (PMIx)"
    _rounds = 0

    def __init__(self, pmix: Pmix, timeout: float) -> None:
        PmixStore._rounds += 1
        self._pmix, self._timeout, self._key = pmix, timeout, f"hocket-{PmixStore._rounds}"
        self._thread: threading.Thread | None = None
        self._outcome: list[bytes | Exception | None] = []

    def set(self, key: str, value: str) -> None:
        self._begin(value)
        assert self._thread is not None
        self._thread.join(self._timeout)
        if not self._outcome:
            raise TimeoutError(f"rank 0: not all ranks have come to the process manager within {self._timeout:g} s", [])
        if isinstance(self._outcome[0], Exception):
            raise self._outcome[0]

    def get(self, key: str) -> bytes | None:
        if self._thread is None:
            self._begin(None)
        if not self._outcome:
            return None
        if isinstance(self._outcome[0], Exception):
            raise self._outcome[0]
        return self._outcome[0]

    def _begin(self, value: str | None) -> None:
        """A fence waits inside the library: so a thread does."""

        def meet() -> None:
            try:
                if value is not None:
                    self._pmix.put(self._key, value)
                self._pmix.fence()
                self._outcome.append(self._pmix.get(self._key))
            except Exception as why:
                self._outcome.append(why)

        self._thread = threading.Thread(target=meet, name="hocket: PMIx", daemon=True)
        self._thread.start()


def pmix(environ: Mapping[str, str]) -> Pmix | None:
    """This process's; None: its launcher has no PMIx, or its library is not found.

    TransportError: it does not begin.
    """
    if not (environ.get("PMIX_RANK") and environ.get("PMIX_NAMESPACE")):
        return None
    if Pmix.begun is not None:
        return Pmix.begun
    for path in (*_paths(environ), NAME):
        if path == NAME or os.path.exists(path):
            with contextlib.suppress(OSError):
                return Pmix(ctypes.CDLL(path))
    return None


def _paths(environ: Mapping[str, str]) -> Iterator[str]:
    """Beside the launcher's own program, which is this process's parent; then where its variables say."""
    prefixes = [environ.get(name, "") for name in ("PMIX_PREFIX", "PRTE_PREFIX", "OPAL_PREFIX")]
    with contextlib.suppress(OSError):
        prefixes.insert(0, os.path.dirname(os.path.dirname(os.readlink(f"/proc/{os.getppid()}/exe"))))
    for prefix in dict.fromkeys([*filter(None, prefixes), sys.prefix]):
        yield from (os.path.join(prefix, place, NAME) for place in PLACES)
