"""`fetch`: processes get the parts that they want of arrays that another job has published, all of one version.

One reads alone, or all ranks of a communicator together: then what several of a host want crosses to it once, and all
have the same version.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hocket.arguments import kind, whole
from hocket.collectives.elastic import pairs
from hocket.collectives.layouts.boxes import words
from hocket.collectives.layouts.layout import Layout
from hocket.collectives.layouts.moving import Damaged, Flow, drain
from hocket.collectives.publishing.planning import FetchPlan, FetchWish, Table
from hocket.collectives.publishing.words import BYE, hear, here, leave, tell
from hocket.collectives.start import default
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError, TransportError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

REACH = 2.0
"""Seconds after which a rank of the publisher that does not answer a connection is asked for again."""
PATIENCE = 30.0
"""Seconds in which a fetch must have begun, where the caller does not say."""
RAISED: dict[str, type[Error]] = {
    each.__name__: each for each in (ArgumentError, MismatchError, PeerLostError, TimeoutError)
}
"""Errors that one reader raises, and with it all that fetch together."""


class Reader:
    """Whoever reads what a job has published, again and again: `fetch` returns the newest version.

    `hocket.fetch` is a reader that reads once, and has its arguments.  Connections, plan and arrays are kept from one
    `fetch` to the next, which writes into the same arrays.  `version` is the number of what was fetched last.
    """

    def __init__(
        self, address: str, layout: Any, *, rank: int | None = None, comm: Communicator | None = None,
        into: Any = None, dtype: Any = None, codec: Any = None, check: bool = False,
        secret: str | bytes | None = None, iface: str | None = None, encrypt: bool | None = None,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(layout, (Layout, Mapping)):
            raise ArgumentError(f"layout must be a Layout, or map names to Layouts, got {kind(layout)}")
        if comm is not None and rank is not None:
            raise ArgumentError("give comm=, whose ranks fetch together, or rank= of one that reads alone, not both")
        if comm is not None:
            self.rank = comm.rank
        else:
            self.rank = _own_rank() if rank is None else whole(rank, "rank")
        self.version: int | None = None
        self._address, self._comm = address, comm
        self._wanted = FetchWish(layout, self.rank, into, dtype, codec, bool(check))
        self._how: dict[str, Any] = {"secret": secret, "iface": iface, "encrypt": encrypt}
        self._how["transport"] = transport
        self._digest = self._wanted.digest if comm is not None else ""
        self._pairs: dict[int, Communicator] = {}
        self._sent: dict[int, FetchPlan] = {}
        """The plan whose messages each rank of the publisher has been told."""
        self._table: Table | None = None
        self._plan: FetchPlan | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """The newest version: a dict of lists of arrays, or a list, as it was published.

        With `comm` all of its ranks call it, and get the same version.  Raises PeerLostError (a rank of the publisher
        is gone, or of `comm`), TimeoutError (it did not begin within `timeout` seconds; 30), ArgumentError (names,
        shapes or elements that nobody has published); with `comm` on all of its ranks.
        """
        deadline = time.monotonic() + (PATIENCE if timeout is None else timeout)
        while True:
            made = self._fetched(deadline)
            if made is not None:
                return made

    def close(self) -> None:
        """Leave the publisher."""
        for pair in self._pairs.values():
            with contextlib.suppress(Error):
                tell(pair, BYE, timeout=0.1)
            leave(pair, "a publisher")
        self._pairs.clear()
        self._sent.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _fetched(self, deadline: float) -> Any:
        """The result; None if the version that was begun is offered no more."""
        first = self._comm is None or not self.rank
        rows = self._all(lambda: [self._digest, self._asked(deadline) if first else None, here()])
        if odd := [rank for rank, (digest, *_) in enumerate(rows) if digest != self._digest]:
            raise ArgumentError(f"fetch: ranks {[*{self.rank, *odd}]} of comm= were given other arguments: give all "
                                "the same layout, dtype, codec and check")  # fmt: skip
        told = rows[0][1]
        if told["table"] is not None:
            self._table, self._plan = Table.heard(told), None
        table = self._table
        assert table is not None
        if self._plan is None:
            made: list[FetchPlan] = []
            places = [row[2] for row in rows]
            self._all(lambda: made.append(FetchPlan(table, self._wanted, self._comm, places, self._address)))
            [self._plan] = made  # on all, or on none
        plan = self._plan
        held = self._all(lambda: self._held(plan, table, told["version"], deadline))
        if not all(held):
            return None
        damaged: list[Damaged] = []
        self._all(lambda: self._got(plan, damaged))
        other = plan.hand_on(None)
        if plan.check:
            self._all(lambda: _whole(plan, damaged, other))
        self.version = told["version"]
        return plan.result()

    def _all(self, call: Callable[[], Any]) -> list[Any]:
        """The results of `call` on all that fetch together; what one raises, all raise."""
        result, error = None, cast(Exception | None, None)
        try:
            result = call()
        except (PeerLostError, TransportError) as why:
            self.close()
            error = PeerLostError(f"fetch: the job that publishes at {self._address} has lost a rank: {why}", [])
        except Exception as why:
            error = why
        if self._comm is None:
            if error is not None:
                raise error
            return [result]
        rows = self._comm.share([error and type(error).__name__, str(error), result], "fetch")
        for name, text, _ in rows:
            if name:
                raise RAISED.get(name, Error)(text) from error
        return [row[2] for row in rows]

    def _asked(self, deadline: float) -> dict[str, Any]:
        """The table of the publisher's rank 0, as JSON."""
        first = self._pair(0, self._address, deadline)
        tell(first, {"what": "table", "known": self._table and self._table.digest})
        told: dict[str, Any] = hear(first, self._left(deadline))
        if told["lost"]:
            raise PeerLostError(f"its rank {told['lost'][0]} is gone", [])
        return told

    def _held(self, plan: FetchPlan, table: Table, version: int, deadline: float) -> bool:
        """Ask the sources to keep this version until it was fetched.  False: one has it no more."""
        sources = {rank: self._pair(rank, table.addresses[rank], deadline) for rank in plan.sources}
        for pair in sources.values():
            tell(pair, {"what": "hold", "version": version, "kinds": plan.told_kinds()})
        answers, lost = [], None
        for pair in sources.values():
            try:
                answers.append(hear(pair, self._left(deadline)))
            except (PeerLostError, TransportError) as why:  # the others have answered, too
                lost = why
        if lost is not None:
            raise lost
        if wrong := [why for _, why in answers if why]:
            raise ArgumentError(f"fetch: {wrong[0]}")
        if not plan.messages:
            plan.cut({rank: len(pair.membership.hosts) > 1 for rank, pair in sources.items()})
        return all(held for held, _ in answers)

    def _got(self, plan: FetchPlan, damaged: list[Damaged]) -> None:
        """Get what comes from the publisher."""
        ways = []
        for rank, mine in plan.messages.items():
            pair = self._pairs[rank]
            told = None if self._sent.get(rank) is plan else [plan.told(each) for each in mine]
            tell(pair, {"what": "send", "check": plan.check, "messages": told})
            self._sent[rank] = plan
            ways.append(Flow(pair, 0, mine, True, plan.words, None, damaged if plan.check else None))
        drain(ways)

    def _pair(self, rank: int, address: str, deadline: float) -> Communicator:
        """The connection to a rank of the publisher."""
        pair = self._pairs.get(rank)
        while pair is None:
            left = self._left(deadline)
            try:
                pair = pairs.connect(address, timeout=min(left, REACH), **self._how)
            except TimeoutError:
                if rank:  # its rank 0 knows whether it is lost
                    self._asked(deadline)
        self._pairs[rank] = pair
        return pair

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"fetch: the job that publishes at {self._address} has not answered in time", [])
        return left


def _own_rank() -> int:
    """This process's rank in its own job; 0 if it has none."""
    try:
        return default.communicator().rank
    except ArgumentError:
        return 0


def _whole(plan: FetchPlan, damaged: Sequence[Damaged], handed: Sequence[Damaged]) -> None:
    for found, of in ((damaged, "of the publisher"), (handed, "of comm=")):
        for array, box, rank in found[:1]:
            what = f"array {plan.names[array]!r}, {words(box)}, from rank {rank} {of}"
            raise MismatchError(f"fetch: other bits arrived than were sent: {what}", {})


def fetch(
    address: str, layout: Any, *, rank: int | None = None, comm: Communicator | None = None, into: Any = None,
    dtype: Any = None, codec: Any = None, check: bool = False, timeout: float | None = None,
    secret: str | bytes | None = None, iface: str | None = None, encrypt: bool | None = None,
    transport: str | None = None,
) -> Any:  # fmt: skip
    """The newest version of what another job has published (`hocket.publish`): the boxes that this process wants.

    `layout`: a `Layout`, or names and Layouts, of which this process is rank `rank` (of the default communicator's
    ranks, if there is one; else 0).  Names that are left out do not travel.  Returns a dict of lists of arrays, new or
    those of `into`, or a list where a list was published.  All is of one version.  `Reader` keeps the connections for
    the next time.

    - `comm`: all of its ranks fetch together, by their ranks, and get one version.  What several of a host want crosses
      to it once; the others read it there.  Without it each process fetches by itself, and waits for no other.
    - `dtype`: for all or for each name; the publisher converts, rounding once.
    - `codec`: "lossless", for all names or for each, as in `redistribute`.
    - `check`: compare a digest of each message at its end (MismatchError).
    - `secret` and the rest: as in `hocket.connect`.

    Errors as in `Reader.fetch`.

    >>> import hocket, numpy as np
    >>> world = hocket.local_world(1)
    >>> whole = hocket.Layout.replicated((3,), 1)
    >>> published = world.run(lambda comm: hocket.publish(comm, {"w": [np.arange(3)]}, whole))[0]
    >>> hocket.fetch(published.address, {"w": whole}, rank=0)["w"][0].tolist()
    [0, 1, 2]
    >>> published.close()
    """
    how: dict[str, Any] = {"secret": secret, "iface": iface, "encrypt": encrypt, "transport": transport}
    how.update({"into": into, "dtype": dtype, "codec": codec, "check": check})
    with Reader(address, layout, rank=rank, comm=comm, **how) as reader:
        return reader.fetch(timeout)
