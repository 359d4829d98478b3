"""A store that process managers keep: PMI-1's wire, of hydra (MPICH, Intel MPI) and of Slurm's --mpi=pmi2.

    init | get_my_kvsname | put, by rank 0 | barrier_in, by all | get          a line each, and a line in return

The manager holds the other end of the descriptor PMI_FD, or listens at PMI_PORT.  A process that has begun must end by
`finalize`, else the manager kills the job; and after that no MPI can begin here.  So it is said when Python ends, and
not where an MPI is in this process and says it itself.  Values are one word: text travels in base64.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import os
import select
import socket
import time
from collections.abc import Mapping

from hocket.errors import ArgumentError, TimeoutError, TransportError

PATIENCE = 5.0
"""Seconds in which a manager answers what waits for no other rank."""
MOST = 1 << 16
"""Bytes of a line."""
_wires: dict[tuple[str, str], ManagerWire] = {}
"""One for each manager, as PMI allows one `init` and one `finalize` of a process."""


class ManagerWire:
    """The connection to the manager.  TransportError: it has gone, or says no."""

    def __init__(self, sock: socket.socket, environ: Mapping[str, str]) -> None:
        self._sock, self._held = sock, b""
        self.rounds, self._pid = 0, os.getpid()
        told = dict(environ)
        if not environ.get("PMI_FD"):
            self.ask(f"initack pmiid={environ.get('PMI_ID') or environ['PMI_RANK']}")
            for _ in range(3):  # cmd=set size=, rank=, debug=
                told |= {f"PMI_{name.upper()}": value for name, value in (self.hear(PATIENCE) or {}).items()}
        self.rank, self.size = told.get("PMI_RANK", "0"), told.get("PMI_SIZE", "1")
        """The manager's words, or the environment's."""
        self.ask("init pmi_version=1 pmi_subversion=1")
        atexit.register(self._finalize)
        self.space = self.ask("get_my_kvsname")["kvsname"]

    def ask(self, line: str, seconds: float = PATIENCE) -> dict[str, str]:
        self.say(line)
        said = self.hear(seconds)
        if said is None:
            raise TransportError(f"the process manager does not answer `{line.split()[0]}` (PMI)")
        if said.get("rc", "0") != "0":
            raise TransportError(f"the process manager refuses `{line.split()[0]}` (PMI): {said.get('msg', said)}")
        return said

    def say(self, line: str) -> None:
        try:
            self._sock.sendall(f"cmd={line}\n".encode())
        except OSError as why:
            raise TransportError(f"the process manager has gone (PMI): {why.strerror}") from None

    def hear(self, seconds: float = 0.0) -> dict[str, str] | None:
        """The next line's words; None: it has not come within these seconds."""
        end = time.monotonic() + seconds
        while b"\n" not in self._held:
            if not select.select([self._sock], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = b""
            with contextlib.suppress(OSError):
                data = self._sock.recv(4096)
            if not data or len(self._held) > MOST:
                raise TransportError("the process manager has closed its end (PMI)")
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        words = (word.partition("=") for word in line.decode(errors="replace").split())
        return {name: value for name, _, value in words}

    def _finalize(self) -> None:
        if os.getpid() == self._pid and not _mpi_ends_later():
            with contextlib.suppress(TransportError):
                self.ask("finalize")


class PmiStore:
    """A store (store.py) for one meeting of all ranks.  `timeout`: seconds for all to come."""

    where = "the process manager (PMI)"

    def __init__(self, wire: ManagerWire, timeout: float) -> None:
        self._wire, self._timeout = wire, timeout
        wire.rounds += 1
        self._key = f"hocket-{wire.rounds}"
        self._waits = self._met = False

    def set(self, key: str, value: str) -> None:
        word = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")
        self._wire.ask(f"put kvsname={self._wire.space} key={self._key} value={word}")
        self._wire.say("barrier_in")
        if self._wire.hear(self._timeout) is None:
            raise TimeoutError(
                f"rank {self._wire.rank}: not all ranks have come to the process manager within {self._timeout:g} s", []
            )

    def get(self, key: str) -> bytes | None:
        if not self._waits:
            self._waits = True
            self._wire.say("barrier_in")
        if not self._met:
            self._met = self._wire.hear() is not None
        if not self._met:
            return None
        word = self._wire.ask(f"get kvsname={self._wire.space} key={self._key}").get("value", "")
        return base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))


def wire(environ: Mapping[str, str]) -> ManagerWire | None:
    """This process's; None: no manager is to be seen.  ArgumentError: PMI_FD or PMI_PORT leads nowhere."""
    told = environ.get("PMI_FD", ""), environ.get("PMI_PORT", "")
    if not any(told) or not (environ.get("PMI_RANK") or environ.get("PMI_ID")):
        return None
    if told not in _wires or _wires[told]._pid != os.getpid():
        try:
            sock = _by_descriptor(told[0]) if told[0] else _by_port(told[1])
        except (OSError, ValueError) as why:
            name = "PMI_FD" if told[0] else "PMI_PORT"
            raise ArgumentError(f"{name} is {environ[name]!r}, and no process manager is there: {why}") from None
        _wires[told] = ManagerWire(sock, environ)
    return _wires[told]


def _by_descriptor(text: str) -> socket.socket:
    """A second descriptor: an MPI that begins here later has the first.  It stays blocking, as that one is."""
    return socket.socket(fileno=os.dup(int(text)))


def _by_port(text: str) -> socket.socket:
    host, _, port = text.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def _mpi_ends_later() -> bool:
    """Is there an MPI in this process that has begun and not ended?"""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/libmpi" in line}:
            with contextlib.suppress(OSError, AttributeError):
                library, begun, over = ctypes.CDLL(path, mode=os.RTLD_NOLOAD), ctypes.c_int(), ctypes.c_int()
                library.MPI_Initialized(ctypes.byref(begun))
                library.MPI_Finalized(ctypes.byref(over))
                if begun.value and not over.value:
                    return True
    return False
