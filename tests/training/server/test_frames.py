"""Frames arrive as they were sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.training.server.shards.store import Change, What
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.frames import framed, message

VALUES, KEYS = np.arange(6, dtype=np.float32), np.array([3, 1 << 40])
CHANGES = [Change(2, 7, None, VALUES), Change(1, 0, KEYS, VALUES), say.Clock(4), say.Clock(0), say.Clock(None)]
SAID = [
    say.Hello(3, 1 << 47), say.Welcome(3, 12, 5), say.Ack(3, 12, 11), say.Refused(3, 12, "not finite", True),
    say.Begin(3), say.At(3, None), say.At(3, 0), say.At(3, 9), say.Got(3), say.Applied(3, 9),
    say.Filled(3, 9, {1: 4, 1 << 47: 5}, {1: 2}), say.Pull(3, 5, 6, 2, What(2, 7, None, 1)),
    say.Pull(3, 5, 6, 2, What(1, 0, KEYS)), *(say.Push(3, 5, 6, change) for change in CHANGES),
    *(say.Forward(3, 9, say.Push(3, 5, 6, change)) for change in CHANGES),
]  # fmt: skip


def plain(said: Any) -> Any:
    """Arrays as lists, so that messages can be compared."""
    if isinstance(said, tuple):
        return (type(said).__name__, *map(plain, said))
    return said.tolist() if isinstance(said, np.ndarray) else said


def over(said: Any) -> Any:
    """The message that the other end hears."""
    words, keys, payload = framed(77, said)
    assert words[0] >> 8 & 0xFFFFFF == 77
    assert words[6] == (0 if payload is None else payload.size)
    is_change = type(said) in (say.Push, say.Forward) and payload is not None
    return message(words, keys, payload.view(np.float32) if is_change and payload is not None else payload)


@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
def test_each_message_arrives(said: Any) -> None:
    assert plain(over(said)) == plain(said)


def test_who_is_at_the_other_end_arrives() -> None:
    for named in (say.drawn(), say.Named(1 << 61, (1 << 126) - 5), say.Named(0, 1)):
        assert message(*framed(0, named)) == named
    assert say.number_of(named.token) != named.uid


def test_answers_and_items_arrive() -> None:
    assert over(say.Answer(3, 6, VALUES)).value.view(np.float32).tolist() == VALUES.tolist()
    item = over(say.Item(3, (2, 7), {"values": VALUES, "slot": KEYS}))
    assert item.item == (2, 7)
    assert {name: plain(each) for name, each in item.value.items()} == {"values": plain(VALUES), "slot": plain(KEYS)}


def test_a_change_of_an_earlier_generation_is_forwarded_in_this_one() -> None:
    """A worker's push from before a failover, which nobody has acknowledged, reaches the copy after it."""
    heard = over(say.Forward(4, 9, say.Push(3, 5, 6, CHANGES[0])))
    assert heard.generation == 4 and heard.order == 9 and heard.push.sequence == 6
