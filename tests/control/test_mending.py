"""Control connections that break again while they are made again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hocket.control.mending import Mending


def test_each_break_has_a_limit_of_its_own() -> None:
    """A link that was made again, and broke at once, was ended by the limit of the first break."""
    ended, begun = list[str](), list[Callable[[], object]]()
    link = SimpleNamespace(open=True, broken=True, connections=1, end=ended.append)
    reactor = SimpleNamespace(
        dead=False, lost_after=0.1, aside=lambda name, call: begun.append(call), soon=lambda call: call(),
        later=lambda seconds, call: call(),
    )  # fmt: skip

    class Way:
        def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
            link.connections += 1

        def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> Any:
            raise NotImplementedError

    Mending(reactor, link, Way(), 1, dials=False)  # type: ignore[arg-type]
    assert link.on_break("it broke", 0.0)
    begun.pop()()
    assert not ended


def test_who_comes_by_itself_is_not_asked() -> None:
    """Both ends hear that it broke.  To be asked behind the new connection broke that, too, and so on."""
    asked, waits = list[int](), list[Callable[[], object]]()
    link = SimpleNamespace(open=True, connections=1, end=lambda how: None)
    reactor = SimpleNamespace(
        dead=False, lost_after=5.0, aside=lambda name, call: call(), later=lambda seconds, call: waits.append(call)
    )

    class Way:
        def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
            asked.append(rank)
            link.connections += 1

        def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> Any:
            raise NotImplementedError

    Mending(reactor, link, Way(), 1, dials=False)  # type: ignore[arg-type]
    for comes in (1, 0):
        link.on_break("it broke", 0.0)
        link.connections += comes
        waits.pop()()
        assert len(asked) == 1 - comes
