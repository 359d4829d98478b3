"""hocket's errors, of classes that Horovod's users catch: `except hvd.HorovodInternalError`, `except RuntimeError`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from hocket import errors


class HorovodInternalError(errors.Error, RuntimeError):
    """A collective failed: the ranks disagree, a rank has gone, or the job was shut down."""


class ShutDownError(HorovodInternalError):
    """This rank, or one that is needed, has called hvd.shutdown()."""


class StallError(HorovodInternalError):
    """Some ranks did not submit a tensor in HOROVOD_STALL_SHUTDOWN_TIME_SECONDS."""


class NotInitializedError(errors.ArgumentError):
    """hvd.init() was not called."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


class UnsupportedError(errors.ArgumentError, NotImplementedError):
    """Horovod's interface has it, and hocket or Horovod has not; the text says what to do."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed, and training begins again without an error.  hocket itself never raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the job's hosts have changed")
        self.skip_sync = skip_sync


OURS = errors.under(HorovodInternalError, __name__)
MismatchError = OURS[errors.MismatchError]
"""The ranks submitted different things under one name.  Raised on all of them, for this name alone."""
PeerLostError = OURS[errors.PeerLostError]
"""Processes of the job have gone.  `ranks` names them.  hvd.elastic goes on without them."""
TimeoutError, TransportError = OURS[errors.TimeoutError], OURS[errors.TransportError]
ScheduleError, MemoryError = OURS[errors.ScheduleError], OURS[errors.MemoryError]


@contextlib.contextmanager
def in_horovods_words() -> Generator[None, None, None]:
    """Inside the block, errors become those that Horovod's users catch."""
    try:
        yield
    except errors.Error as error:
        raise as_horovod(error) from None


def as_horovod(error: BaseException) -> BaseException:
    """The same error as one that Horovod's users catch; any other, and one that is so already, as it is."""
    if isinstance(error, errors.ArgumentError):
        return error
    made = OURS.turned(error)
    if isinstance(made, HorovodInternalError) or not isinstance(made, (errors.Error, RuntimeError)):
        return made
    return HorovodInternalError(str(made)).with_traceback(error.__traceback__)
