"""The duties of a job's ranks when one of them is killed or stopped; a pure function of what was seen.

A rank that was killed is PeerLostError for all others within a second, and nobody else is named.  A rank that
dies before it has met the others, or while it leaves, cannot be told from one that never comes: then it is a
TimeoutError at the end of the meeting's time.  A rank that is stopped for good is a TimeoutError of the call.  For a
rank that goes on in time nothing is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hocket.conformance.chaos.rank import MEETING
from hocket.conformance.jobs.trial import EMPTY

LIMIT = 1.0
"""Seconds from a kill to the exception on every survivor."""
MET = 0.2
"""Seconds after which a rank that has called init has met rank 0, if that is there."""
TIMEOUT = 3.0
"""HOCKET_TIMEOUT of a job in which a rank is to be stopped for good."""
VERDICT = 3.0
"""Seconds that a rank waits for what the job's control plane says of a timeout."""
SOCKET = "run/meet"
"""The socket at which ranks meet: rank 0 cannot remove it when it is killed.  `hocket run` does, with its directory."""
EVENTS = "hocket-events-"
"""The folder of what ranks did last, which errors name."""
LEAVING = 6.0
"""Seconds of close(), while a rank is stopped."""


@dataclass
class Observed:
    """One trial: who was hit and how, when (of stop-kill: the stop and the kill), and what was seen of each rank."""

    victim: int
    how: str
    hit: float
    at: float
    said: list[list[dict[str, Any]]]
    codes: list[int | None]
    """None: it did not end."""
    cried: list[str]
    left: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """outcome of each survivor (lost, timeout, finished, hung, ...), seconds to it, and what is wrong."""

    outcomes: list[str]
    seconds: list[float]
    wrong: list[str]


def judge(seen: Observed, slack: float) -> Verdict:
    """`slack`: seconds more for a busy machine."""
    left = [what for what in seen.left if not _excused(seen, what)]
    verdict = Verdict([], [], [f"left behind: {what}" for what in left])
    for rank, said in enumerate(seen.said):
        if rank == seen.victim and seen.how != "pause":
            continue
        outcome, seconds, wrong = _survivor(seen, rank, said, slack)
        verdict.outcomes.append(outcome)
        if seconds is not None:
            verdict.seconds.append(seconds)
        verdict.wrong += [f"rank {rank} {what}" for what in wrong]
    return verdict


def _excused(seen: Observed, what: str) -> bool:
    """Is it what docs/api.md says may be left?"""
    its = _state(seen, seen.victim)
    if what.rpartition("/")[2].startswith(EVENTS):
        return True
    return seen.victim == 0 and what == SOCKET or what.endswith(EMPTY) and its is not None and its[0] == "init"


def _survivor(
    seen: Observed, rank: int, said: Sequence[dict[str, Any]], slack: float
) -> tuple[str, float | None, list[str]]:
    code = seen.codes[rank]
    crash = next((each["crash"] for each in said if "crash" in each), None)
    error = next((each for each in said if "error" in each), None)
    if code is None:
        return "hung", None, ["did not end"]
    if crash or code:
        return "crashed", None, [f"ended with {code}: {crash or seen.cried[rank][-2000:]}"]
    wrong = _after(seen, said, slack)
    if error is None:
        fine = seen.how == "pause" and any("finished" in each for each in said)
        return ("finished" if fine else "silent"), None, wrong if fine else ["raised nothing", *wrong]
    kind = {"PeerLostError": "lost", "TimeoutError": "timeout"}.get(error["error"], error["error"])
    text = f"{error['error']} naming {error['named']}: {error['text']}"
    if seen.how == "pause":
        return kind, None, [f"raised, though the rank went on: {text}", *wrong]
    kinds, begin, limit = _allowed(seen, rank, slack)
    seconds = error["at"] - begin
    if kind not in kinds:
        wrong.append(f"raised after {seconds:.2f} s {text}")
    elif error["named"] != [seen.victim] and not _coordinator_instead(seen, rank, error, slack):
        wrong.append(f"did not name {[seen.victim]} but raised {text}")
    if seconds > limit + slack:
        wrong.append(f"knew it after {seconds:.2f} s, allowed are {limit:g} s and {slack:g} s: {text}")
    return kind, seconds, wrong


def _after(seen: Observed, said: Sequence[dict[str, Any]], slack: float) -> list[str]:
    """The faults in the end of a rank: the second call, close(), what stays."""
    wrong = []
    for each in said:
        if each.get("second") == "no error":
            wrong.append("made a second call without an error")
        anew = TIMEOUT + VERDICT if seen.how == "stop" and each.get("elsewhere") else 0.0
        if each.get("seconds", 0) > anew + slack:
            wrong.append(f"had its second call refused after {each['seconds']:.2f} s")
        if each.get("closed", 0) > (LEAVING if seen.how == "stop" else LIMIT) + slack:
            wrong.append(f"took {each['closed']:.2f} s to close")
        if each.get("left"):
            wrong.append(f"still holds {each['left']} after close()")
    return wrong


def _allowed(seen: Observed, rank: int, slack: float) -> tuple[tuple[str, ...], float, float]:
    """(what a survivor may raise, since when its time is counted, the limit)."""
    if seen.how == "stop":
        return ("timeout", "lost"), seen.at, TIMEOUT + VERDICT
    came = max((each["at"] for each in seen.said[rank] if each.get("state") == "init"), default=seen.at)
    begin = max(seen.at, came)
    return (("lost",), begin, LIMIT) if _knows(seen, rank, slack) else (("lost", "timeout"), begin, MEETING)


def _knows(seen: Observed, rank: int, slack: float) -> bool:
    """Had this survivor and the victim met, at the latest through rank 0?"""
    if rank and _missed(seen, rank, slack):
        return False
    mine, its, coordinator = (_state(seen, r) for r in (rank, seen.victim, 0))
    if its is None or its[0] == "closing" or mine is not None and (mine[0] == "closing" or mine[1] != its[1]):
        return False
    if max((each["turn"] for each in seen.said[rank] if "turn" in each), default=0) > its[1]:
        return False  # the victim died in its last call; this rank finished that, left, and waits in the next meeting
    if its[0] == "ready":
        return True
    there = [its, coordinator, *([mine] if seen.victim == 0 else [])]  # a rank that comes later finds no rank 0
    return all(state is not None and state[1] == its[1] and seen.hit - state[2] >= MET * (1 + slack) for state in there)


def _coordinator_instead(seen: Observed, rank: int, error: dict[str, Any], slack: float) -> bool:
    """Is it right to name rank 0?  It was stopped, or it and this rank have missed each other."""
    if seen.how == "stop" and seen.victim == 0:
        return True
    return _missed(seen, rank, slack) and error["named"] == [0] and error["error"] == "TimeoutError"


def _missed(seen: Observed, rank: int, slack: float) -> bool:
    """Did rank 0 come when this one's time to meet was over, or raise before this one had reached it?"""
    came: list[dict[int, float]] = [
        {each["turn"]: each["at"] for each in said if each.get("state") == "init"} for said in seen.said
    ]
    turn = max(came[rank], default=0)
    mine, meets = came[rank].get(turn, 0), MET * (1 + slack)
    late = turn not in came[0] or came[0][turn] - mine > MEETING - meets
    return late or any("error" in each and each["at"] - mine < meets for each in seen.said[0])


def _state(seen: Observed, rank: int) -> tuple[str, int, float] | None:
    """(state, turn, since when) of a rank when the victim was hit; None: it had not started."""
    found = [each for each in seen.said[rank] if "state" in each and each["at"] <= seen.hit]
    return (found[-1]["state"], found[-1]["turn"], found[-1]["at"]) if found else None
