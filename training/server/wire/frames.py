"""Messages on the wire: a header of 64 bytes (tag 1), then keys (tag 2) and a payload (tag 3), where it tells of some.

    int64   0  kind | shard << 8 | table << 32      4  order, clock, kept, or acknowledged
            1  generation                           5  codec << 32 | part
            2  worker                               6  bytes of the payload
            3  sequence, or a pull's number         7  keys; of a Welcome, the slowest clock

An acknowledgement may have a number as its word 5, which the worker's next push has as its word 4 (link.py).

Values travel as they are, or encoded by the codec of that number (CODECS); dictionaries as JSON, items as `packed`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.codecs import CODECS, Codec
from hocket.training.server.optimizers import Array
from hocket.training.server.shards.packing import ALL, as_bytes, packed, unpacked
from hocket.training.server.shards.store import Change, What
from hocket.training.server.wire.messages import (
    SELF,
    Ack,
    Answer,
    Applied,
    At,
    Begin,
    Clock,
    Filled,
    Forward,
    Got,
    HeadStep,
    Hello,
    Item,
    Named,
    Pull,
    Push,
    Refused,
    Welcome,
)  # fmt: skip

HEADER, KEYS, PAYLOAD, SHORT = 1, 2, 3, 4
"""Tags.  A short frame is one message, if a server gets it."""
WORDS = 8
BYE = 0
"""A word without a message: the link's last one."""
KINDS: tuple[type, ...] = (
    Hello, Push, Pull, Welcome, Ack, Refused, Answer, Begin, At, Item, Got, Filled, Forward, Applied,
    Named,
)  # fmt: skip
CODE = {each: number for number, each in enumerate(KINDS, 1)}
PUSH, FORWARD, ACK, ANSWER, PULL = (CODE[each] for each in (Push, Forward, Ack, Answer, Pull))
NAMED, ITEM, FILLED = CODE[Named], CODE[Item], CODE[Filled]
HALF = 63
"""Bits of a token in a word."""
LATEST = 1 << 61
"""A clock, at most: a newcomer that begins at it has as many before it."""
PLAIN = 0
NO_TABLE = 0xFFFF
"""A value for the table: the change is a clock."""
STEP = 1 << 17
"""A value for the codec: the change is a step; its number is the clock, and its worker how many there are."""


class Frame(NamedTuple):
    """A message as it is sent: the header's words, and what follows it."""

    words: Sequence[int]
    keys: Array | None = None
    payload: Array | None = None

    @property
    def follows(self) -> bool:
        """Does its header tell of more?"""
        return bool(self.words[6] or key_count(self.words))

    def lasting(self) -> Frame:
        """With arrays of its own."""
        return Frame(self.words, *(None if each is None else each.copy() for each in self[1:]))


def key_count(words: Sequence[int]) -> int:
    """The number of keys that follow this header."""
    first = words[0]
    return words[7] if words[7] > 0 and first & 0xFF in KEYED and first >> 32 != NO_TABLE else 0


def codec(number: int) -> Codec | None:
    """By its number on the wire; None: values as they are, or all that there is of an item."""
    return CODECS[number - 1] if number and number != ALL else None


def framed(shard: int, message: Any) -> Frame:
    """A message of or to this shard."""
    kind = type(message)
    if kind is Ack:  # the hot ones first
        return Frame([ACK | shard << 8, message.generation, 0, message.sequence, message.kept, 0, 0, 0])
    if kind is Push:
        return _changed(PUSH, shard, message.generation, message, 0)
    if kind is Forward:
        return _changed(FORWARD, shard, message.generation, message.push, message.order)
    if kind is Named:
        return Frame([NAMED, 0, message.uid, message.token >> HALF, message.token & (1 << HALF) - 1, 0, 0, 0])
    words = [CODE[kind] | shard << 8, message.generation, 0, 0, 0, 0, 0, 0]
    payload = None
    if kind is Pull:
        what = message.what
        words[0] |= what.table << 32
        words[2:6] = message.worker, message.number, message.clock, what.codec << 32 | what.part
        words[7] = 0 if what.keys is None else what.keys.size
        return Frame(words, what.keys)
    if kind is Answer:
        words[3], payload = message.number, message.value
    elif kind is Hello:
        words[2] = message.worker
    elif kind is Welcome:
        words[4], words[7] = message.acknowledged, message.slowest
    elif kind is Refused:
        words[3], words[4], payload = message.number, message.push, text(message.why)
    elif kind is At:
        words[4] = -1 if message.order is None else message.order
    elif kind is Applied:
        words[4] = message.order
    elif kind is Item:
        words[0] |= message.item[0] << 32
        words[5], payload = message.item[1], packed(message.value)
    elif kind is Filled:
        words[4] = message.order
        payload = text([sorted(message.applied.items()), sorted(message.clocks.items())])
    if payload is not None:
        payload = as_bytes(payload)
        words[6] = payload.size
    return Frame(words, None, payload)


def _changed(code: int, shard: int, generation: int, push: Push, order: int) -> Frame:
    """A change that a worker pushed in an earlier generation may be forwarded in this one."""
    _, worker, sequence, change = push
    if type(change) is Clock:
        clock = -1 if change.clock is None else change.clock
        return Frame([code | shard << 8 | NO_TABLE << 32, generation, worker, sequence, order, 0, 0, clock])
    if type(change) is HeadStep:
        table, part = change.item
        first = code | shard << 8 | table << 32
        return Frame([first, generation, change.workers, change.clock, order, STEP << 32 | part, 0, 0])
    whole = isinstance(change.values, dict)
    values, keys = packed(change.values) if whole else as_bytes(change.values), change.keys
    encoding = ALL if whole else change.codec
    words = [
        code | shard << 8 | change.table << 32, generation, worker, sequence, order, encoding << 32 | change.part,
        values.size, 0 if keys is None else keys.size,
    ]  # fmt: skip
    return Frame(words, keys, values)


def message(words: Sequence[int], keys: Array | None, payload: Array | None) -> Any:
    """The message of a frame.  `payload`: of a change, its values (`holder._values`); else bytes."""
    first, generation, worker, number, fourth, fifth, _, last = words
    kind = KINDS[(first & 0xFF) - 1]
    if kind is Push or kind is Forward:
        change: Any
        if first >> 32 == NO_TABLE:
            if last > LATEST:
                raise ValueError(f"a clock of {last}")
            change = Clock(None if last < 0 else last)
        elif fifth >> 32 == STEP and kind is Forward:
            change, worker = HeadStep((first >> 32, fifth & 0xFFFFFFFF), number, worker), SELF
        else:
            if payload is None:
                raise ValueError("a change without values")
            change = Change(first >> 32, fifth & 0xFFFFFFFF, keys, payload)
        push = Push(generation, worker, number, change)
        return push if kind is Push else Forward(generation, fourth, push)
    if kind is Pull:
        what = What(first >> 32, fifth & 0xFFFFFFFF, keys, fifth >> 32)
        return Pull(generation, worker, number, fourth, what)
    if kind is Ack:
        return Ack(generation, number, fourth)
    if kind is Answer:
        return Answer(generation, number, payload)
    if kind is Named:
        return Named(worker, number << HALF | fourth)
    if kind is Welcome:
        return Welcome(generation, fourth, last)
    if kind is Refused:
        return Refused(generation, number, str(untext(payload)), bool(fourth))
    if kind is At:
        return At(generation, None if fourth < 0 else fourth)
    if kind is Applied:
        return Applied(generation, fourth)
    if kind is Item:
        return Item(generation, (first >> 32, fifth), unpacked(payload))
    if kind is Filled:
        try:
            applied, clocks = untext(payload)
            return Filled(generation, fourth, dict(applied), dict(clocks))
        except TypeError:
            raise ValueError("no books of a shard") from None
    return Hello(generation, worker) if kind is Hello else kind(generation)


def text(value: Any) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def untext(payload: Array | None) -> Any:
    return json.loads(payload.tobytes()) if payload is not None else None


KEYED = (PUSH, FORWARD, PULL)
"""Kinds whose last word tells how many keys follow."""
