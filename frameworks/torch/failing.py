"""hocket's errors under torch: the same words, of classes that are torch's too, so that `except RuntimeError` and
`except torch.distributed.DistError` catch them, and torchelastic sees a failed rank as it does with other backends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import torch.distributed as dist

import hocket


class PeerLostError(hocket.PeerLostError, dist.DistNetworkError):
    """Other processes of the group have gone."""


class TransportError(hocket.TransportError, dist.DistNetworkError):
    """Bytes could not be moved."""


class TimeoutError(hocket.TimeoutError, dist.DistBackendError):
    """A call did not finish in time."""


class MismatchError(hocket.MismatchError, dist.DistBackendError):
    """The ranks called different things."""


class ArgumentError(hocket.ArgumentError, dist.DistError):
    """This rank's call is wrong."""


class Error(hocket.Error, dist.DistError):
    """Anything else."""


LIMIT = re.compile(r"A longer limit: timeout= of the call, or HOCKET_TIMEOUT\.|timeout= or HOCKET_TIMEOUT is the limit")
OURS = (PeerLostError, TransportError, TimeoutError, MismatchError, ArgumentError, Error)
KINDS = {kind.__mro__[1]: kind for kind in OURS}


def as_torch(error: BaseException) -> BaseException:
    """The same error as a torch error; any other as it is."""
    kind = KINDS.get(type(error))
    if kind is None:
        return error
    made = kind(LIMIT.sub("a longer limit: the timeout of init_process_group, new_group or the call", str(error)))
    vars(made).update(vars(error))
    return made.with_traceback(error.__traceback__)


@contextlib.contextmanager
def in_torchs_words() -> Generator[None, None, None]:
    try:
        yield
    except hocket.Error as error:
        raise as_torch(error) from None
