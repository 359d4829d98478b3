"""An MPI job as hocket sees it: a private communicator, the way MPI may be called, and a meeting through MPI.

mpi4py is imported here and nowhere else in the library, and only by `started` (a launcher of MPI has started this
process) and for a communicator that the user hands over.  Nothing here waits for ever: what is collective in MPI is
started without blocking and looked at until a deadline, with naps between the looks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.errors import ArgumentError, TimeoutError, TransportError

NAP = 0.0005
"""Seconds between two looks at something that MPI does."""
NOTE_BYTES = 1024
"""The size of the note that rank 0 leaves for the others: a job, a key, two addresses.  Small enough to be sent at
once."""
FEWEST_TAGS = 32767
"""Every MPI has so many."""
CALLERS = 1
"""A value of `MpiJob.thread`: any thread that calls hocket, one at a time, but not hocket's own."""
_finalizing: list[Callable[[], None]] = []
_hooked = False


class MpiJob:
    """The ranks of an mpi4py communicator.  Collective: it is duplicated, so that no message meets the user's.

    Raises ArgumentError for what is no usable communicator, TimeoutError if not all of its ranks come.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        from hocket.transports.mpi.library import Mpi

        MPI = checked(comm)
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.level = level_name(MPI)
        self.thread = _who_may_call(MPI, self.level)
        """0: any thread; CALLERS; else the only thread that may, by its identifier."""
        self.mpi = Mpi(MPI, serial=self.level == "serialized")
        self.comm = self._private(comm, timeout)
        self.handle = int(self.comm.handle)
        self.library, self.about = _library(MPI), described()
        self.vendor: str = MPI.get_vendor()[0]
        """The second is for people."""
        self._tag, self._last_tag = 0, int(comm.Get_attr(MPI.TAG_UB) or FEWEST_TAGS)
        self._lock = threading.Lock()
        self.made: list[Any] = []
        """By `among`."""
        told_to_finalize(self.mpi.end)

    def _private(self, comm: Any, timeout: float) -> Any:
        MPI = self.mpi.MPI
        duplicate, request = comm.Idup()
        if not until(request, timeout):
            _kept.append((duplicate, request))
            raise TimeoutError(
                f"rank {self.rank}: not all {self.size} ranks of the MPI communicator came within {timeout:g} s", []
            )
        duplicate.Set_errhandler(MPI.ERRORS_RETURN)
        return duplicate

    def next_tags(self) -> int:
        """The first of two tags that only this rank receives on."""
        with self._lock:
            tag = self._tag
            if tag + 1 > self._last_tag:
                raise TransportError(
                    f"rank {self.rank} has used all {self._last_tag} tags of its MPI: too many communicators were made "
                    "over transport mpi; make fewer and use them longer"
                )
            self._tag += 2
            return tag

    def among(self, ranks: list[int], number: int) -> Any:
        """A communicator of these ranks, in this order, for the library's own collectives.

        All of them must be on their way to this: it blocks as MPI does.  `number`: the same on all; tells apart what
        several threads make at once.
        """
        MPI, group = self.mpi.MPI, self.comm.Get_group()
        some = group.Incl(ranks)
        comm = self.comm.Create_group(some, number % FEWEST_TAGS)
        some.Free()
        group.Free()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.made.append(comm)
        return comm

    def may_call(self) -> bool:
        """May this thread call MPI now?"""
        return not self.mpi.over and self.thread in (0, CALLERS, threading.get_ident())

    def close(self, clean: bool) -> None:
        """Nobody uses it any more.  `clean`: all ranks have come to this; else its communicators stay, as MPI may wait
        for those who are gone."""
        if clean and self.may_call() and not self.mpi.MPI.Is_finalized():
            for comm in (*self.made, self.comm):
                comm.Free()  # what is still under way on it ends first
        self.made.clear()


def described() -> str:
    """The MPI of this process, for people; starts none."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        return "MPI is not started here, only in ranks that mpirun starts"
    from hocket.transports.mpi.library import Mpi

    cuda = {True: "CUDA-aware", False: "not CUDA-aware", None: "not known to be CUDA-aware"}[cuda_aware(Mpi(MPI))]
    return f"{_library(MPI)}, thread level {level_name(MPI)}, {cuda}"


def _library(MPI: Any) -> str:
    version: str = " ".join(MPI.Get_library_version().split())
    return version.split(", package")[0].split(" MPICH Release")[0]


class MpiStore:
    """A store (store.py) of the one note that rank 0 leaves: it is broadcast.  `timeout`: seconds for that."""

    def __init__(self, job: MpiJob, timeout: float) -> None:
        self.job, self.timeout = job, timeout
        self.note = bytearray(NOTE_BYTES)
        self.request: Any = None

    def set(self, key: str, value: str) -> None:
        data = value.encode()
        if len(data) > NOTE_BYTES:
            raise TransportError(f"a note of {len(data)} bytes is too long for the meeting over MPI")
        self.note[: len(data)] = data
        self._start()
        if not until(self.request, self.timeout):
            _kept.append(self)
            raise TimeoutError(f"rank 0: its note did not reach the other MPI ranks within {self.timeout:g} s", [])

    def get(self, key: str) -> bytes | None:
        if self.request is None:
            self._start()
            _kept.append(self)  # MPI writes into the note, whatever becomes of us
        if not self.request.Test():
            return None
        if self in _kept:
            _kept.remove(self)
        return bytes(self.note).rstrip(b"\0")

    def _start(self) -> None:
        self.request = self.job.comm.Ibcast([self.note, self.job.mpi.MPI.BYTE], 0)


_kept: list[Any] = []
"""Requests that never ended, and what they may write into."""


def started(rank: int, size: int, launcher: str, timeout: float) -> MpiJob | str:
    """The job of MPI.COMM_WORLD for a process that the MPI `launcher` calls `rank` of `size`; or why there is none.

    All ranks get the same answer, as it depends on how they were started and what is installed.
    """
    from hocket.transports.mpi.transport import MpiTransport

    why = MpiTransport.available()
    if why:
        return why
    try:
        MPI = _initialized(launcher)
    except (ImportError, RuntimeError, OSError) as error:  # no MPI library, or one that mpi4py was not built for
        return f"mpi4py cannot load an MPI library: {error}"
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return f"MPI is {'finalized' if MPI.Is_finalized() else 'not initialized (mpi4py.rc.initialize is False)'}"
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        return (
            f"mpi4py's MPI says rank {world.rank} of {world.size}, the launcher says rank {rank} of {size}: mpi4py has "
            f"loaded another MPI than the launcher's ({MPI.Get_library_version().split(',')[0].strip()[:60]})"
        )
    if _who_may_call(MPI, level_name(MPI)) not in (0, CALLERS, threading.get_ident()):
        return f"MPI was started with thread level {level_name(MPI)}, by another thread than the one that calls init()"
    return MpiJob(world, timeout)


def _initialized(launcher: str) -> Any:
    """mpi4py.MPI, initialized as its settings say; but not under another MPI's launcher, where that may abort."""
    import mpi4py

    rc: Any = mpi4py.rc
    wanted, rc.initialize = rc.initialize, False
    try:
        from mpi4py import MPI
    finally:
        rc.initialize = wanted
    ours = MPI.get_vendor()[0]
    if wanted and not MPI.Is_initialized() and (ours == "Open MPI") == (launcher == "Open MPI"):
        MPI.Init_thread(getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE)
        _begun.append(MPI)
    elif wanted and not MPI.Is_initialized():
        raise OSError(f"{ours}, but the ranks were started by the launcher of {launcher}")
    return MPI


_begun: list[Any] = []
"""mpi4py's module, if it was we who started MPI: then we end it."""


def leave() -> None:
    """At exit, when all communicators are closed."""
    while _begun:
        MPI = _begun.pop()
        if not MPI.Is_finalized() and MPI.Is_thread_main():
            MPI.Finalize()


def checked(comm: Any) -> Any:
    """The module mpi4py.MPI, if `comm` is an intracommunicator of it that can be used now."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not isinstance(comm, MPI.Comm):
        raise ArgumentError(f"a {type(comm).__name__} is not an mpi4py communicator: pass MPI.COMM_WORLD or one of its")
    version = sys.modules["mpi4py"].__version__
    if int(version.split(".")[0]) < 4:
        raise ArgumentError(f"mpi4py {version} is too old: pip install 'mpi4py>=4'")
    if not MPI.Is_initialized():
        raise ArgumentError("MPI is not initialized: call MPI.Init_thread() first")
    if MPI.Is_finalized():
        raise ArgumentError("MPI is finalized: call this before MPI.Finalize()")
    if comm == MPI.COMM_NULL:
        raise ArgumentError("the communicator is COMM_NULL: this process is not a rank of it, and must not call this")
    if comm.Is_inter():
        raise ArgumentError("an intercommunicator has two groups of ranks; pass comm.Merge() instead")
    who = _who_may_call(MPI, level_name(MPI))
    if who not in (0, CALLERS, threading.get_ident()):
        raise ArgumentError(f"MPI has thread level {level_name(MPI)}: only the thread that started it may call it")
    return MPI


def level_name(MPI: Any) -> str:
    levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
    return levels.get(MPI.Query_thread(), "multiple")


def _who_may_call(MPI: Any, level: str) -> int:
    if level in ("multiple", "serialized"):
        return 0 if level == "multiple" else CALLERS
    main = threading.main_thread().ident or 0
    return threading.get_ident() if MPI.Is_thread_main() else main


def until(request: Any, seconds: float) -> bool:
    """Has it ended, after so many seconds at most?"""
    deadline = time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(NAP)
    return True


def cuda_aware(mpi: Any) -> bool | None:
    """Does this MPI take device memory?  None: it does not say, which counts as no."""
    answer: int | None = mpi.asked("MPIX_Query_cuda_support")
    if answer is not None:
        return bool(answer)
    offload = os.environ.get("I_MPI_OFFLOAD")  # Intel MPI's
    return None if offload is None else offload not in ("", "0")


def told_to_finalize(act: Callable[[], None]) -> None:
    """Call `act` when MPI_Finalize begins, while MPI can still be called; the latest first."""
    global _hooked
    _finalizing.append(act)
    if not _hooked:
        _hooked = True
        MPI = sys.modules["mpi4py.MPI"]
        key = MPI.Comm.Create_keyval(delete_fn=_finalize)
        MPI.COMM_SELF.Set_attr(key, _finalize)


def _finalize(comm: Any, key: Any, value: Any) -> None:
    while _finalizing:
        _finalizing.pop()()
