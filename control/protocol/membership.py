"""The members of a job: who is here, who was lost, who has left."""

from __future__ import annotations

from hocket.control.handshake import Hello
from hocket.control.protocol.messages import Account, Join, Latest, Lost

PURPOSE = "rendezvous"
AGAIN = "new:"  # begins the purpose of a connection that goes on for a broken one; the session's epoch follows
PLAIN = "not encrypted"  # the purpose noted for a rank that comes so, where it must not


def again(epoch: int) -> str:
    """The purpose of a connection for a broken one of this session: only who was welcome knows it."""
    return f"{AGAIN}{epoch:08x}"


class Gone:
    """The ranks that are gone for good, as one process knows it: nothing else of it keeps this."""

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        """The way in which each died."""
        self.left: dict[int, dict[str, int]] = {}
        """The number of calls that each rank had finished when it said goodbye, by communicator."""
        self._latest: dict[int, Latest] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self.lost or rank in self.left

    def __bool__(self) -> bool:
        return bool(self.lost or self.left)

    def leave(self, rank: int, finished: dict[str, int], latest: Latest) -> None:
        """This rank has said goodbye."""
        self.left[rank], self._latest[rank] = finished, latest

    def finished(self, rank: int, name: str, number: int) -> tuple[int, str] | None:
        """Call `number` on communicator `name`, as a rank that has left made it: its fingerprint, and the words.

        None: it has not finished such a call, or too many behind it.
        """
        calls, last = self._latest.get(rank, {}).get(name, []), self.left.get(rank, {}).get(name, 0)
        return calls[number - last - 1] if 0 <= last - number < len(calls) else None

    def account(self, rank: int, name: str, number: int) -> Account:
        """The account of a rank that is gone, on communicator `name`, about call `number`."""
        call = self.finished(rank, name, number)
        then: Account = {"then": call[1]} if call is not None else {}
        return {"state": "lost" if rank in self.lost else "left", **then}

    def verdict(self, rank: int) -> Lost:
        """That this rank was lost."""
        return Lost(rank, self.lost[rank], sorted(self.lost))


class Membership:
    """The members of a job of `size` ranks, as its coordinator sees them."""

    def __init__(self, size: int, job: str) -> None:
        self.size, self.job = size, Hello(0, PURPOSE, job).job
        self.formed = False
        """Have all been here at once?"""
        self.here: set[int] = set()
        self.gone = Gone()
        self.gave_up: set[int] = set()
        """Came, and said goodbye before all were here."""
        self.spoke: set[int] = set()
        """Have said more than that they are here."""
        self._who: dict[int, Join] = {}

    def objection(self, hello: Hello, join: Join) -> str:
        """Why this rank cannot join; "" if it can."""
        rank = hello.rank
        if hello.purpose == PLAIN and hello.job == self.job:
            return f"HOCKET_ENCRYPT is set on rank 0, and not on rank {rank}: it must be the same on every rank"
        if self.foreign(hello):
            return f"this is the rendezvous of job {self.job!r}, not of {hello.job!r}"
        if join.size != self.size:
            return f"rank {rank} ({_process(join)}) came with size {join.size}, but rank 0 with size {self.size}"
        if join.rank != rank or not 0 <= rank < self.size:
            return f"rank {rank} is not one of 0..{self.size - 1}"
        if (rank in self.here or (self.formed and rank in self.gone)) and not self._again(join):
            return (
                f"rank {rank} is taken by {_process(self._who[rank])}, and {_process(join)} came as rank {rank} too: "
                "every process needs its own rank"
            )
        return ""

    def _again(self, join: Join) -> bool:
        """Is it the same process, whose connection broke before the welcome?  It is welcome, or hears of its loss."""
        waits = join.rank not in self.spoke or join.rank in self.gone.lost
        return join.attempt != "" and join == self._who.get(join.rank) and waits

    def foreign(self, hello: Hello) -> bool:
        """Does it look for another job than this?"""
        return hello.job != self.job or hello.purpose not in (PURPOSE, PLAIN)

    def add(self, join: Join) -> bool:
        """A rank has come.  Are all here now, for the first time?"""
        self.here.add(join.rank)
        self._who[join.rank] = join
        complete = not self.formed and len(self.here) == self.size
        self.formed |= complete
        return complete

    def to_blame(self) -> list[int]:
        """Missing ranks, without those that came and gave up first if there are others."""
        missing = [rank for rank in range(self.size) if rank not in self.here]
        return [rank for rank in missing if rank not in self.gave_up] or missing

    @property
    def empty(self) -> bool:
        """Has everybody but rank 0 left?"""
        return self.formed and not self.here - {0}


def _process(join: Join) -> str:
    return f"process {join.pid} on {join.host}"
