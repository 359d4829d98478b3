"""Every edge of a communicator's states, against the table in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hocket.collectives.failures import states
from hocket.collectives.failures.states import Closing, Failed, Left, Open, State, step
from hocket.control.protocol.messages import Lost
from hocket.errors import ArgumentError, PeerLostError

TEXT = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text()
ROWS = re.search(r"^\| state \|.*?(?=\n\n)", TEXT, re.M | re.S)
WHY, LATER, CLOSED = PeerLostError("first", [1]), PeerLostError("second", [2]), ArgumentError("closed")
VERDICT, SECOND = states.Judged(Lost(1, "", [1]), WHY), Lost(2, "", [1, 2])
STATES: dict[str, list[State]] = {
    "Open": [Open()],
    "Closing": [Closing()],
    "Failed, nobody knows yet why": [Failed(closing=closing, raised=raised) for closing in (0, 1) for raised in (0, 1)],
    "Failed, not judged": [Failed(WHY, closing=closing) for closing in (False, True)],
    "Failed, judged": [Failed(WHY, VERDICT, closing=closing) for closing in (False, True)],
    "Left": [Left(WHY), Left(CLOSED, VERDICT, True)],
}
EVENTS: dict[str, states.Event] = {
    "Stopped": states.Stopped(3), "Judged": states.Judged(SECOND, LATER, 3), "Broke": states.Broke(LATER),
    "Raising": states.Raising(), "Leaving": states.Leaving(), "Over": states.Over(CLOSED),
    "Forked": states.Forked(CLOSED),
}  # fmt: skip


def table() -> dict[tuple[str, str], str]:
    assert ROWS
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in ROWS[0].splitlines()]
    events = [re.findall("`(.*?)`", cell)[0] for cell in head[1:]]
    return {(row[0], event): cell for row in rows for event, cell in zip(events, row[1:], strict=True)}


TABLE = table()


def test_the_table_is_whole() -> None:
    assert set(TABLE) == {(state, event) for state in STATES for event in EVENTS}
    assert set(states.TABLE) == {(type(s[0]), type(event)) for s in STATES.values() for event in EVENTS.values()}


@pytest.mark.parametrize(("name", "event"), TABLE)
def test_an_edge(name: str, event: str) -> None:
    for state in STATES[name]:
        after, todo = step(state, EVENTS[event])
        done = ", ".join(each.value for each in todo)
        assert type(after).__name__ + (f"; {done}" if done else "") == TABLE[name, event]
        if event != "Forked":
            if not (event == "Over" and isinstance(state, Failed) and state.closing):
                assert state.error in (None, after.error), "what ended it first is what calls raise"
            assert state.verdict in (None, after.verdict), "the first verdict counts"
        assert after.raised == (state.raised or event == "Raising") or event == "Forked"
        assert after.closed == (state.closed or event in ("Leaving", "Over", "Forked")), "what was closed stays so"
        assert after.error is not None or event not in ("Judged", "Broke", "Over", "Forked")
        assert after.verdict is not None or event != "Judged" or isinstance(after, Left)


def test_after_a_close_that_failed_calls_hear_that_it_is_closed() -> None:
    assert step(Failed(WHY, closing=True), states.Over(CLOSED))[0].error is CLOSED
    assert step(Failed(WHY), states.Over(CLOSED))[0].error is WHY
