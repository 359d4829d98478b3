"""The messages between workers, the head of a shard and its copy.  frames.py has them on the wire.

`generation` is that of the view in which the sender is.  `change` is what a table does with a push (store.py), a
`Clock`, or a `HeadStep`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple


class Clock(NamedTuple):
    """A change: the worker's clock, or None when it leaves."""

    clock: int | None


class HeadStep(NamedTuple):
    """A change by the head itself: the item steps by the mean of so many workers, and so many clocks are done."""

    item: Any
    clock: int
    workers: int


SELF = -3
"""In the place of a worker: the head of the shard, whose changes are steps."""
OPEN = 64
"""Pushes and pulls of a worker on the shards of a server that have not ended, at most."""
HEARD = 16 * OPEN
"""Pulls of a worker that a shard keeps, at most: several threads, and links that were made again, ask for more."""


# --- whoever has made a link, first


class Named(NamedTuple):
    """I am this process.  `token`: proves it (`number_of`)."""

    uid: int
    token: int


def drawn() -> Named:
    """A new process's number, and the proof that it is its own."""
    token = secrets.randbits(126)
    return Named(number_of(token), token)


def number_of(token: int) -> int:
    """All members are told it; who has the token, only those whom it makes a link to."""
    return int.from_bytes(hashlib.sha256(token.to_bytes(16, "little")).digest()[:8], "little") >> 2


# --- a worker's, to the head


class Hello(NamedTuple):
    """I have this view."""

    generation: int
    worker: int


class Push(NamedTuple):
    """`sequence` grows with each change of a worker on a shard; a change counts once, however often it comes."""

    generation: int
    worker: int
    sequence: int
    change: Any


class Pull(NamedTuple):
    """`number`: the worker's own, which the answer has too."""

    generation: int
    worker: int
    number: int
    clock: int
    what: Any


# --- the head's, to a worker


class Welcome(NamedTuple):
    """`acknowledged`: the worker's last change that is safe; later ones have to be sent again."""

    generation: int
    acknowledged: int
    slowest: int


class Ack(NamedTuple):
    """This change, and all before it, are safe.  `kept`: the worker's last change that the newest snapshot has."""

    generation: int
    sequence: int
    kept: int


class Refused(NamedTuple):
    """Nothing came of this push or pull."""

    generation: int
    number: int
    why: str
    push: bool


class Answer(NamedTuple):
    """To a pull."""

    generation: int
    number: int
    value: Any


# --- between the head and its copy


class Begin(NamedTuple):
    """The head's first word in a generation: how far are you?"""

    generation: int


class At(NamedTuple):
    """The copy has applied so many changes; None: it holds nothing yet."""

    generation: int
    order: int | None


class Item(NamedTuple):
    """A part of the shard, for a copy that is filled."""

    generation: int
    item: Any
    value: Any


class Got(NamedTuple):
    generation: int


class Filled(NamedTuple):
    """That was all: the copy is whole now."""

    generation: int
    order: int
    applied: Mapping[int, int]
    clocks: Mapping[int, int]


class Forward(NamedTuple):
    """The change number `order` of this shard."""

    generation: int
    order: int
    push: Push


class Applied(NamedTuple):
    """The copy has applied all up to this."""

    generation: int
    order: int


# --- what the process of a replica tells it


class Role(NamedTuple):
    """A new view: this replica is the shard's head, or its copy.  `copy`: the shard has one beside the head."""

    generation: int
    head: bool
    copy: bool
    workers: frozenset[int]


class Gone(NamedTuple):
    """The link to a worker has ended."""

    worker: int


class Unlinked(NamedTuple):
    """The link to the copy of this generation has ended."""

    generation: int


class Linked(NamedTuple):
    """There is a link to the copy of this generation again."""

    generation: int


class Saved(NamedTuple):
    """A snapshot with these changes is on disk."""

    applied: Mapping[int, int]
