"""Training that goes on without the ranks that were lost: the survivors meet again, and restore what was committed.

Ranks are only lost, never added: that would need a launcher which starts them and tells the others, as horovodrun does.
`hocket run --elastic` leaves the survivors alone when a rank dies.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hocket
from hocket.horovod import job, meeting, process_sets
from hocket.horovod.exceptions import HostsUpdatedInterrupt, PeerLostError

log = logging.getLogger("hocket")
ATTEMPTS = 6
"""To meet again, each for a part of the time that ranks have for it; who does not come to one is left out."""


class State:
    """The state that training goes on from.  Subclasses say how it is saved and restored."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """To be called when the ranks have changed: learning rates may depend on how many there are."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """From here training goes on after a loss.  It copies the state, so not after every batch."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Nothing: hocket knows no hosts that come."""

    def save(self) -> None:
        """Remember the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was remembered."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Act on a change of the ranks."""


class ObjectState(State):
    """Python objects, as attributes: `ObjectState(broadcast, epoch=0).epoch`."""

    def __init__(self, bcast_object: Callable[[Any], Any], **values: Any) -> None:
        super().__init__()
        self._bcast_object, self._values = bcast_object, values
        self._set()

    def save(self) -> None:
        """Remember the attributes."""
        self._values = {name: getattr(self, name) for name in self._values}

    def restore(self) -> None:
        """Go back to the attributes that were remembered."""
        self._set()

    def sync(self) -> None:
        """Take rank 0's attributes."""
        if self._values:
            self.save()
            self._values = self._bcast_object(self._values)
            self._set()

    def _set(self) -> None:
        for name, value in self._values.items():
            setattr(self, name, value)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a state that is called again, with the state of the last commit, when ranks are lost.

    An error that is not the loss of a rank is raised as it is: with the same ranks it would come again.
    """

    @functools.wraps(func)
    def call(state: State, *args: Any, **kwargs: Any) -> Any:
        sync, changed = True, False
        while True:
            try:
                if changed:
                    state.on_reset()
                if sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except PeerLostError as error:
                log.warning("%s", error)
                only_global = len(job.current().ranks) == 1  # else they may be numbers within another process set
                rebuild(error.ranks if only_global else ())
                state.restore()
                sync = True
            except HostsUpdatedInterrupt as update:
                sync = not update.skip_sync
                rebuild()
            changed = True

    return call


def rebuild(failed: Sequence[int] = ()) -> None:
    """Make a job of the ranks that are still there, in the same order.  All of them call it.

    `failed`: ranks that are known to have failed, although their processes may be there.  Ranks may be lost meanwhile.

    Process sets other than the global one are no more.  Raises hocket's errors if the survivors do not meet.
    """
    old = job.current()
    comm = _met_again(old, failed) if old.comm.door is None else _renewed(old, failed)
    process_sets.started(None)
    log.warning("going on with %d of %d ranks; this one was rank %d and is rank %d now",
                comm.size, old.comm.size, old.comm.rank, comm.rank)


def _renewed(old: job.Job, failed: Sequence[int]) -> hocket.Communicator:
    """In a job that outlives its ranks (`hocket run --elastic`): whoever dies, also rank 0."""
    job.abandon(keep=True)
    comm, without = old.comm, sorted({*failed} - {old.comm.rank})
    for _ in range(ATTEMPTS):
        try:
            comm = comm.renew(without=without, timeout=meeting.SECONDS / ATTEMPTS, admit=False)
        except hocket.TimeoutError as late:
            log.warning("ranks %s did not come to the meeting after a loss: going on without them", late.missing)
            without = list(late.missing)
            continue
        without = []
        try:
            job.resume(comm, old.perform)
            return comm
        except hocket.PeerLostError as error:
            log.warning("%s", error)
    raise hocket.PeerLostError(f"rank {comm.rank}: ranks were lost again and again while the others met", comm.lost)


def _met_again(old: job.Job, failed: Sequence[int]) -> hocket.Communicator:
    """The members meet at the first of them; a rank that is gone may not have been heard of by all."""
    time.sleep(meeting.SETTLE)
    me = old.survivors.ranks[old.comm.rank]
    survivors = old.survivors.without({*old.comm.lost, *failed})
    job.abandon()
    while True:
        comm, survivors = meeting.meet(survivors, me)
        try:
            job.resume(comm, old.perform, survivors)
            return comm
        except hocket.PeerLostError as error:
            log.warning("%s", error)
            time.sleep(meeting.SETTLE)
            gone = comm.lost or error.ranks
            comm.close()
            if not gone:
                raise
            survivors = survivors.without(gone)
