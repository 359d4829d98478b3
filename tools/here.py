"""The ranks that a process starts on its own machine: `hocket run`, or its agent on another host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from subprocess import DEVNULL, PIPE, Popen

from hocket.collectives.recording import memory
from hocket.system.cores import bound
from hocket.tools.forking import allowed
from hocket.tools.forking.ranks import Forked, ForkServer, fork_server
from hocket.tools.rank import Rank, common, start


class LocalRanks:
    """The ranks of this machine: `command` is their program, `ranks` their number.

    directory: the folder of their last words.  piped: their output comes to this process.
    """

    def __init__(self, command: list[str], ranks: int, directory: str, piped: bool = True, bind: str = "none") -> None:
        """ArgumentError: as `bind` says, there are too few cores."""
        self.command, self.ranks, self.directory, self.piped = command, ranks, directory, piped
        self.env = common(ranks, piped)
        self._cores = [] if bind == "none" else bound(bind, ranks, os.sched_getaffinity(0))
        self._started = 0

    @contextlib.contextmanager
    def fork_server(self, wanted: bool, stop: Callable[[], object]) -> Iterator[Callable[[], ForkServer | None]]:
        """A function that waits until ranks can be forked, or `stop()`; it returns None where they cannot be.

        They are not if that is not `wanted`, if the program does not allow it, or if each rank has a core: then they
        start side by side.
        """
        here = wanted and self.ranks > len(os.sched_getaffinity(0))
        folder = allowed.folder(self.command) if here else None
        if folder is None:
            yield lambda: None
            return
        with contextlib.ExitStack() as stack:
            server = None
            with contextlib.suppress(OSError):  # the ranks are started as they are, and say why they cannot be
                server = stack.enter_context(fork_server(self.command, folder, self.env, self.piped))

            def ready() -> ForkServer | None:
                with contextlib.suppress(OSError):
                    return server if server is not None and server.ready(stop) else None
                return None

            yield ready

    def rank(self, number: int, env: dict[str, str], reads: bool, server: ForkServer | None = None) -> Rank:
        """Start it.  `env`: on top of what all have; `reads`: it has our input.  OSError: it cannot be run."""
        env, recorder = self.env | env, _recorder()
        cores = self._cores[self._started % self.ranks] if self._cores else []  # of a newcomer: those of one that died
        self._started += 1
        process: Popen[bytes] | Forked
        if server is None:
            out, own = PIPE if self.piped else None, None if reads else DEVNULL
            process = start(self.command, env, recorder, cores, stdin=own, stdout=out, stderr=out)
        else:
            process = server.start(env, reads, None if recorder is None else (memory.HANDED, recorder), cores)
        return Rank(number, process, self.words(number), recorder)

    def words(self, number: int) -> str:
        """The file for its last words."""
        return os.path.join(self.directory, f"words-{number}")


def _recorder() -> int | None:
    """Memory for a rank's recorder; None where there is none for it, or HOCKET_RECORDER=0."""
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: this Python has no memfd_create
        return memory.make() if os.environ.get("HOCKET_RECORDER") != "0" else None
    return None
