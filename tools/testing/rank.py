"""One rank of a pool: runs the functions that its pool names, one after the other, until the pool ends.

    orders      ("run", function and arguments, pickled, variables), ("check",), ("abort",), ("where",), ("end",)
    answers     ("ready",) or ("broken", text); ("failing",); ("done", value) or ("raised", Raised); ("fit", calls);
                ("where", text)
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

import hocket
from hocket.collectives.base.callsite import thread_site
from hocket.collectives.job import last_words
from hocket.collectives.job.uncaught import leave_users_frames
from hocket.collectives.start import default
from hocket.collectives.start.init import fail_all
from hocket.collectives.waiting.queued import unended
from hocket.errors import Error


class Raised(NamedTuple):
    """An error that a function raised on a rank."""

    text: str
    """The traceback."""
    kind: int
    """Its kind (`kind_of`): whether errors of other ranks follow from it, or it from them."""


BETWEEN = ("/_pytest/", "/hocket/tools/testing/", "/pluggy/")
"""Folders of what calls the user's functions here."""
at_end: list[Callable[[], object]] = []
"""Functions that are called when the pool ends."""
_failure: BaseException | None = None


def kind_of(error: BaseException) -> int:
    """0: the rank's own failure; 1: an error of hocket's, which may follow from another rank's; 2: one that does."""
    return isinstance(error, Error) + isinstance(error, (hocket.PeerLostError, hocket.TimeoutError))


def failing(error: BaseException) -> None:
    """Tell the pool that the function that runs has failed here.  If the others do not end, their calls will."""
    global _failure
    if _failure is None:
        _failure = error
        _tell("failing")


def crash_of(place: str) -> str:
    """The file that a rank with this place for its last words writes where it was when it crashed."""
    return f"{place}-crash"


def main(end: Connection, env: dict[str, str]) -> None:
    """The whole life of a rank."""
    global _tell
    os.environ.update(env)
    crashes = open(crash_of(env[last_words.PLACE]), "w")  # noqa: SIM115
    faulthandler.enable(crashes, all_threads=False)
    import_module("numpy.random").seed()  # Python's own generator does so by itself
    sending = threading.Lock()

    def tell(*answer: Any) -> None:
        with sending:
            end.send(answer)

    _tell = tell
    try:
        comm = hocket.init()
    except BaseException:
        tell("broken", traceback.format_exc())
        return
    orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(end, orders), name="hocket-orders", daemon=True).start()
    tell("ready")
    while True:
        what, *order = orders.get()
        if what == "end":
            break
        if what == "check":
            tell("fit", comm.sequence if _is_fit(comm) else None)
            continue
        try:
            tell(*_run(comm, *order))
        except Exception:  # what cannot be pickled
            tell("raised", Raised(traceback.format_exc(), 0))
    for each in at_end:
        each()
    with contextlib.suppress(Error):
        comm.close()


def _tell(*answer: Any) -> None:
    raise AssertionError("this process is not a rank")


def _run(comm: hocket.Communicator, call: bytes, env: dict[str, str]) -> tuple[str, Any]:
    global _failure
    _failure = None
    os.environ.update(env)
    default.set_default(comm)
    try:
        function, args = pickle.loads(call)
        return "done", function(comm, *args)
    except BaseException as error:
        failing(error)
        leave_users_frames(error)
        text = traceback.format_exception(type(error), error, _users(error.__traceback__))
        return "raised", Raised("".join(text), kind_of(error))


def is_between(place: str) -> bool:
    """Is this source file one of those that call the user's functions?"""
    return any(each in place for each in BETWEEN)


def _users(trace: TracebackType | None) -> TracebackType | None:
    """From the user's first line on; the whole if it is not there."""
    found, each = trace, trace
    while each is not None:
        if is_between(each.tb_frame.f_code.co_filename):
            found = each.tb_next
        each = each.tb_next
    return found or trace


def _is_fit(comm: hocket.Communicator) -> bool:
    """May the next function use it: nothing failed, nothing is on its way?"""
    try:
        queues = [each.engine for each in comm.membership.queues.values()]
        return comm.reporter.broken is None and not any(map(unended, queues)) and comm.probe(None, None, 0) is None
    except Error:
        return False


def _listen(end: Connection, orders: queue.SimpleQueue[tuple[Any, ...]]) -> None:
    """Hear also while the function runs."""
    try:
        while True:
            what, *order = end.recv()
            if what == "abort" and _failure is not None:
                fail_all(_failure)
            elif what == "where":
                _tell("where", thread_site())
            else:
                orders.put((what, *order))
    except (EOFError, OSError):
        os._exit(1)  # the pool has ended without a word
