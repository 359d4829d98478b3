"""`redistribute`: arrays that ranks hold by one layout become arrays that they hold by another.

First all ranks compare what they were given, in one exchange of dtypes and digests; what is wrong anywhere is told
everywhere, before anything moves.  Then each makes the plan (deal.py), and carries out its part of it (moving.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hocket.arguments import whole
from hocket.collectives.layouts.arrays import Array, convertible, new
from hocket.collectives.layouts.boxes import words
from hocket.collectives.layouts.comm import Comm
from hocket.collectives.layouts.deal import Move, deal
from hocket.collectives.layouts.given import ONE, SHOWN, Given, Wishes
from hocket.collectives.layouts.moving import Arrays, Damaged, Kinds, Mover, block_of
from hocket.collectives.layouts.pulls import Reach
from hocket.errors import ArgumentError, Error, MismatchError
from hocket.kernels.codecs import PACKED
from hocket.kernels.dtypes import DType, by_name

ROOM = 64 << 20
"""Bytes of memory beside the arrays, at most, where the caller does not say."""
LANE = "hocket.redistribute"
"""The lane on which its messages travel, so that they meet no others."""


class Redistribution:
    """A redistribution to be made again and again, after every update of the arrays: `plan()`.

    Each call moves what the arrays hold then, into the same arrays, which it returns; nothing is compared or allocated
    again.  `plan.start()` is `async_op=True`.  All ranks call it.  `prepare_redistribute` makes it.
    """

    def __init__(
        self, comm: Comm, tree: Any, source: Any, target: Any, into: Any, dtype: Any, room: int, check: bool,
        timeout: float | None, codec: Any = None,
    ) -> None:  # fmt: skip
        given, why = None, ""
        try:
            room = whole(room, "room")
            given = Given(comm, tree, source, target, into, dtype, codec)
        except Error as error:
            why = str(error)
        dtypes, of_torch = agreed(comm, given, why, [room, bool(check)], timeout)
        assert given is not None
        kinds = kinds_of(given.names, dtypes, given.wishes)
        rows = zip(given.names, given.sources, given.targets, [each.want.itemsize for each in kinds], strict=True)
        moves = deal(list(rows), [list(host) for host in comm.membership.hosts])
        self._given, self._timeout = given, timeout
        self._made = given.into if given.into is not None else _new(comm.rank, given, kinds, of_torch)
        lists = [[each.array for each in some] for some in self._made]
        named = dict(zip(given.names, lists, strict=True))
        self._result: Any = named[ONE] if given.listed else named
        self._comm = comm
        held = [[each.words for each in some] for some in given.held]
        made = [[each.words for each in some] for some in self._made]
        arrays = Arrays(kinds, held, made, block_of(room, comm.size))
        self._mover = mover(comm, moves, arrays, (given.held, self._made), check, timeout)

    def __call__(self) -> Any:
        """Move all, and return the arrays of the target."""
        return self.start().result() if _turns(self._comm).busy else self._move()

    def start(self) -> Moving:
        """The same, asynchronously."""
        return _turns(self._comm).begin(self._move)

    def _move(self) -> Any:
        damaged = self._mover.run(self._timeout)
        if self._mover.check:
            self._raise_damage(damaged)
        return self._result

    def _raise_damage(self, damaged: Sequence[Damaged]) -> None:
        """All ranks raise it, if any has got other bits than were sent."""
        names = self._given.names
        texts = [
            f"array {names[each.array]!r}, {words(each.box)}, from rank {each.source} to rank {self._comm.rank}"
            for each in damaged[:SHOWN]
        ]
        all_texts = [text for row in self._mover.comm.share(texts, "redistribute") for text in row]
        if all_texts:
            raise MismatchError(f"redistribute: other bits arrived than were sent: {'; '.join(all_texts)}", {})


def mover(
    comm: Comm, moves: Sequence[Move], arrays: Arrays, both: Sequence[Sequence[Sequence[Array]]], check: bool,
    timeout: float | None,
) -> Mover:  # fmt: skip
    """The moves among `both` source and target, to be carried out again and again.  All ranks of `comm` call it."""
    reach, addresses = None if check else _turns(comm).reach(comm), []
    if reach is not None:
        mine = [[[each.address for each in some] for some in side] for side in both]
        addresses = comm.share(mine, "redistribute", timeout)
    return Mover(comm.lane(LANE), moves, arrays, check, reach, addresses)


def agreed(
    comm: Comm, given: Given | None, why: str, options: list[Any], timeout: float | None,
    within: str = "redistribute",
) -> tuple[list[DType], list[bool]]:  # fmt: skip
    """The dtype of each array, and whether it is torch's, as the ranks hold it.  Raises what is wrong on any rank."""
    rows = comm.share(_told(given, why, options), within, timeout)
    if wrong := [f"rank {rank}: {row['why']}" for rank, row in enumerate(rows) if row["why"]]:
        raise ArgumentError(f"{within}: {'; '.join(wrong[:SHOWN])}")
    assert given is not None
    if odd := [rank for rank, row in enumerate(rows) if row["options"] != rows[0]["options"]]:
        raise ArgumentError(f"{within}: rank {odd[0]} has another room= or check= than rank 0: give all the same")
    if odd := [rank for rank, row in enumerate(rows) if row["digest"] != rows[0]["digest"]]:
        _raise_apart(comm, given, odd[0], timeout, within)
    return [_dtype_of(number, name, rows, given, within) for number, name in enumerate(given.names)], [
        any(row["torch"][number] for row in rows) for number in range(len(given.names))
    ]


def kinds_of(names: Sequence[str], have: Sequence[DType], wished: Wishes) -> list[Kinds]:
    """The dtypes of each array, and its codec between hosts.  Raises ArgumentError."""
    found = []
    for name, own, want, codec in zip(names, have, wished.dtypes, wished.codecs, strict=True):
        want = want or own
        if not convertible(own, want):
            raise ArgumentError(f"array {name!r} is {own}, which cannot become {want}")
        if codec is not None and wished.named and want.name not in PACKED:
            raise ArgumentError(f"codec[{name!r}]: 'lossless' takes {', '.join(PACKED)}, and the array is {want}")
        found.append(Kinds(own, want, None if codec is None else PACKED.get(want.name)))
    return found


def _told(given: Given | None, why: str, options: list[Any]) -> dict[str, Any]:
    if given is None or why:
        return {"why": why, "options": options, "digest": "", "held": [], "into": [], "torch": []}
    into = given.into or [[]] * len(given.names)
    return {
        "why": "", "options": options, "digest": given.digest,
        "held": [some[0].dtype.name if some else "" for some in given.held],
        "into": [some[0].dtype.name if some else "" for some in into],
        "torch": [int(bool(some) and some[0].of_torch) for some in given.held],
    }  # fmt: skip


def _raise_apart(comm: Comm, given: Given, rank: int, timeout: float | None, within: str) -> None:
    """The layouts differ among ranks: which."""
    told = list(zip(given.names, given.digests, strict=True))
    rows = [dict(row) for row in comm.share(told, within, timeout)]
    first, other = rows[0], rows[rank]
    name = min(name for name in {*first, *other} if first.get(name) != other.get(name))
    lacks = [0] * (name not in first) + [rank] * (name not in other)
    what = f"rank {lacks[0]} does not name it" if lacks else "its layouts, dtype= or codec= differ"
    raise ArgumentError(f"{within}: ranks 0 and {rank} were given other things for array {name!r}: {what}")


def _dtype_of(number: int, name: str, rows: Sequence[dict[str, Any]], given: Given, within: str) -> DType:
    """The dtype that the ranks hold an array in, if they agree."""
    by = {row["held"][number]: rank for rank, row in reversed([*enumerate(rows)]) if row["held"][number]}
    if len(by) > 1:
        (one, a), (two, b) = sorted(by.items(), key=lambda each: each[1])[:2]
        raise ArgumentError(f"{within}: array {name!r} is {one} on rank {a} and {two} on rank {b}")
    have = dtype_named(next(iter(by), "uint8"))
    want = given.wishes.dtypes[number] or have
    for rank, row in enumerate(rows):
        if row["into"][number] not in ("", want.name):
            into = row["into"][number]
            raise ArgumentError(
                f"{within}: array {name!r} is {want}, and into= of rank {rank} is {into}: to convert it, say "
                f"dtype={into!r}"
            )
    return have


def dtype_named(name: str) -> DType:
    """A dtype, or bytes(n): elements that no call adds up."""
    if name.startswith("bytes(") and name[6:-1].isdigit():
        return by_name("bytes")._replace(itemsize=int(name[6:-1]), name=name)
    return by_name(name)


def _new(rank: int, given: Given, kinds: Sequence[Kinds], of_torch: Sequence[bool]) -> list[list[Array]]:
    made = []
    for number, layout in enumerate(given.targets):
        like = next(iter(given.held[number]), None)
        arrays = [new(shape, kinds[number].want, like, of_torch[number]) for shape in layout.shapes(rank)]
        made.append([Array(each, given.names[number], True) for each in arrays])
    return made


class Moving:
    """The handle of a redistribution that was begun with async_op=True."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Has it ended (well or not)?  Never blocks."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; raises its error.  False if it has not after `timeout` seconds."""
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> Any:
        """Wait, and return what the blocking call would have returned."""
        self.wait()
        return self._result

    def run(self, move: Any, before: Moving | None) -> None:
        """Carry it out, behind the one before."""
        if before is not None:
            before._ended.wait()
        try:
            self._result = move()
        except BaseException as error:  # raised by who waits
            self._error = error
        self._ended.set()


class Turns:
    """The redistributions of a communicator, one after the other."""

    def __init__(self) -> None:
        self._last: Moving | None = None
        self._reach: Reach | None = None

    def reach(self, comm: Comm) -> Reach | None:
        """Whose memory its ranks may read; None if no rank may read any."""
        if self._reach is None:
            self._reach = Reach(comm)
        return self._reach if any(self._reach.reads) else None

    @property
    def busy(self) -> bool:
        """Is one under way?"""
        return self._last is not None and not self._last.done()

    def begin(self, move: Any) -> Moving:
        """Carry it out in a thread of its own, behind those before."""
        before, self._last = self._last, Moving()
        threading.Thread(target=self._last.run, args=(move, before), daemon=True, name="hocket redistribute").start()
        return self._last


def _turns(comm: Comm) -> Turns:
    turns: Turns = comm.__dict__.setdefault("_redistributions", Turns())
    return turns
