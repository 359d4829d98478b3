"""From what the control plane knows to what the user reads: accounts and verdicts become exceptions.

An account is what one rank says it was doing: {"state": "in call" | "idle" | "no answer" | ..., "seq", "call", "site"}.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import hocket.errors as errors
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


def describe_account(account: Account | None, seen: str = "", seq: int = 0) -> str:
    """One rank's account in words.  `seen`: what its recorder tells, as it does not; `seq`: the number of our call."""
    if not account or account.get("state") == "no answer":
        return f"does not answer ({seen or 'it is stopped, or does not release the GIL'})"
    if account.get("state") in ("lost", "left"):
        return f"is gone ({seen or 'its process ended'})" if account["state"] == "lost" else "has left the job"
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
    """How many calls a rank is behind one that has made `seq` of them, or ahead."""
    behind = seq - int(account.get("seq", 0)) if seq > 0 and "seq" in account else 0
    return f", {abs(behind)} call{'s' * (abs(behind) > 1)} {'behind' if behind > 0 else 'ahead'}" if behind else ""


class _Told:
    """A verdict, by the communicator's own ranks."""

    def __init__(self, verdict: Verdict, members: list[int], seen: Mapping[int, str]) -> None:
        fault = verdict.fault
        self.by = members.index(fault.by) if fault.by in members else None
        """Who reported it; None: no member."""
        self.who = "a rank" if self.by is None else f"rank {self.by}"
        self.text, self.seq = fault.text, fault.seq
        self.where = f"communicator {fault.comm!r}, call number {fault.seq}"
        accounts = {members.index(r): a for r, a in verdict.accounts.items() if r in members}
        self.accounts = dict(sorted(accounts.items()))
        self.calls = {r: describe_account(a, seen.get(r, ""), self.seq) for r, a in self.accounts.items()}
        self.lines = "".join(f"\n  rank {r} {text}" for r, text in self.calls.items())

    @property
    def waits_for(self) -> list[int] | None:
        """The ranks that the reporter's message waits for; None: it is in no message."""
        return self.accounts.get(self.by, {}).get("waits_for") if self.by is not None else None


def build(
    verdict: Verdict | Lost, members: list[int], me: int, call: str, closing: bool = False,
    seen: Mapping[int, str] = NOTHING,
) -> errors.Error:  # fmt: skip
    """The exception that rank `me` (of the communicator) raises for `verdict`.  `closing`: it is leaving too.

    `seen`: by rank, what the recorders tell.
    """
    if isinstance(verdict, Lost):
        return lost([members.index(r) for r in verdict.lost if r in members], verdict.how, me, call, seen)
    kind, report = verdict.fault.kind, _Told(verdict, members, seen)
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
    return errors.PeerLostError(f"{report.who} {what} ({report.where})", [] if report.by is None else [report.by])


def _mismatch(report: _Told, me: int, call: str, closing: bool) -> errors.Error:
    if report.waits_for is not None:
        return errors.MismatchError(
            f"{report.text}: a message must have the dtype and the size of its recv.{report.lines}", report.calls)
    busy = [r for r, a in report.accounts.items() if a.get("handling")]
    if busy and closing:  # by a signal that all ranks have got, perhaps: they end too, and take longer
        return lost(busy, "a signal's handler runs in the middle of its call", me, call)
    early = [r for r, a in report.accounts.items() if a.get("call") == CLOSE and "then" not in a]  # made no other call
    if early and not closing:
        return lost(early, "it has left (closed this communicator, or exited)", me, call)
    return errors.MismatchError(
        f"the ranks called different things ({report.where}):{report.lines}\nAll ranks must make the same calls in the "
        f"same order, with the same dtype, shape, counts, op, root and algorithm.{_instead(report.calls.values())}",
        report.calls)  # fmt: skip


def _instead(calls: Collection[str]) -> str:
    """What the caller may have wanted."""
    if any("alltoallv(" in call for call in calls):
        return PAIRWISE
    gathered = {match.groups() if (match := GATHERED.search(call)) else None for call in calls}
    alike = next(iter(gathered)) if len(gathered) == 1 else None
    return "" if alike is None else ROWS.format(alike[0])


def _timeout(report: _Told) -> errors.TimeoutError:
    awaited = report.waits_for or [r for r, a in report.accounts.items() if not arrived(a, report.seq)]
    missing = holding_up(awaited, report.accounts) if awaited else []
    names = ranks(missing) if missing else "data that did not arrive (all ranks are in the call)"
    return errors.TimeoutError(
        f"{report.text} ({report.where}, seen by {report.who}): waiting for {names}:{report.lines}\n"
        "A longer limit: timeout= of the call, or HOCKET_TIMEOUT.", missing)  # fmt: skip


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
    mine: Account, others: dict[int, Account | None], seconds: float, seen: Mapping[int, str] = NOTHING
) -> str:
    """The log line of a rank that waits long: its call, and what the ranks that hold it up are doing."""
    awaited = mine.get("waits_for")
    late = {
        r: describe_account(a, seen.get(r, ""), mine.get("seq", 0)) for r, a in others.items()
        if (r in awaited if awaited is not None else a is None or not arrived(a, mine["seq"]))
    }  # fmt: skip
    call = f"{mine['call']} at {mine['site']} has waited for {seconds:.0f} s"
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
    return int(account.get("seq", 0)) >= seq


def lost(
    gone: list[int], how: str, me: int, call: str, seen: Mapping[int, str] = NOTHING
) -> errors.PeerLostError:
    """The exception for ranks that are gone.  `seen`: what their recorders tell."""
    last = "".join(f"\n  rank {r}: {seen[r]}" for r in gone[:MOST_SHOWN] if r in seen)
    during = f" during {call}" if call else ""
    return errors.PeerLostError(
        f"{ranks(gone)} {'is' if len(gone) == 1 else 'are'} gone{during}: {how or 'its process ended'}; "
        f"noticed by rank {me}. This communicator cannot be used any more.{last}", gone)  # fmt: skip


def ranks(which: list[int]) -> str:
    """ "rank 3", or "ranks 1, 2, 5"."""
    return f"rank {which[0]}" if len(which) == 1 else f"ranks {', '.join(map(str, which))}"
