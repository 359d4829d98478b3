"""The messages between ranks and the coordinator: a type for each message.

On the wire a message is a JSON object of one entry, {"exchange": [number, value]}: its name and its fields in order.
`unpack` checks each field, so that the machines see nothing but what these types say.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypedDict, get_args

from hocket.control.protocol.checking import Malformed, checked

FaultKind = Literal["mismatch", "timeout", "op", "error", "interrupt", "exit", "left"]
"""The kind of a failure: calls that differ; a limit; a function given as op; a connection or a rank's own error;
Ctrl-C; a rank that ends in the middle of a call, by sys.exit in a signal's handler; a call that needs a rank which has
left."""
State = Literal["in call", "idle", "without", "no answer", "lost", "left", "error"]
"""A rank's state on a communicator.  "without": it has closed or dropped it, or has not made it yet."""
Number = int | str
"""The number of an exchange; one with a name stands outside of the order."""
Latest = dict[str, list[tuple[int, str]]]
"""Calls by communicator, the latest last: a fingerprint, and the words."""
JOIN = "join"  # the "exchange" that everybody takes part in first


class Account(TypedDict, total=False):
    """One rank's activity on a communicator."""

    state: State
    seq: int
    """The number of its call, or of its latest one."""
    call: str
    site: str
    """The user's line that made it."""
    then: str
    """Its call of an earlier number, where the ranks parted."""
    waits_for: list[int]
    """World ranks that its message waits for."""
    handling: bool
    """A signal's handler runs in the middle of the call."""
    text: str
    """Why it could not say."""


# --- a rank's


class Join(NamedTuple):
    """I am here."""

    rank: int
    size: int
    pid: int = 0
    host: str = ""
    attempt: str = ""
    """Drawn once by who tries: it may come again, if its connection broke before it was welcome."""


class Exchange(NamedTuple):
    """My value; when all ranks have sent theirs, each gets `Values`."""

    number: Number
    value: Any


class Who(NamedTuple):
    """Asks which ranks have not come to this exchange.  The answer is `Missing`."""

    number: Number


class Fault(NamedTuple):
    """A communicator failed here."""

    kind: FaultKind
    comm: str
    seq: int
    ranks: list[int]
    """World ranks of the communicator."""
    text: str = ""
    """The event in words; for a collective's mismatch none, as the accounts tell it."""
    account: Account | None = None
    first: int = 0
    """Calls before this number were finished by others: let them end."""
    left: list[int] = []
    """World ranks that have left, of a fault of that kind."""
    by: int = -1
    """The world rank that reports; the coordinator fills it in."""


MESSAGE = f"{0:08x}"
"""The fingerprint of a call that is a message."""


class Stuck(NamedTuple):
    """I have waited a while in this call."""

    comm: str
    seq: int
    ranks: list[int]
    fingerprint: str
    account: Account
    sent: list[int] = []
    """Where all calls follow each other, messages too: how many I have begun to send to each of `ranks`.  The number of
    a message is then that of the collective behind it."""
    taken: list[int] = []
    """... and how many I have begun to take from each."""

    @property
    def between(self) -> bool:
        """Is it a message, between two collectives whose numbers are known?"""
        return bool(self.sent) and self.fingerprint == MESSAGE


class Answer(NamedTuple):
    """My activity when I was told to stop."""

    comm: str
    account: Account


class Ask(NamedTuple):
    """Asks for the activity of these ranks.  Each answers with `Told`."""

    comm: str
    ranks: list[int]


class Told(NamedTuple):
    """A rank's activity, for the one that asks: `rank` is that one, and when it arrives, the one that answers."""

    comm: str
    rank: int
    account: Account


class OpenTransport(NamedTuple):
    """I want this transport; and the coordinator's: all ranks are to open it."""

    transport: str


class Goodbye(NamedTuple):
    """I leave.  By communicator: how many calls I have finished, and the latest of these."""

    finished: dict[str, int]
    latest: Latest = {}


# --- the coordinator's


class Welcome(NamedTuple):
    """All are here.  `salt` and the job's key make the session's; without a job's key it is `key`."""

    salt: str = ""
    key: str = ""


class Refused(NamedTuple):
    """This rank cannot join.  `foreign`: it came to another job than its own."""

    why: str
    foreign: bool


class Values(NamedTuple):
    """An exchange is complete."""

    number: Number
    values: list[Any]
    error: str = ""


class Missing(NamedTuple):
    """These ranks have not come to an exchange.  `over`: nor does the coordinator wait for them any more."""

    number: Number
    ranks: list[int]
    over: bool = False


class Stop(NamedTuple):
    """A communicator failed: stop waiting in it, and say what you are doing."""

    fault: Fault


class Verdict(NamedTuple):
    """The failure, and the activity of every rank: the same for all of them."""

    fault: Fault
    accounts: dict[int, Account] = {}
    """By world rank."""


class Lost(NamedTuple):
    """A rank died."""

    rank: int
    how: str
    lost: list[int]
    """All that have died so far."""


class Left(NamedTuple):
    """A rank said goodbye."""

    rank: int
    finished: dict[str, int]
    latest: Latest = {}


class Asked(NamedTuple):
    """Rank `by` wants to know what you are doing."""

    comm: str
    by: int


class Bye(NamedTuple):
    """You may go."""


# --- what a machine is told by its own process


class Ended(NamedTuple):
    """The connection to a rank (of a rank: to the coordinator) ended."""

    how: str


Message = (
    Join | Exchange | Who | Fault | Stuck | Answer | Ask | Told | OpenTransport | Goodbye
    | Welcome | Refused | Values | Missing | Stop | Verdict | Lost | Left | Asked | Bye
)  # fmt: skip


def by_name(*types: type) -> dict[str, type]:
    """The table by which `unpack` finds a message's type."""
    return {each.__name__.lower(): each for each in types}


TYPES = by_name(*get_args(Message))


def pack(message: Any) -> dict[str, Any]:
    """Make JSON of it: named tuples become lists by themselves."""
    return {type(message).__name__.lower(): message}


def unpack(packed: dict[str, Any], types: dict[str, type] = TYPES) -> Any:
    """The message, checked field by field.  Raises Malformed."""
    if len(packed) != 1:
        raise Malformed(f"{len(packed)} entries instead of one")
    ((name, fields),) = packed.items()
    if name not in types:
        raise Malformed(f"an unknown message {name[:40]!r}")
    return checked(types[name], fields, name)
