"""The launcher's end: asks the server for ranks, and has them as children of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from hocket.system.parent import adopting, die_with
from hocket.tools.forking import server

HERE = os.path.dirname(os.path.abspath(__file__))
LOOK = 0.1  # seconds between looks whether the job is to end before it has begun


class Forked:
    """A rank: what `hocket run` uses of subprocess.Popen."""

    def __init__(self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr

    def wait(self) -> int:
        """The rank's exit code, or the signal that killed it as a negative number."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextlib.contextmanager
def fork_server(command: list[str], folder: str, environ: Mapping[str, str], piped: bool) -> Iterator[ForkServer]:
    """A started server, which ends with the block, ready or not; the ranks go on.  OSError: it cannot be started.

    `folder`: of the program's own modules; `environ`: what a rank's variables come on top of; `piped`: the ranks'
    output comes to the launcher.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = [HERE, *filter(None, [environ.get("PYTHONPATH")])]
    env = {**environ, server.PLACE: f"{theirs.fileno()}:{folder}", "PYTHONPATH": os.pathsep.join(paths)}
    output = subprocess.DEVNULL if piped else None
    with adopting(), ours:
        with theirs:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=[theirs.fileno()], start_new_session=True, preexec_fn=die_with(os.getpid()),
            )  # fmt: skip
        try:
            yield ForkServer(ours, environ, piped)
        finally:
            process.kill()
            process.wait()


class ForkServer:
    """The connection to a server."""

    def __init__(self, ours: socket.socket, environ: Mapping[str, str], piped: bool) -> None:
        self._ours, self._environ, self._piped = ours, environ, piped

    def ready(self, stop: Callable[[], object]) -> bool:
        """Wait until the server has imported what ranks need; False: this program cannot be forked, or `stop()`."""
        while not stop():
            if select.select([self._ours], [], [], LOOK)[0]:
                return self._ours.recv(server.MOST) == server.READY
        return False

    def start(
        self, env: Mapping[str, str], reads: bool, recorder: tuple[str, int] | None, cores: list[int]
    ) -> Forked:
        """A rank.  `reads`: it has our input; `recorder`: a variable, and the descriptor whose number it tells.

        `cores`: it runs on these alone, if any are named.

        OSError: it cannot be forked.
        """
        descriptors: list[tuple[int | str, int]] = [(0, 0)] if reads else []
        descriptors += [recorder] if recorder is not None else []
        pipes = [os.pipe(), os.pipe()] if self._piped else []
        descriptors += [(target, pipe[1]) for target, pipe in enumerate(pipes, 1)]
        try:
            pid = self.fork(env, descriptors, cores)
        except OSError:
            _close(pipe[0] for pipe in pipes)
            raise
        finally:
            _close(pipe[1] for pipe in pipes)
        out, err = (os.fdopen(pipe[0], "rb", 0) for pipe in pipes) if pipes else (None, None)
        return Forked(pid, out, err)

    def fork(
        self, env: Mapping[str, str], descriptors: list[tuple[int | str, int]], cores: Sequence[int] = ()
    ) -> int:
        """The pid of a rank that has these descriptors, each as the number, or in the variable, beside it.  OSError."""
        own = {name: value for name, value in env.items() if self._environ.get(name) != value}
        order = json.dumps(server.Order(own, [target for target, _ in descriptors], [*cores])).encode()
        socket.send_fds(self._ours, [order], [fd for _, fd in descriptors])
        said = self._ours.recv(server.MOST)
        if not said.isdigit():
            raise BlockingIOError(0, said.decode(errors="replace") or "the process to fork from has ended")
        return int(said)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
