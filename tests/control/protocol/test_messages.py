"""Messages cross the wire as they are, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hocket.control.protocol import messages as say
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.coordinator import HANDLERS as COORDINATORS
from hocket.control.protocol.member import HANDLERS as MEMBERS

ACCOUNT: say.Account = {
    "state": "in call", "seq": 3, "call": "f()", "site": "a.py:1", "then": "g()", "waits_for": [1, 2], "handling": True,
    "text": "",
}  # fmt: skip
FAULT = say.Fault("op", "world", 7, [0, 1], "why", ACCOUNT, 2, [1], 0)
MESSAGES: list[say.Message] = [
    say.Join(1, 2, 33, "host"), say.Exchange("name", {"a": [1, None, 2.5]}), say.Who(3), FAULT,
    say.Stuck("c", 1, [0], "ff", ACCOUNT), say.Answer("c", {}), say.Ask("c", [0, 1]), say.Told("c", 1, ACCOUNT),
    say.OpenTransport("tcp"), say.Goodbye({"world": 3}), say.Welcome("00", ""), say.Refused("why", True),
    say.Values(1, [None, 2]),
    say.Fault("error", "c", 0, []), say.Missing("join", [1], True), say.Stop(FAULT),
    say.Verdict(FAULT, {0: ACCOUNT, 1: {}}), say.Lost(1, "how", [1]),
    say.Left(1, {}), say.Asked("c", 0), say.Bye(),
]  # fmt: skip


def sent(message: say.Message) -> Any:
    return json.loads(json.dumps(say.pack(message)))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_packed_is_unpacked(message: say.Message) -> None:
    got = say.unpack(sent(message))
    assert got == message and type(got) is type(message)
    if isinstance(message, (say.Stop, say.Verdict)):
        assert isinstance(got.fault, say.Fault)  # type: ignore[union-attr]


def test_every_type_is_here_and_somebody_takes_it() -> None:
    assert {type(message) for message in MESSAGES} == set(say.TYPES.values()) <= {*COORDINATORS, *MEMBERS}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_another_type_in_any_field_is_malformed(message: say.Message) -> None:
    """Any is the type of an exchange's values alone."""
    ((name, fields),) = sent(message).items()
    wrong: list[Any] = [{name: "x"}, {name: None}, {name: [*fields, 1]}, {name: {}}, {name: fields, "more": []}]
    wrong += [{name: [*fields[:at], 1.5, *fields[at + 1 :]]} for at in range(len(fields))]
    for words in wrong:
        if words != {"exchange": ["name", 1.5]}:
            with pytest.raises(Malformed):
                say.unpack(words)


@pytest.mark.parametrize(
    "account", [{"state": "?"}, {"seq": "3"}, {"waits_for": ["1"]}, {"handling": 1}, {"more": 1}, []]
)
def test_an_account_is_checked(account: Any) -> None:
    with pytest.raises(Malformed):
        say.unpack({"answer": ["c", account]})
