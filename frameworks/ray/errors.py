"""hocket's errors under Ray: the same words, of classes that are RuntimeErrors too, which Ray's own groups raise."""

from __future__ import annotations

from hocket import errors

OURS = errors.under(RuntimeError, __name__)
in_rays_words = OURS.raised()
"""A decorator."""

# By their names, as Ray pickles errors.
Error, ArgumentError, MismatchError = OURS[errors.Error], OURS[errors.ArgumentError], OURS[errors.MismatchError]
PeerLostError, TimeoutError = OURS[errors.PeerLostError], OURS[errors.TimeoutError]
TransportError, ScheduleError = OURS[errors.TransportError], OURS[errors.ScheduleError]
MemoryError = OURS[errors.MemoryError]
