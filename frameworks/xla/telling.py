"""This process's account of what it does, for processes that wait for it to come to a group.

A thread listens, and answers who brings the word that stands in JAX's store.  Where nobody listens any more, the
process is gone: the system says so at once, on every host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

WORKS, BLOCKED, ELSEWHERE, ENDED = "works in JAX", "waits", "is outside JAX", "has ended its program"
"""A process in a word.  BLOCKED: all its threads wait, for calls of hocket's or for each other."""
PASSIVE = ("threading", "queue", "concurrent.futures", "hocket.xla", "jax._src.array", "jax._src.api")
"""Modules in which threads wait for others of their process, or for programs to end."""
ANSWER = 0.5
"""Seconds that a process has to answer."""


@dataclasses.dataclass(frozen=True)
class Account:
    """A process in short: its state, and those for whom it waits."""

    does: str
    at: str
    """The line of its main thread."""
    cpu: float
    """Seconds that it has computed since it began."""
    meets: dict[str, list[int]]
    """By their names, the groups to which it has come, and the processes for which it waits there."""
    calls: dict[str, tuple[int, bool, list[int]]]
    """Its groups: collectives that it has begun, whether it is in one, and the members' processes."""

    def others(self) -> set[int]:
        """The processes that have part in what it waits for."""
        met = (each for group in self.meets.values() for each in group)
        return {*met, *(each for _, busy, members in self.calls.values() if busy for each in members)}


def account(meets: dict[str, list[int]], calls: dict[str, tuple[int, bool, list[int]]], inside: set[int]) -> Account:
    """This process's own; `inside`: the threads that are in hocket's calls."""
    frames, main = sys._current_frames(), threading.main_thread()
    others = [each for each in threading.enumerate() if each is not main and not each.daemon]
    lead = {each.ident for each in (main, *others)}
    kinds = {_kind(frame, number in inside, number == main.ident, number in lead) for number, frame in frames.items()}
    if ENDED in kinds or not (main.is_alive() or others):
        does = ENDED
    else:
        does = next((kind for kind in (WORKS, ELSEWHERE) if kind in kinds), BLOCKED)
    hidden = os.environ.get("HOCKET_ENCRYPT", "0") not in ("", "0")  # this connection is not encrypted
    return Account(does, "" if hidden else _line(frames.get(main.ident or 0)), time.process_time(), meets, calls)


def _kind(top: FrameType, inside: bool, main: bool, leads: bool) -> str:
    """A wait with a limit is none, unless its thread is a daemon: those of progress bars wait so all the time."""
    names: list[str] = []
    frame: FrameType | None = top
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__", "")))
        if names[-1] == "jax._src.distributed" and frame.f_code.co_name == "shutdown":
            return ENDED
        if names[-1] == "hocket.xla.absent":
            return BLOCKED
        frame = frame.f_back
    root = next((name for name in reversed(names) if name != "threading"), "")
    own = not main and root.startswith("hocket.") and root != "hocket.xla.programs"  # a thread of hocket's
    if inside or own:
        return BLOCKED
    if names[0].startswith(PASSIVE):
        return ELSEWHERE if leads and top.f_locals.get("timeout") not in (None, -1) else BLOCKED
    return WORKS if any(name.partition(".")[0] in ("jax", "jaxlib") for name in names) else ELSEWHERE


def _line(frame: FrameType | None) -> str:
    """The innermost line that is the user's."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(PASSIVE) and name.partition(".")[0] not in ("jax", "jaxlib", "hocket"):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


class Teller:
    """Answers, until it is closed."""

    def __init__(self, host: str, own: Callable[[], Account]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=64)
        self._own, self.word = own, secrets.token_hex(16)
        self.place = host, int(self._listener.getsockname()[1])
        os.register_at_fork(after_in_child=self._listener.close)  # a child is not this process
        threading.Thread(target=self._serve, name="hocket.xla-telling", daemon=True).start()

    def _serve(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # closed, or no descriptor is free
                time.sleep(ANSWER)
                continue
            with caller, contextlib.suppress(Exception):  # then it has no answer
                caller.settimeout(ANSWER)
                if hmac.compare_digest(caller.recv(len(self.word), socket.MSG_WAITALL), self.word.encode()):
                    caller.sendall(json.dumps(dataclasses.asdict(self._own())).encode())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()


def ask(host: str, port: int, word: str) -> Account | None:
    """The account of the process that listens there; None: it is gone.  Raises OSError: it does not answer."""
    try:
        with socket.create_connection((host, port), ANSWER) as asked:
            asked.sendall(word.encode())
            with asked.makefile("rb") as answer:
                return Account(**json.loads(answer.read() or b"{}"))
    except ConnectionRefusedError:
        return None
    except (ValueError, TypeError) as why:  # nothing, or not all of it
        raise OSError("no answer") from why
