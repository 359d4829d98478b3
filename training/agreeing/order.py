"""Rank 0's order for all ranks: the same list on every rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from hocket.training.agreeing.request import Request, from_plain

RUN, FAIL, JOINED, BYE = "run", "fail", "joined", "bye"


class Order(NamedTuple):
    """One collective, of the tensors of one or more requests; or news."""

    what: str
    names: tuple[str, ...] = ()
    """Names of the requests, which are carried out as one if there are several."""
    counts: tuple[Any, ...] = ()
    """allgather: for each tensor the ranks' rows.  alltoall: the ranks' splits.  `joined`: the last rank."""
    like: tuple[Request, ...] = ()
    """The requests, where a rank that has joined lacks one: it needs to know of what to bring zeros."""
    error: str = ""
    kind: str = ""
    """The kind of an error: "mismatch", "left" or "stall"."""
    calls: tuple[tuple[int, str], ...] = ()
    """The call of each rank, for the error."""

    def plain(self, refs: list[Any]) -> list[Any]:
        """The order as JSON takes it.  `refs`: its names, or their numbers."""
        if self.what == RUN and not self.counts and not self.like:
            return refs
        fields = [self.what, refs, self.counts, [each.plain() for each in self.like], self.error, self.kind, self.calls]
        return ["!", *fields]


def from_plain_order(plain: list[Any], names: Any) -> Order:
    """The order that `plain` was made of.  `names`: makes names of `refs`."""
    if plain[0] != "!":
        return Order(RUN, names(plain))
    _, what, refs, counts, like, error, kind, calls = plain
    requests = tuple(from_plain(each) for each in like)
    return Order(what, names(refs), tuple(counts), requests, error, kind, tuple((r, text) for r, text in calls))
