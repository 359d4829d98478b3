"""The holders of the shards in a generation: what each member says of itself, and the view that all make of it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.errors import MismatchError, PeerLostError

HEAD, WHOLE, PART = "head", "whole", "part"
"""The part of a shard that a server has."""
ADDRESS = 300
"""Characters of where a server listens, at most."""
LAST_SHARD = 0xFFFFFF
"""On the wire (frames.py)."""


class MemberInfo(NamedTuple):
    """A member's word.  JSON has it as a list."""

    uid: int
    """Chosen by lot: it names this process in all generations."""
    works: bool
    address: str
    """Where it listens; "": it does not serve."""
    has: dict[str, str]
    """By shard."""
    shards: int
    """0: it is new, and takes the others' settings."""
    tables: str
    settings: list[Any]
    """The clock's rule, and copies: of a server, or as this worker has them from a view; else none."""
    viewed: bool = False
    """Has it had a view?"""


def read(word: Any) -> MemberInfo | None:
    """A member's words; None: they make no sense."""
    try:
        says = MemberInfo(*word)
    except TypeError:
        return None
    right = (
        type(says.uid) is int and type(says.works) is bool and isinstance(says.address, str)
        and len(says.address) <= ADDRESS and says.address.isprintable()
        and isinstance(says.has, dict) and all(isinstance(each, str) for each in says.has.values())
        and type(says.shards) is int and 0 <= says.shards <= LAST_SHARD and isinstance(says.tables, str)
        and isinstance(says.settings, list) and _settles(says.settings, bool(says.address))
    )  # fmt: skip
    return says if right else None


def _settles(settings: list[Any], serves: bool) -> bool:
    if not settings:
        return not serves
    return len(settings) == 2 and isinstance(settings[0], str) and settings[1] in (0, 1)


class View(NamedTuple):
    """The holders of all shards."""

    generation: int
    shards: int
    heads: tuple[int, ...]
    copies: tuple[int | None, ...]
    addresses: dict[int, str]
    workers: frozenset[int]
    settings: tuple[Any, ...]


def refused(words: Sequence[Any], previous: Sequence[int | None]) -> dict[int, str]:
    """Ranks that take no part, and why.  `previous`: each one's rank in the generation before; None: it is new.

    Those who have had a view go on, whatever a newcomer says; it has to say what they do.
    """
    said = [read(word) for word in words]
    wrong = {i: f"its word makes no sense: {str(words[i])[:80]}" for i, each in enumerate(said) if each is None}
    old = {rank: each for rank, each in enumerate(said) if each and each.viewed and previous[rank] is not None}
    if not old:
        return wrong
    first = next(iter(old.values()))
    uids = {each.uid for each in old.values()}
    for rank, each in enumerate(said):
        if each is None or rank in old:
            continue
        if each.tables != first.tables:
            members, its = apart(first.tables, each.tables)
            wrong[rank] = f"the ranks' tables differ: the members' are {members}  /  its own {its}"
        elif each.shards and each.settings and (each.shards, each.settings) != (first.shards, first.settings):
            ours = f"{first.settings} of {first.shards} servers"
            wrong[rank] = f"the members' settings are {ours}, its own {each.settings} of {each.shards}"
        elif each.uid in uids:
            wrong[rank] = "another member has its number"
    return wrong


def decide(generation: int, said: Sequence[MemberInfo], who: str) -> View:
    """The view of those who have said this.

    A shard stays with its head; without one its copy is the head; without both, the server with the least is, which
    begins it or takes it from a snapshot.  Raises MismatchError (other tables, other settings), PeerLostError (no
    server is left).
    """
    servers = [each for each in said if each.address]
    if not servers:
        raise PeerLostError(
            f"{who}: no server is left: start again with serve(..., snapshot=folder), which begins with its newest "
            "snapshots; without any, what was pushed is lost", []
        )  # fmt: skip
    old = [each for each in said if each.viewed]
    known = old or [each for each in servers if each.shards]
    _agree(said, known, who)
    shards = known[0].shards if known else len(servers)
    settings = tuple(known[0].settings if known else servers[0].settings)
    load = dict.fromkeys([each.uid for each in servers], 0)
    heads = [_having(servers, i, HEAD) or _having(servers, i, WHOLE) for i in range(shards)]
    for head in heads:
        if head is not None:
            load[head] += 1
    for i in range(shards):
        if heads[i] is None:
            heads[i] = _least(load, without=None)
    copies: list[int | None] = [None] * shards
    if settings[1]:
        for i in range(shards):
            copies[i] = _copy(servers, i, heads[i])
            if copies[i] is not None:
                load[copies[i]] += 1  # type: ignore[index]
        for i in range(shards):
            if copies[i] is None and len(servers) > 1:
                copies[i] = _least(load, without=heads[i])
    workers = frozenset(each.uid for each in said if each.works)
    addresses = {each.uid: each.address for each in servers}
    return View(generation, shards, tuple(heads), tuple(copies), addresses, workers, settings)  # type: ignore[arg-type]


def _having(servers: Sequence[MemberInfo], shard: int, what: str, without: int | None = None) -> int | None:
    having = (each.uid for each in servers if each.has.get(str(shard)) == what and each.uid != without)
    return next(having, None)


def _copy(servers: Sequence[MemberInfo], shard: int, head: int | None) -> int | None:
    whole = _having(servers, shard, WHOLE, head)
    return _having(servers, shard, PART, head) if whole is None else whole


def _least(load: dict[int, int], without: int | None) -> int:
    """The server with the fewest shards; of several the first.  It has one more now."""
    least = min((uid for uid in load if uid != without), key=lambda uid: load[uid])
    load[least] += 1
    return least


def _agree(said: Sequence[MemberInfo], known: Sequence[MemberInfo], who: str) -> None:
    settings = [[*each.settings, each.shards] for each in known]
    if any(each != settings[0] for each in settings):
        by_server = dict(enumerate(map(str, settings)))
        raise MismatchError(f"{who}: servers differ in clock, copies or their number: {settings}", by_server)
    tables = {each.tables for each in said}
    if len(tables) > 1:
        by_rank = {rank: each.tables for rank, each in enumerate(said)}
        here, there = apart(*sorted(tables)[:2])
        raise MismatchError(f"{who}: the ranks' tables differ: {here}  /  {there}", by_rank)


def apart(here: str, there: str) -> tuple[str, str]:
    """The first tables that one has and the other has not, or has otherwise; a model may have hundreds.

    >>> apart("a: Range((1,)); b: Range((2,))", "a: Range((1,)); b: Range((3,))")
    ('b: Range((2,))', 'b: Range((3,))')
    """
    ours, theirs = here.split("; "), there.split("; ")
    pairs = (ours, set(theirs)), (theirs, set(ours))
    first, second = (next((each for each in its if each not in known), "no such table") for its, known in pairs)
    return first, second
