"""This rank's activity in a call, for others to hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hocket.collectives.base.callsite import caller_site
from hocket.collectives.engine.engine import Engine
from hocket.collectives.failures.leaving import LATEST
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import Queued
from hocket.control.protocol.messages import Account


def account_of(
    engine: Engine, queued: Queued | None, members: Sequence[int], where: Callable[[], str] = caller_site
) -> Account:  # fmt: skip
    """This rank's activity in a call on this engine; `where` finds the line if the call does not know it.

    `members`: world ranks.
    """
    plan, call, seq, site = at(engine, queued)
    account: Account = {"state": "in call", "seq": seq, "call": call, "site": site or where()}
    if plan is not None and plan.algorithm == "message":
        account["waits_for"] = sorted(members[peer] for peer in plan.peers)
    return account


def at(engine: Engine, queued: Queued | None) -> tuple[Plan | None, str, int, str | None]:
    """A queued call, or else the blocking one: its plan, its words, its number, where it was made if that is known."""
    if queued is not None:
        return queued.plan, queued.words, queued.seq, queued.site
    return engine.plan, engine.words, engine.sequence, None


def latest_calls(engine: Engine, finished: int) -> list[tuple[int, str]]:
    """The last of so many calls of an engine, a few: fingerprints and words."""
    calls: list[tuple[int, str]] = []
    for number in range(finished, max(0, finished - LATEST), -1):
        plan = engine.made(number)
        if plan is None:
            break
        calls.insert(0, (plan.fingerprint, engine.call(number)))
    return calls
