"""Training that goes on without the ranks that were lost: the survivors meet again, and restore what was committed.

Ranks are only lost, never added: that would need a launcher which starts them and tells the others, as horovodrun does.
`hocket run --elastic` leaves the survivors alone when a rank dies.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hocket
from hocket.collectives.job.place import meeting_path
from hocket.errors import PeerLostError
from hocket.horovod import job, process_sets
from hocket.horovod.exceptions import HostsUpdatedInterrupt, LostError

log = logging.getLogger("hocket")
SETTLE = 0.5
"""Seconds in which ranks that die together are all told of."""
MEETING = 30.0
"""Seconds for the survivors to meet; who does not come counts as lost."""
PORTS = 16


class State:
    """What training goes on from.  Subclasses say how it is saved and restored."""

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
        """What follows from a change of the ranks."""


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
        sync = True
        while True:
            try:
                if sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except LostError as error:
                log.warning("%s", error)
                only_global = len(job.current().ranks) == 1  # else they may be numbers within another process set
                rebuild(error.ranks if only_global else ())
                state.restore()
                sync = True
            except HostsUpdatedInterrupt as changed:
                sync = not changed.skip_sync
                rebuild()
            state.on_reset()

    return call


_meetings = 0


def rebuild(failed: Sequence[int] = ()) -> None:
    """Make a job of the ranks that are still there, in the same order.  All of them call it.

    `failed`: ranks that are known to have failed, although their processes may be there.

    Process sets other than the global one are no more.  Raises hocket's errors if the survivors do not meet.
    """
    global _meetings
    old = job.current()
    time.sleep(SETTLE)
    here = old.world.world
    gone = {*here.lost, *failed}
    places, token = old.elastic
    alone = [r for r in range(old.world.size) if old.world.members[r] not in gone]
    job.abandon()
    while True:
        _meetings += 1
        name = f"{token}.{_meetings}.{','.join(map(str, alone))}"
        rank = alone.index(old.world.rank)
        try:
            world = hocket.init(
                rank, len(alone), _address(places[alone[0]], name, len({place[0] for place in places}) == 1),
                timeout=MEETING, make_default=False)  # fmt: skip
            break
        except hocket.TimeoutError as late:
            missing = [alone[r] for r in late.missing]
            if not missing or old.world.rank in missing:
                raise
            log.warning("ranks %s did not come to the meeting after a loss: going on without them", missing)
            alone = [r for r in alone if r not in missing]
        except PeerLostError as lost:
            if not lost.ranks:
                raise
            alone = [r for i, r in enumerate(alone) if i not in lost.ranks]
    job.resume(world, old.perform)
    process_sets.started(None)
    log.warning("going on with %d of %d ranks; this one was rank %d and is rank %d now",
                len(alone), old.world.size, old.world.rank, world.rank)


def _address(place: tuple[int, str], name: str, one_host: bool) -> str:
    """Where the survivors meet: at the first of them."""
    if one_host:
        return "unix:" + meeting_path(os.environ, name)
    first = 20000 + sum(name.encode()) * 37 % 10000
    return f"tcp:{place[1]}:{first}-{first + PORTS - 1}"

