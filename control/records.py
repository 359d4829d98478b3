"""What ranks and the coordinator tell each other of failures: the fields of these messages, which are JSON objects.

    fault     a rank tells that a communicator failed (or, of `Stuck`, that it waits long there)
    account   what one rank was doing on that communicator
    verdict   what failed, and all ranks' accounts: the coordinator's answer to a fault, the same for every rank
"""

from __future__ import annotations

from typing import Literal, TypedDict

Kind = Literal["mismatch", "timeout", "op", "error", "interrupt", "exit", "left", "lost"]
"""What failed: calls that differ; a limit; a function given as op; a connection or a rank's own error; Ctrl-C; a rank
that ends in the middle of a call, by sys.exit in a signal's handler; a call that needs a rank which has left; a rank
that died."""
State = Literal["in call", "idle", "without", "no answer", "lost", "left", "error"]
"""What a rank does on a communicator.  "without": it has closed or dropped it, or has not made it yet."""


class Account(TypedDict, total=False):
    """What one rank was doing on a communicator."""

    state: State
    seq: int
    """The number of its call, or of its latest one."""
    call: str
    site: str
    """The user's line that made it."""
    then: str
    """Its call of an earlier number, where the ranks parted."""
    waits_for: list[int]
    """Ranks of the communicator that its message waits for."""
    handling: bool
    """A signal's handler runs in the middle of the call."""
    text: str
    """Why it could not say."""


class Fault(TypedDict, total=False):
    """One rank's report of a communicator that failed."""

    kind: Kind
    comm: str
    seq: int
    first: int
    """Calls before this number were finished by others: let them end."""
    ranks: list[int]
    """World ranks of the communicator."""
    by: int
    """The world rank that reports."""
    text: str
    """What happened; of a collective's mismatch nothing, as the accounts tell it."""
    account: Account
    left: list[int]
    """World ranks that have left, of a fault of that kind."""


class Stuck(TypedDict, total=False):
    """One rank has waited a while in a call."""

    comm: str
    seq: int
    ranks: list[int]
    fingerprint: str
    account: Account


class Verdict(Fault, total=False):
    """A fault, and what every rank was doing; or that ranks of the job died."""

    accounts: dict[int, Account]
    """By world rank."""
    lost: list[int]
    """Of kind "lost": all world ranks that have died so far."""
    new: list[int]
    """Those of them that this verdict is about."""
    how: str
