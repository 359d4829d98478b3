"""Who holds what in a generation: what each member says of itself, and the view that all make of it alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.errors import ArgumentError, MismatchError, PeerLostError

HEAD, WHOLE, PART = "head", "whole", "part"
"""What a server has of a shard."""


class Says(NamedTuple):
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
    """Of the servers: the clock's rule, and copies."""


class View(NamedTuple):
    """Who holds what."""

    generation: int
    shards: int
    heads: tuple[int, ...]
    copies: tuple[int | None, ...]
    addresses: dict[int, str]
    workers: frozenset[int]
    settings: tuple[Any, ...]


def decide(generation: int, said: Sequence[Says], who: str) -> View:
    """The view of those who have said this.

    A shard stays with its head; without one its copy is the head; without both, the server with the least is, which
    begins it or takes it from a snapshot.  Raises MismatchError (other tables, other settings), ArgumentError,
    PeerLostError (no server is left).
    """
    servers = [each for each in said if each.address]
    if not servers:
        raise PeerLostError(
            f"{who}: no server is left: start again with serve(..., snapshot=folder), which begins with its newest "
            "snapshots; without any, what was pushed is lost", []
        )  # fmt: skip
    known = [each for each in servers if each.shards]
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


def _having(servers: Sequence[Says], shard: int, what: str, without: int | None = None) -> int | None:
    having = (each.uid for each in servers if each.has.get(str(shard)) == what and each.uid != without)
    return next(having, None)


def _copy(servers: Sequence[Says], shard: int, head: int | None) -> int | None:
    whole = _having(servers, shard, WHOLE, head)
    return _having(servers, shard, PART, head) if whole is None else whole


def _least(load: dict[int, int], without: int | None) -> int:
    """The server with the fewest shards; of several the first.  It has one more now."""
    least = min((uid for uid in load if uid != without), key=lambda uid: load[uid])
    load[least] += 1
    return least


def _agree(said: Sequence[Says], known: Sequence[Says], who: str) -> None:
    settings = [each.settings for each in known or said if each.settings]
    if any(each != settings[0] for each in settings):
        by_server = dict(enumerate(map(str, settings)))
        raise MismatchError(f"{who}: servers differ in clock or copies: {settings}", by_server)
    tables = {each.tables for each in said}
    if len(tables) > 1:
        by_rank = {rank: each.tables for rank, each in enumerate(said)}
        raise MismatchError(f"{who}: the ranks' tables differ: {'  /  '.join(sorted(tables))}", by_rank)
    if not any(each.address for each in said):
        raise ArgumentError(f"{who}: no rank serves: call hocket.training.serve on at least one")
