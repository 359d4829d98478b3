"""The meeting point of a job, without I/O: what ranks say goes in, what they are to hear comes out.

It keeps who is here (`Membership`), which exchanges are under way, and the faults (`Faults`).  Every member hears of a
loss in one hop.  Cost: 2 messages a rank and exchange.  `control/links.py` gives it connections and a clock,
`collectives/start/local_world.py` a queue between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.control.protocol import messages as say
from hocket.control.protocol.faults import Faults, Instructions, Later, SendMessage, Timer
from hocket.control.protocol.membership import Membership

ASK_AGAIN = 5.0  # seconds in which only one rank of a communicator is told what the others do
AGAIN = 0.4  # seconds in which a rank whose connection ended before all were here may come again


class Unexpected(ValueError):
    """A member sent what only the coordinator says."""


class Coordinator:
    """`take(by, message)`: rank `by` sent this, or its connection `Ended`; or a `Timer` is over.  What to do then.

    A `Join` is taken after `members.objection` had nothing to say.
    """

    def __init__(self, size: int, job: str, welcome: say.Welcome) -> None:
        self.members = Membership(size, job)
        self.size, self._welcome = size, welcome
        self._rounds: dict[say.Number, dict[int, Any]] = {}
        self._asked: set[str] = set()
        """Communicators whose ranks were asked lately what they do."""
        self._opened: set[str] = set()
        self._faults = Faults(self.members.gone)

    def take(self, by: int, message: Any) -> list[SendMessage | Later]:
        if type(message) not in HANDLERS:
            raise Unexpected(type(message).__name__)
        if not isinstance(message, (say.Join, say.Ended)):
            self.members.spoke.add(by)
        return [
            each for each in HANDLERS[type(message)](self, by, message)
            if not isinstance(each, SendMessage) or each.rank in self.members.here
        ]  # fmt: skip

    def late(self) -> list[SendMessage]:
        """Rank 0's time to wait for the others is over: tell the ranks that are here which ones are not."""
        missing = say.Missing(say.JOIN, self._missing(say.JOIN), over=True)
        return [SendMessage(rank, missing) for rank in self.members.here]

    def _join(self, by: int, join: say.Join) -> Instructions:
        if self.members.add(join):
            yield from self._to_all(self._welcome)
        elif self.members.formed:
            yield SendMessage(by, self._welcome)

    def _exchange(self, by: int, mine: say.Exchange) -> Instructions:
        values = self._rounds.setdefault(mine.number, {})
        values[by] = mine.value
        if len(values) == self.size:
            del self._rounds[mine.number]
            yield from self._to_all(say.Values(mine.number, [values[rank] for rank in range(self.size)]))

    def _who(self, by: int, who: say.Who) -> Instructions:
        yield SendMessage(by, say.Missing(who.number, self._missing(who.number)))

    def _missing(self, number: say.Number) -> list[int]:
        if number == say.JOIN:
            return self.members.to_blame()
        return [rank for rank in range(self.size) if rank not in self._rounds.get(number, {})]

    def _open(self, by: int, wanted: say.OpenTransport) -> Instructions:
        """A rank wants a transport that the job has not opened: all ranks are to, once."""
        if wanted.transport not in self._opened:
            self._opened.add(wanted.transport)
            yield from self._to_all(wanted)

    def _ask(self, by: int, ask: say.Ask) -> Instructions:
        """Each of these ranks answers by itself; for one that is gone the coordinator does."""
        if ask.comm in self._asked:
            return  # all ranks that wait ask at once, and it is enough if one logs it
        self._asked.add(ask.comm)
        yield Later(ASK_AGAIN, Timer("asked", ask.comm))
        gone = self.members.gone
        for rank in ask.ranks:
            if rank in gone:
                yield SendMessage(by, say.Told(ask.comm, rank, gone.account(rank, ask.comm, 0)))
            elif rank != by:
                yield SendMessage(rank, say.Asked(ask.comm, by))

    def _told(self, by: int, told: say.Told) -> Instructions:
        yield SendMessage(told.rank, told._replace(rank=by))

    def _goodbye(self, by: int, goodbye: say.Goodbye) -> Instructions:
        yield SendMessage(by, say.Bye())
        self.members.here.discard(by)
        if self.members.formed:
            self.members.gone.leave(by, *goodbye)
            yield from self._gone(say.Left(by, *goodbye))
        else:
            self.members.gave_up.add(by)

    def _ended(self, by: int, ended: say.Ended) -> Instructions:
        """While the ranks meet, one whose connection was cut comes again in time, and one that has died does not."""
        self.members.here.discard(by)
        if self.members.formed:
            yield from self._lose(by, ended.how)
        else:
            yield Later(AGAIN, Timer("again", by, ended.how))

    def _lose(self, rank: int, how: str) -> Instructions:
        self.members.gone.lost[rank] = how
        yield from self._gone(self.members.gone.verdict(rank))

    def _gone(self, message: Any) -> Instructions:
        yield from self._to_all(message)
        yield from self._faults.lose()

    def _timer(self, by: int, timer: Timer) -> Instructions:
        if timer.what == "asked":
            self._asked.discard(str(timer.of))
        elif timer.what == "gather":
            yield from self._faults.over(str(timer.of))
        else:
            yield from self._died(int(timer.of), timer.how)

    def _died(self, rank: int, how: str) -> Instructions:
        """This rank's connection ended a while ago, and none came in its place."""
        members = self.members
        if not members.formed and rank not in members.here and rank not in members.gone:
            yield from self._lose(rank, how)

    def _fault(self, by: int, fault: say.Fault) -> Instructions:
        return self._faults.report(by, fault)

    def _stuck(self, by: int, stuck: say.Stuck) -> Instructions:
        return self._faults.stuck(by, stuck)

    def _answer(self, by: int, answer: say.Answer) -> Instructions:
        return self._faults.answer(by, answer)

    def _to_all(self, message: Any) -> Instructions:
        for rank in sorted(self.members.here):
            yield SendMessage(rank, message)


HANDLERS: dict[type, Callable[[Coordinator, int, Any], Instructions]] = {
    say.Join: Coordinator._join, say.Exchange: Coordinator._exchange, say.Who: Coordinator._who,
    say.Fault: Coordinator._fault, say.Stuck: Coordinator._stuck, say.Answer: Coordinator._answer,
    say.Ask: Coordinator._ask, say.Told: Coordinator._told, say.OpenTransport: Coordinator._open,
    say.Goodbye: Coordinator._goodbye, say.Ended: Coordinator._ended, Timer: Coordinator._timer,
}  # fmt: skip
