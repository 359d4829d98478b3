"""`subprocess.Popen` whose Python programs are forked from a warm process instead of executed, where nobody can tell.

In a process that is started so, `subprocess.Popen` is this class, too: there a program is forked from that process
itself, as a child that it can wait for.  A program that wants an interpreter of its own is started with `cold=True`.
"""

from __future__ import annotations

import array
import dataclasses
import gc
import json
import os
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from support.warm import parent, program

HERE = dict(os.environ)
"""The variables with which warm parents are started, but for those that `program.allowed` lets pass."""
FORKS = "HOCKET_FORKS"
"""Whoever starts such a server of forks (tools/forking) wants its children as its own."""


@dataclasses.dataclass
class Spent:
    """Cost of the programs that this process has had started so."""

    cpu: float = 0.0
    """Seconds, of those that ended and whose end was awaited."""
    hear: Callable[[], object] = lambda: None
    """Called for each that is started."""


spent = Spent()
is_warm = False
"""Is this process a fork of a warm one?"""


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A subprocess.Popen.  `host`: a network namespace, and the folder that is its TMPDIR there; `cores`: its own."""

    _told: socket.socket | None = None

    def __init__(
        self, args: Any, *more: Any, cold: bool = False, host: Sequence[str] = (), cores: Iterable[int] = (),
        **options: Any,
    ) -> None:  # fmt: skip
        by_asyncio = sys._getframe(1).f_globals.get("__name__", "").startswith("asyncio")  # it waits for the pid itself
        self._cold, self._host, self._cores = cold or by_asyncio, host, cores
        super().__init__(args, *more, **options)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: int, shell: bool, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int, session: bool,
        group: int = -1,
    ) -> None:  # fmt: skip
        words = [args] if isinstance(args, str) else list(map(os.fspath, args))
        env = dict(os.environ if env is None else env)
        cold = self._cold or shell or executable or uid or gid or gids or not program.allowed(env, HERE)
        found = None if cold else program.parsed(words, cwd)
        if found is not None:
            fds = [own if own != -1 else fd for fd, own in enumerate((p2cread, c2pwrite, errwrite))]
            place = {"words": words, "env": env, "cwd": os.fspath(cwd or os.getcwd()), "pass_fds": list(pass_fds)}
            if is_warm:
                self._fork(found, place, fds, preexec_fn, session, group)
            elif preexec_fn is None or (_dies(preexec_fn) and FORKS not in env):
                self._order(found, place, fds)
            if self._child_created:
                self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
                return
        more = () if sys.version_info < (3, 11) else (group,)
        super()._execute_child(  # type: ignore[misc]
            args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread,
            p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask, session, *more,
        )  # fmt: skip

    # --- of a warm parent's

    def _order(self, found: program.Program, place: dict[str, Any], fds: list[int]) -> None:
        spent.hear()
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a word is a packet
        order = {**place, "host": self._host, "cores": sorted(self._cores or os.sched_getaffinity(0))}
        with theirs:
            parent.connected(found.text(place["cwd"])).sendmsg(
                [json.dumps(order).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno(), *fds, *place["pass_fds"]]))],
            )
        self.pid = int(self._told.recv(100))
        self._child_created = True

    def _internal_poll(self, *args: Any, **options: Any) -> Any:
        if self._told is None:
            return super()._internal_poll(*args, **options)  # type: ignore[misc]
        self._hear_end(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> Any:
        if self._told is None:
            return super()._wait(timeout)  # type: ignore[misc]
        self._hear_end(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _hear_end(self, timeout: float | None) -> None:
        assert self._told is not None
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            with self._waitpid_lock:  # type: ignore[attr-defined]
                if self.returncode is None:
                    code, cpu = self._told.recv(100).split() or (b"-9", b"0")  # its parent was killed, and it too
                    spent.cpu += float(cpu)
                    self.returncode = int(code)

    # --- of this process's own

    def _fork(
        self, found: program.Program, place: dict[str, Any], fds: list[int], before: Any, session: bool, group: int
    ) -> None:
        sys.stdout and sys.stdout.flush()
        pid = os.fork()
        if pid:
            self.pid, self._child_created = pid, True
            return
        gc.freeze()  # whatever the parent has dropped: its descriptors have other owners soon
        try:
            program.place({**dict(enumerate(fds)), **{fd: fd for fd in place["pass_fds"]}})
            os.chdir(place["cwd"])
            if session:
                os.setsid()
            elif group >= 0:
                os.setpgid(0, group)
            if before is not None:
                before()
            program.forget()
        except BaseException:
            traceback.print_exc()
            os._exit(255)
        program.run(found, place["env"], place["words"])


def _dies(before: Any) -> bool:
    """Is it system.parent.die_with?  What a warm parent forks dies with that."""
    return str(getattr(before, "__qualname__", "")).startswith("die_with.")


def install() -> None:
    """From now on `subprocess.Popen` is this class."""
    subprocess.Popen = Popen  # type: ignore[misc]


def become(found: program.Program, order: Mapping[str, Any]) -> NoReturn:
    """In a fork of a warm parent, whose descriptors are set: be that program."""
    global is_warm
    is_warm = True
    program.run(found, order["env"], order["words"])
