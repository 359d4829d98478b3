"""hocket's errors under torch: the same words, of classes that are torch's too, so that `except RuntimeError` and
`except torch.distributed.DistError` catch them, and torchelastic sees a failed rank as it does with other backends."""

from __future__ import annotations

import re
from functools import partial

import torch.distributed as dist

from hocket import errors

LIMIT = re.compile(r"A longer limit: timeout= of the call, or HOCKET_TIMEOUT\.|timeout= or HOCKET_TIMEOUT is the limit")
TORCHS = "a longer limit: the timeout of init_process_group, new_group or the call"
OURS = errors.under(
    dist.DistError, __name__, partial(LIMIT.sub, TORCHS),
    PeerLostError=dist.DistNetworkError, TransportError=dist.DistNetworkError, TimeoutError=dist.DistBackendError,
    MismatchError=dist.DistBackendError,
)  # fmt: skip
as_torch, in_torchs_words = OURS.turned, OURS.raised

# By their names, as launchers pickle errors.
Error, ArgumentError, MismatchError = OURS[errors.Error], OURS[errors.ArgumentError], OURS[errors.MismatchError]
PeerLostError, TimeoutError = OURS[errors.PeerLostError], OURS[errors.TimeoutError]
TransportError, ScheduleError = OURS[errors.TransportError], OURS[errors.ScheduleError]
MemoryError = OURS[errors.MemoryError]
