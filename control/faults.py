"""What the coordinator does with faults, without I/O: one fault of a communicator becomes one verdict on all its ranks.

    report (or two `stuck` that differ)  ->  "stop" to all its ranks  ->  their accounts, or no answer  ->  "verdict"

Later reports of the same communicator are folded into the first, but all ranks hear which ones a signal ends.  Knows
no sockets and no clock: it is told which rank sent what and when time is over, and says what to send by calling
`send(rank, message)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from hocket.control.records import Account, Fault, Kind, State, Stuck

GATHER = 0.4  # seconds in which a rank says what it was doing
NO_ANSWER: Account = {"state": "no answer"}
LEFT: Kind = "left"
"""The kind of a fault that only concerns ranks that wait for the reporter, which needed a rank that has left."""
EXIT: Kind = "exit"
"""The kind of a fault that all ranks hear of, whatever failed before: a signal's handler has ended the reporter."""


@dataclasses.dataclass
class Case:
    """The fault of one communicator while its accounts come in."""

    fault: Fault
    accounts: dict[int, Account]
    decided: bool = False


class Faults:
    """`send` delivers to one rank; `wait(seconds, call)` calls back; `absent` maps the ranks that are gone to how."""

    def __init__(
        self,
        send: Callable[[int, dict[str, Any]], object],
        wait: Callable[[float, Callable[[], object]], object],
        absent: Mapping[int, State],
    ) -> None:
        self._send, self._wait, self._absent = send, wait, absent
        self._cases: dict[str, Case] = {}
        self._stuck: dict[str, dict[int, Stuck]] = {}

    def report(self, by: int, fault: Fault) -> None:
        """A rank failed: open the case of its communicator, or add to it."""
        comm, account = str(fault["comm"]), fault.get("account")
        if fault["kind"] == LEFT:
            for rank in fault["ranks"]:
                self._send(rank, {"verdict": {**fault, "by": by}})
            return
        case = self._cases.get(comm)
        if case is not None and fault["kind"] == EXIT:
            for rank in fault["ranks"]:
                self._send(rank, {"verdict": {**fault, "by": by}})
        if case is None:
            ranks = [int(rank) for rank in fault["ranks"]]
            case = self._cases[comm] = Case({**fault, "ranks": ranks, "by": by}, {})
            self._stuck.pop(comm, None)
            stop = {key: value for key, value in case.fault.items() if key != "account"}
            for rank in ranks:
                self._send(rank, {"stop": stop})
            self._wait(GATHER, lambda: self._decide(case))
        if account:
            case.accounts[by] = account  # knows more than the answer to a stop
        self._settle(case)

    def stuck(self, by: int, info: Stuck) -> None:
        """A rank has waited a while; two that wait in the same call for different things are a mismatch."""
        comm, seq, ranks = str(info["comm"]), int(info["seq"]), list(info["ranks"])
        waiting = self._stuck.setdefault(comm, {})
        if comm in self._cases or (by in waiting and waiting[by]["seq"] > seq):
            return
        waiting[by] = {"seq": seq, "fingerprint": str(info["fingerprint"]), "account": info.get("account") or NO_ANSWER}
        same = {rank: other for rank, other in waiting.items() if other["seq"] == seq}
        if len({other["fingerprint"] for other in same.values()}) == 1:
            return
        self.report(by, {"kind": "mismatch", "comm": comm, "seq": seq, "ranks": ranks})
        for rank, other in same.items():
            self.account(rank, comm, other["account"])

    def account(self, rank: int, comm: str, account: Account | None) -> None:
        """What a rank was doing when it was stopped; the first answer counts."""
        case = self._cases.get(comm)
        if case is not None and account:
            case.accounts.setdefault(rank, account)
            self._settle(case)

    def gone(self) -> None:
        """A rank is absent now: no case waits for its account any more."""
        for case in list(self._cases.values()):
            self._settle(case)

    def _settle(self, case: Case) -> None:
        if all(rank in case.accounts or rank in self._absent for rank in case.fault["ranks"]):
            self._decide(case)

    def _decide(self, case: Case) -> None:
        if case.decided:
            return
        case.decided = True
        for rank in case.fault["ranks"]:
            case.accounts.setdefault(rank, {"state": self._absent[rank]} if rank in self._absent else NO_ANSWER)
        verdict = {key: value for key, value in case.fault.items() if key != "account"} | {"accounts": case.accounts}
        for rank in case.fault["ranks"]:
            self._send(rank, {"verdict": verdict})
