"""From what the control plane knows to what the user reads: accounts and verdicts become exceptions.

An account is what one rank says it was doing: {"state": "in call" | "idle" | "no answer" | ..., "seq", "call", "site"}.
Texts have ranks of the job alone; only the attributes of exceptions have those of the communicator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hocket.errors as errors
from hocket.collectives.recording.standing import circles, each_other
from hocket.control.protocol.messages import Account, Lost, Verdict

MOST_SHOWN = 8
"""Ranks that a line of the log tells of, and calls that a rank leaves open."""
PAIRWISE = " In alltoallv send_counts[j] on rank i must be recv_counts[i] on rank j."
ROWS = " If each rank has another number of rows: {0}v(x, counts), with counts = comm.allgather(len(x))."
GATHERED = re.compile(r"called ((?:all)?gather)\((\w+)\[\d+(.*?)\]")
"""The call, the dtype, and the shape of a row."""
NOTHING: Mapping[int, str] = {}
CLOSE = "close()"
"""The call of a rank that leaves a communicator."""


@dataclass(frozen=True)
class Group:
    """The communicator that an error is about."""

    name: str
    members: Sequence[int]
    """World ranks, by rank of the communicator."""
    size: int
    """The job's."""

    @property
    def is_job(self) -> bool:
        """Has each member the rank that it has in the job?"""
        return list(self.members) == list(range(self.size))

    @property
    def text(self) -> str:
        """Text such as "communicator 'world/1.0' of ranks 3, 2"."""
        more = f" and {len(self.members) - MOST_SHOWN} more" if len(self.members) > MOST_SHOWN else ""
        of = "" if self.is_job else f" of {ranks(list(self.members)[:MOST_SHOWN])}{more}"
        return f"communicator {self.name!r}{of}"

    @property
    def on(self) -> str:
        """For a text that need not name the communicator of all ranks."""
        return "" if self.is_job else f" on {self.text}"

    def own(self, which: Sequence[int]) -> list[int]:
        """World ranks as ranks of the communicator."""
        return [self.members.index(rank) for rank in which]


def describe_account(account: Account | None, seen: str = "", seq: int = 0) -> str:
    """One rank's account in words.  `seen`: what its recorder tells, as it does not; `seq`: the number of our call."""
    if not account or account.get("state") == "no answer":
        return f"does not answer ({seen or 'it is stopped, or does not release the GIL'})"
    if account.get("state") in ("lost", "left"):
        now = f"is gone ({seen or 'its process ended'})" if account["state"] == "lost" else "has left the job"
        return f"called {account['then']}, and {now}" if "then" in account else now
    here = f", it is at {account['site']}" if account.get("site", "?") != "?" else ""
    if account.get("state") == "without":
        return f"no longer has this communicator (closed or dropped){here}"
    if account.get("then"):
        now = f"in {account['call']}" if account.get("state") == "in call" else "in no call"
        site, seq = account.get("site", "?"), account["seq"]
        now = "at the end of its program" if site == "?" else f"{now} at {site} (its call number {seq})"
        return f"called {account['then']}, and is now {now}"
    if account.get("state") == "idle":
        finished = account.get("seq", 0)
        last = f"; it has finished {finished} call{'s' * (finished != 1)} here" if finished else ""
        return f"is not in a call on this communicator{here}{last}{_apart(account, seq - 1)}"
    site, number = account.get("site", "?"), account.get("seq", "?")
    if account.get("call") == CLOSE and site == "?":
        return f"has come to the end of its program (its call number {number})"
    called = f"called {account.get('call', '?')} at {site}"
    if account.get("handling"):
        called = f"called {account['call']}, and is now in a signal's handler at {site}"
    return called if "waits_for" in account else f"{called} (its call number {number}{_apart(account, seq)})"


def _apart(account: Account, seq: int) -> str:
    """Say by how many calls a rank is behind one that has made `seq` of them, or ahead."""
    behind = seq - int(account.get("seq", 0)) if seq > 0 and "seq" in account else 0
    return f", {abs(behind)} call{'s' * (abs(behind) > 1)} {'behind' if behind > 0 else 'ahead'}" if behind else ""


class _VerdictText:
    """A verdict."""

    def __init__(self, verdict: Verdict, group: Group, seen: Mapping[int, str]) -> None:
        fault = verdict.fault
        self.group, self.by = group, fault.by if fault.by in group.members else None
        """The rank that reported it; None: no member."""
        self.who = "a rank" if self.by is None else f"rank {self.by}"
        self.text, self.seq = fault.text, fault.seq
        self.where = f"{group.text}, call number {fault.seq}"
        self.accounts = {r: a for r, a in sorted(verdict.accounts.items()) if r in group.members}
        self.calls = {r: describe_account(a, seen.get(r, ""), self.seq) for r, a in self.accounts.items()}
        self.lines = "".join(f"\n  rank {r} {text}" for r, text in self.calls.items())

    @property
    def own_calls(self) -> dict[int, str]:
        """`calls`, by rank of the communicator."""
        return dict(sorted(zip(self.group.own(list(self.calls)), self.calls.values(), strict=True)))

    @property
    def waits_for(self) -> list[int] | None:
        """The ranks that the reporter's message waits for; None: it is in no message."""
        return self.accounts.get(self.by, {}).get("waits_for") if self.by is not None else None


def build(
    verdict: Verdict | Lost, group: Group, me: int, call: str, closing: bool = False,
    seen: Mapping[int, str] = NOTHING,
) -> errors.Error:  # fmt: skip
    """The exception that world rank `me` raises for `verdict`.  `closing`: it is leaving too.

    `seen`: by world rank, what the recorders tell.
    """
    if isinstance(verdict, Lost):
        return lost([r for r in verdict.lost if r in group.members], verdict.how, group, me, call, seen)
    kind, report = verdict.fault.kind, _VerdictText(verdict, group, seen)
    if kind == "mismatch":
        return _mismatch(report, me, call, closing)
    if kind == "timeout":
        return _timeout(report)
    if kind == "op":
        return errors.Error(
            f"the call of {report.who} failed: {report.text} ({report.where}). This communicator cannot be used any "
            "more."
        )
    what = {"interrupt": "was interrupted", "exit": f"has ended: {report.text}"}.get(kind, f"failed: {report.text}")
    by = [] if report.by is None else group.own([report.by])
    return errors.PeerLostError(f"{report.who} {what} ({report.where})", by)


def _mismatch(report: _VerdictText, me: int, call: str, closing: bool) -> errors.Error:
    if report.waits_for is not None and report.text:
        return errors.MismatchError(
            f"{report.text}{report.group.on}: a message must have the dtype and the size of its recv."
            f"{report.lines}", report.own_calls)  # fmt: skip
    busy = [r for r, a in report.accounts.items() if a.get("handling")]
    if busy and closing:  # by a signal that all ranks have got, perhaps: they end too, and take longer
        return lost(busy, "a signal's handler runs in the middle of its call", report.group, me, call)
    left = [r for r, a in report.accounts.items() if a.get("state") == "left" and "then" not in a]
    early = left or [r for r, a in report.accounts.items() if a.get("call") == CLOSE and "then" not in a]
    if early and not closing:
        return lost(early, "it has left (closed this communicator, or exited)", report.group, me, call)
    return errors.MismatchError(
        f"the ranks called different things ({report.where}):{report.lines}\nAll ranks must make the same calls in the "
        f"same order, with the same dtype, shape, counts, op, root and algorithm.{_instead(report.calls.values())}",
        report.own_calls)  # fmt: skip


def _instead(calls: Collection[str]) -> str:
    """A call that the caller may have wanted."""
    if any("alltoallv(" in call for call in calls):
        return PAIRWISE
    gathered = {match.groups() if (match := GATHERED.search(call)) else None for call in calls}
    alike = next(iter(gathered)) if len(gathered) == 1 else None
    return "" if alike is None else ROWS.format(alike[0])


def _timeout(report: _VerdictText) -> errors.TimeoutError:
    awaited = report.waits_for or [r for r, a in report.accounts.items() if not arrived(a, report.seq)]
    missing = holding_up(awaited, report.accounts) if awaited else []
    names = ranks(missing) if missing else "data that did not arrive (all ranks are in the call)"
    if report.waits_for is not None:
        waits = {r: _waits_for(a, report.accounts) for r, a in report.accounts.items()}
        names += "".join(f" ({each_other(circle)})" for circle in circles(waits) if set(missing) <= set(circle))
    return errors.TimeoutError(
        f"{report.text} ({report.where}, seen by {report.who}): waiting for {names}:{report.lines}\n"
        "A longer limit: timeout= of the call, or HOCKET_TIMEOUT.", report.group.own(missing))  # fmt: skip


def unfinished(states: Sequence[dict[str, Any]]) -> errors.MismatchError | None:
    """The error of a job whose ranks have all come to its end, if one of them has left something open.

    A state is what a rank says: {"calls": {queue: [number, fingerprint, the last call]}, "open": [call, ...]}.
    """
    complaints: dict[int, list[str]] = {}
    for queue in sorted(set().union(*(state["calls"] for state in states))):
        last_calls = {r: state["calls"][queue] for r, state in enumerate(states) if queue in state["calls"]}
        if len({tuple(each[:2]) for each in last_calls.values()}) > 1:
            for r, (number, _, last) in last_calls.items():
                made_last = f", the last {last}" if last else ""
                complaints.setdefault(r, []).append(f"made {number} calls on {queue}{made_last}")
    for r, state in enumerate(states):
        complaints.setdefault(r, []).extend(f"has not finished {call}" for call in state["open"][:MOST_SHOWN])
        if (more := len(state["open"]) - MOST_SHOWN) > 0:
            complaints[r].append(f"has not finished {more} more calls")
    calls = {r: "; ".join(texts) for r, texts in sorted(complaints.items()) if texts}
    if not calls:
        return None
    lines = "".join(f"\n  rank {r} {text}" for r, text in calls.items())
    return errors.MismatchError(
        f"the ranks have come to the end of the job, but calls are unfinished:{lines}\nAll ranks must make the same "
        "calls in the same order, and each recv needs its send.", calls)  # fmt: skip


def still_waiting(
    mine: Account, others: dict[int, Account | None], seconds: float, group: Group, seen: Mapping[int, str] = NOTHING
) -> str:
    """The log line of a rank that waits long: its call, and what the ranks that hold it up are doing."""
    awaited = mine.get("waits_for")
    late = {
        r: describe_account(a, seen.get(r, ""), mine.get("seq", 0)) for r, a in others.items()
        if (r in awaited if awaited is not None else a is None or not arrived(a, mine["seq"]))
    }  # fmt: skip
    call = f"{mine['call']} at {mine['site']}{group.on} has waited for {seconds:.0f} s"
    if not late:
        return f"{call}; all ranks are in it"
    return f"{call}, still waiting for {ranks(list(late)[:MOST_SHOWN])}:{by_rank(late)}"


def by_rank(texts: Mapping[int, str]) -> str:
    """A line for each rank, of MOST_SHOWN at most."""
    shown = "".join(f"\n  rank {rank} {text}" for rank, text in list(texts.items())[:MOST_SHOWN])
    return shown + (f"\n  and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else "")


def holding_up(awaited: Sequence[int], accounts: Mapping[int, Account]) -> list[int]:
    """The ranks that hold up a call, of those that it waits for and those that these wait for in turn.

    They are those that do not answer; else those that wait for nobody; else, as all wait for each other, the awaited.
    """
    reached, ahead = set(), list(awaited)
    while ahead:
        rank = ahead.pop()
        if rank not in reached:
            reached.add(rank)
            ahead += _waits_for(accounts.get(rank, {}), accounts)
    silent = [r for r in reached if accounts.get(r, {}).get("state") in (None, "no answer", "lost", "left")]
    return sorted(silent or [r for r in reached if not _waits_for(accounts[r], accounts)] or awaited)


def _waits_for(account: Account, accounts: Mapping[int, Account]) -> list[int]:
    if account.get("state") != "in call":
        return []
    late = [r for r, other in accounts.items() if not arrived(other, account.get("seq", 0))]
    return list(account.get("waits_for", late))


def arrived(account: Account, seq: int) -> bool:
    """Has that rank come to call number `seq`?"""
    if account.get("state") in ("no answer", "lost", "left", "error"):
        return False
    if account.get("call") == CLOSE and account.get("seq") == seq:  # in its place it leaves
        return False
    return int(account.get("seq", 0)) >= seq


def lost(
    gone: list[int], how: str, group: Group, me: int, call: str, seen: Mapping[int, str] = NOTHING
) -> errors.PeerLostError:
    """The exception for world ranks that are gone.  `seen`: what their recorders tell."""
    last = "".join(f"\n  rank {r}: {seen[r]}" for r in gone[:MOST_SHOWN] if r in seen)
    during = f" during {call}" if call else ""
    return errors.PeerLostError(
        f"{ranks(gone)} {'is' if len(gone) == 1 else 'are'} gone{during}{group.on}: {how or 'its process ended'}; "
        f"noticed by rank {me}. This communicator cannot be used any more.{last}", group.own(gone))  # fmt: skip


def renewing(which: list[int], group: Group, me: int, call: str) -> errors.PeerLostError:
    """The exception where a call waits for world ranks that are in renew(): they live."""
    return errors.PeerLostError(
        f"{ranks(which)} {'has' if len(which) == 1 else 'have'} called renew() during {call}{group.on}: call it, too, "
        f"as it waits for all members; noticed by rank {me}. This communicator cannot be used any more.")  # fmt: skip


def ranks(which: list[int]) -> str:
    """ "rank 3", or "ranks 1, 2, 5"."""
    return f"rank {which[0]}" if len(which) == 1 else f"ranks {', '.join(map(str, which))}"
