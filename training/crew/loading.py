"""A newcomer's state, before it comes: a member sends its own while it trains.

What the member changes meanwhile is sent as it is at that moment, half changed perhaps; when the newcomer has come,
the blocks that differ are sent again (`Crew`).  It pays where a state stays as it is for longer than it takes to send
it: an outer loop's between two rounds.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import hocket
from hocket import Communicator, hosting
from hocket.errors import Error, MismatchError
from hocket.training.outer.members import Replica

log = logging.getLogger("hocket")
WORD = "state"
"""The name, in a member's notice, of the place where it sends its state."""
CONNECT = 10.0
"""Seconds in which the member that sends it has to accept."""
AT_ONCE = 8
"""Newcomers that take it at once; more wait."""
PATIENCE, SLOWEST = 30.0, 1 << 20
"""Seconds for an array that is sent, and one more for so many bytes of it: who takes them more slowly gets no more."""
NOTICE = 10.0
"""Seconds, at most, until a member has said whether it sends its state."""


class Donor:
    """Sends `state` to each that asks, in a thread of its own, until it is closed."""

    def __init__(self, comm: Communicator, state: Replica) -> None:
        self._state = state
        own = comm.door or ""
        host = own.removeprefix("tcp:").rpartition(":")[0] if own.startswith("tcp:") else None
        self._pairs = hocket.listen(iface=host, like=comm)
        comm.set_notice({WORD: self._pairs.address})
        self._free = threading.Semaphore(AT_ONCE)
        threading.Thread(target=self._serve, name="hocket-state", daemon=True).start()

    def close(self) -> None:
        self._pairs.close()

    def _serve(self) -> None:
        while True:
            try:
                pair = self._pairs.accept()
            except Error:  # it was closed
                return
            self._free.acquire()
            threading.Thread(target=self._send, args=(pair,), name="hocket-state", daemon=True).start()

    def _send(self, pair: Communicator) -> None:
        try:
            send(pair, self._state)
        except Error as why:
            log.info("a newcomer did not take the state: %s", why)
        finally:
            pair.close()
            self._free.release()


def send(pair: Communicator, state: Replica) -> None:
    """To rank 1 of two."""
    arrays = state.arrays()
    longest = max((array.nbytes for array in arrays.values()), default=0)
    pair.set_timeout(PATIENCE + longest / SLOWEST)
    pair.share({name: list(array.shape) for name, array in arrays.items()}, "a state")
    for _, array in sorted(arrays.items()):
        pair.send(array, 1)


def load(join: Any, state: Replica, timeout: float = 600.0, **how: Any) -> bool:
    """Take a member's arrays, as they are.  False: the members offer none, or it was not to be had within `timeout`
    seconds.  `how`: secret, encrypt and iface, as `hocket.init` has them.  Raises MismatchError (other shapes)."""
    notice = hosting.notice(join, min(timeout, NOTICE), **how)
    if not isinstance(notice, dict) or WORD not in notice:
        return False
    try:
        _take(hocket.connect(notice[WORD], timeout=min(timeout, CONNECT), **how), state, timeout)
    except MismatchError:
        raise
    except Error as why:
        log.warning("no member's state was loaded, it is taken at the first boundary: %s", why)
        return False
    return True


def _take(pair: Communicator, state: Replica, timeout: float) -> None:
    try:
        pair.set_timeout(timeout)
        arrays = state.arrays()
        own = {name: list(array.shape) for name, array in arrays.items()}
        theirs = pair.share(own, "a state")[0]
        if own != theirs:
            raise MismatchError(
                f"the members' state has arrays {theirs}, this process's has {own}: they must be the same"
            )
        for _, array in sorted(arrays.items()):
            pair.recv(array, 0)
    finally:
        pair.close()
