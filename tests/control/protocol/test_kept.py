"""Two ends of a control connection that breaks, in every order; and each law breaks without its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hocket.control.protocol import kept
from support import lines

ALL, CUTS = 3, 3
State = tuple[Any, ...]


def must(kept_it: bool, what: str) -> None:
    if not kept_it:
        raise lines.Broken(what)


class World:
    """Ends 0 and 1, each of which says 0, 1, 2; and what is on the way between them."""

    def __init__(self, code: Any) -> None:
        self.ends = [code.ResendQueue(), code.ResendQueue()]
        self.said, self.heard = [0, 0], [0, 0]
        self.way: list[list[tuple[str, int]]] = [[], []]
        """To each end."""
        self.open, self.cuts = True, 0

    def state(self) -> State:
        ends = [(each.got, each._told, each._first, tuple(each._kept), each.waits) for each in self.ends]
        return *ends, *self.said, *self.heard, *map(tuple, self.way), self.open, self.cuts

    def copy(self) -> World:
        made = World.__new__(World)
        made.ends = [type(each)() for each in self.ends]
        for new, old in zip(made.ends, self.ends, strict=True):
            new.__dict__.update(old.__dict__)
            new._kept = old._kept.copy()
        made.said, made.heard = self.said[:], self.heard[:]
        made.way, made.open, made.cuts = [each[:] for each in self.way], self.open, self.cuts
        return made

    def next(self, breaks: bool = True) -> Iterator[World]:
        for end in (0, 1):
            if self.way[end]:
                yield self._hears(end)
        if not self.open:
            w = self.copy()
            w.open = True
            for end in (0, 1):
                w.ends[end].begins()
                w.way[1 - end].append(("has", w.ends[end].says()))
            yield w
        for end in (0, 1):
            if self.said[end] < ALL:
                w = self.copy()
                number = w.said[end]
                w.said[end] += 1
                if w.ends[end].sends(number) and w.open:
                    w.way[1 - end].append(("message", number))
                yield w
        if breaks and self.open and self.cuts < CUTS:
            for loses in (0, 1, 2):  # what is on the way to one, or to both
                w = self.copy()
                w.open, w.cuts = False, w.cuts + 1
                w.way = [[] if loses in (end, 2) else w.way[end][:1] for end in (0, 1)]
                for end in (0, 1):
                    if w.way[end]:
                        w = w._hears(end)
                w.way = [[], []]
                yield w

    def _hears(self, end: int) -> World:
        w = self.copy()
        what, number = w.way[end].pop(0)
        if what == "has":
            try:
                again = w.ends[end].has(number)
            except ValueError:
                raise lines.Broken("what the other end has is refused") from None
            w.way[1 - end] += [("message", each) for each in again]
            return w
        must(number == w.heard[end], "a message comes twice, or out of its place")
        w.heard[end] += 1
        if w.ends[end].gets() and w.open:
            w.way[1 - end].append(("has", w.ends[end].says()))
        must(len(w.ends[1 - end]._kept) >= w.said[1 - end] - w.heard[end], "what has not come is not kept")
        return w


def walk(code: Any) -> int:
    """Through every state; the number of them."""
    seen, ahead = set[State](), [World(code)]
    while ahead:
        world = ahead.pop()
        if (state := world.state()) in seen:
            continue
        seen.add(state)
        ahead += world.next()
        end = world
        for _ in range(60):  # if it breaks no more, all comes
            if end.heard == [ALL, ALL]:
                break
            end = next(end.next(breaks=False), end)
        must(end.heard == [ALL, ALL], "not all comes")
    return len(seen)


def test_no_order_breaks_a_law() -> None:
    assert walk(lines.without(kept, OFTEN=2)) > 1000


LINES = {
    "what is sent is kept": ("        self._kept.append(message)\n", ""),
    "nothing goes before the other's word": ("return not self.waits", "return True"),
    "what comes is counted": ("        self.got += 1\n", ""),
    "a new connection waits": ("self.waits = True", "self.waits = False"),
    "what the other has is forgotten": ("self._kept.popleft()", "self._kept"),
    "and counted": ("            self._first += 1\n", "            break\n"),
    "the wait ends": ("waited, self.waits = self.waits, False", "waited = self.waits"),
    "what it lacks goes again": ("return list(self._kept) if waited else []", "return []"),
    "and once": ("return list(self._kept) if waited else []", "return list(self._kept)"),
}


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str) -> None:
    line, instead = LINES[what]
    with pytest.raises(lines.Broken):
        walk(lines.without(kept, line, instead, OFTEN=2))


def test_an_end_that_says_nothing_or_nonsense() -> None:
    end = kept.ResendQueue[int]()
    for number in range(kept.MOST):
        end.sends(number)
    with pytest.raises(OverflowError):
        end.sends(0)
    for count in (-1, kept.MOST + 2):
        with pytest.raises(ValueError, match=str(count)):
            end.has(count)
