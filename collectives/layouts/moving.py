"""The moves of a plan are carried out: by copies out of neighbours' memory (pulls.py), else by messages.

Of a pair's messages two are under way, in one order, which both find from the plan.  A long part whose elements follow
each other in both arrays travels from one to the other; others go through pieces of memory, cut into blocks, short ones
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy

from hocket.collectives.layouts.arrays import Words, converted, word_of
from hocket.collectives.layouts.boxes import Box, contiguous, count, cut, inside
from hocket.collectives.layouts.comm import Comm
from hocket.collectives.layouts.copies import copy
from hocket.collectives.layouts.deal import FETCH, HAND_ON, Move
from hocket.collectives.layouts.lines import Table, steps, table
from hocket.collectives.layouts.pulls import STEP, Pull, Reach, Rows, rows, worth
from hocket.collectives.waiting.several import wait_any
from hocket.collectives.waiting.work import Work
from hocket.errors import TransportError
from hocket.kernels.codecs import Codec
from hocket.kernels.cpu.reduce import pack_array, unpack_array
from hocket.kernels.digest import digest
from hocket.kernels.dtypes import DType

ALONE = 1 << 14
"""Bytes from which a part is a message of its own."""
LEAST, MOST = 1 << 16, 1 << 19
"""Bytes of a block: what `room` allows, but no less and no more: one twice as long does not stay in a core's cache."""
PLAIN, LENGTH, WIRE = range(3)
"""Tags: of parts as they are; of the length of a packed one, which comes ahead of it; of a packed one."""
UNDER_WAY = 2
"""Messages of a pair in one direction at once."""


class Kinds(NamedTuple):
    """An array's dtype at its source and at its target."""

    have: DType
    want: DType
    form: Codec | None = None
    """The codec of its messages between hosts."""


class Parcel:
    """Parts of arrays that travel together, or one that travels `straight`, from memory to memory."""

    __slots__ = ("form", "moves", "nbytes", "straight", "table")

    def __init__(self, moves: tuple[Move, ...], nbytes: int, straight: bool, form: Codec | None = None) -> None:
        self.moves, self.nbytes, self.straight, self.form = moves, nbytes, straight, form
        self.table: Table | None = None
        """Its parts in this rank's arrays, made at its first use: a block is their other end, from address 0 on."""


def block_of(room: int, size: int) -> int:
    """The bytes of a block, with which all that is under way at a rank takes at most `room`."""
    return max(LEAST, min(MOST, room // (2 * UNDER_WAY * max(1, size - 1))))


def messages(moves: Sequence[Move], kinds: Sequence[Kinds], block: int, far: bool = False) -> Iterator[Parcel]:
    """The messages of one pair: the same at both ends.  `far`: they are on two hosts."""
    waiting: list[Move] = []
    held = 0
    for move in moves:
        kind = kinds[move.array]
        nbytes, form = count(move.box) * kind.want.itemsize, kind.form if far else None
        whole = contiguous(move.box, move.source.box) and contiguous(move.box, move.target.box)
        if nbytes < ALONE:
            if held + nbytes > block:
                yield Parcel(tuple(waiting), held, False)
                waiting, held = [], 0
            waiting.append(move)
            held += nbytes
        elif whole and kind.have == kind.want and form is None:
            yield Parcel((move,), nbytes, True)
        else:
            for box in _blocks(move.box, kind.want.itemsize, block):
                yield Parcel((move._replace(box=box),), count(box) * kind.want.itemsize, False, form)
    if waiting:
        yield Parcel(tuple(waiting), held, False)


def _blocks(box: Box, itemsize: int, block: int) -> Iterator[Box]:
    """Parts of at most so many bytes, cut along the first axes so that their rows stay long."""
    nbytes = count(box) * itemsize
    if nbytes <= block:
        yield box
        return
    axis = next(axis for axis, own in enumerate(box) if len(own) > 1)
    for (piece,) in cut((box[axis],), min(len(box[axis]), -(-nbytes // block))):
        yield from _blocks((*box[:axis], piece, *box[axis + 1 :]), itemsize, block)


class StageShare(NamedTuple):
    """One rank's part of a stage of the plan."""

    meet: bool
    """Do any ranks pull?  Then all meet before and behind it."""
    own: Sequence[Move]
    """Moves whose elements are converted."""
    copies: Sequence[Table]
    """The others, in steps."""
    pulls: Sequence[Pull]
    gets: dict[int, list[Parcel]]
    gives: dict[int, list[Parcel]]


class Damaged(NamedTuple):
    """A message whose digest is another at its end."""

    array: int
    box: Box
    source: int


class Arrays:
    """One rank's arrays, as moves see them, and memory for messages."""

    def __init__(
        self, kinds: Sequence[Kinds], held: Sequence[Sequence[Words]], made: Sequence[Sequence[Words]], block: int
    ) -> None:
        """`held` and `made`: the words of the arrays of source and target, by number, in the order of the boxes."""
        self.kinds, self.held, self.made, self.block = kinds, held, made, block
        self._free: list[Words] = []
        """Pieces of memory that are in no message now."""

    def part(self, move: Move) -> Words:
        """The elements of a move where they are, converted if they are to be."""
        held = (self.made if move.when == HAND_ON else self.held)[move.array][move.source.place]
        part = held[inside(move.box, move.source.box)]
        kinds = self.kinds[move.array]
        return converted(part, kinds.have, kinds.want) if self.converts(move) else part

    def converts(self, move: Move) -> bool:
        """Do its elements become another dtype?"""
        kinds = self.kinds[move.array]
        return kinds.have != kinds.want and move.when == FETCH

    def into(self, move: Move) -> Words:
        """Where they go."""
        place: Words = self.made[move.array][move.target.place][inside(move.box, move.target.box)]
        return place

    def straight(self, move: Move, comes: bool) -> Words | None:
        """The bytes of a move where they are; None if the caller's array does not lie in C's order."""
        words = self.into(move) if comes else self.part(move)
        if not words.flags.c_contiguous:
            return None
        data: Words = words.reshape(-1).view(numpy.uint8)
        return data

    def copy(self, move: Move) -> None:
        """A move from one of these arrays to another."""
        self.into(move)[...] = self.part(move)

    def pack(self, message: Parcel, block: Words) -> None:
        """Put its parts into a block."""
        if any(map(self.converts, message.moves)):
            for move, piece in self._pieces(message, block):
                piece[...] = self.part(move)
            return
        if message.table is None:
            message.table = table([(self.part(move), piece) for move, piece in self._pieces(message, block)])
            message.table[:, 1] -= block.ctypes.data
        copy(message.table, 0, block.ctypes.data)

    def unpack(self, message: Parcel, block: Words) -> None:
        """Take its parts out of a block."""
        if message.table is None:
            message.table = table([(piece, self.into(move)) for move, piece in self._pieces(message, block)])
            message.table[:, 0] -= block.ctypes.data
        copy(message.table, block.ctypes.data, 0)

    def _pieces(self, message: Parcel, block: Words) -> Iterator[tuple[Move, Words]]:
        """The parts of a message that goes through a block."""
        at = 0
        for move in message.moves:
            word = word_of(self.kinds[move.array].want)
            nbytes = count(move.box) * word.itemsize
            yield move, block[at : at + nbytes].view(word).reshape(tuple(map(len, move.box)))
            at += nbytes

    def memory(self, nbytes: int) -> Words:
        """A block of memory that is free."""
        if nbytes > self.block:  # for an array of the caller's that does not lie in C's order
            return numpy.empty(nbytes, numpy.uint8)
        return self._free.pop() if self._free else numpy.empty(self.block, numpy.uint8)

    def give_back(self, block: Words) -> None:
        """Keep this block, which is free again, for the next array."""
        if block.size == self.block:
            self._free.append(block)


class Mover:
    """One rank's part of a plan, to be carried out any number of times with the same arrays."""

    def __init__(
        self, comm: Comm, moves: Sequence[Move], arrays: Arrays, check: bool, reach: Reach | None,
        addresses: Sequence[Sequence[Sequence[Sequence[int]]]],
    ) -> None:  # fmt: skip
        """`addresses`: of all ranks' arrays, by rank, 0 or 1 for source and target, and number.

        `reach`: None: all goes by messages.
        """
        self.comm, self.arrays, self.kinds, self.check = comm, arrays, arrays.kinds, check
        self._reach, self._addresses = reach, addresses
        self.stages = [self._stage([m for m in moves if m.when == when]) for when in (FETCH, HAND_ON)]

    def _stage(self, moves: Sequence[Move]) -> StageShare:
        me = self.comm.rank
        pulled: dict[int, list[Rows]] = {}
        gets, gives, own = [], [], []
        meet = False
        for move in moves:
            source, target = move.source.rank, move.target.rank
            ends = self._pulled(move)
            meet |= ends is not None
            if source == target:
                if me == source:
                    own.append(move)
            elif ends is not None:
                if me == target:
                    itemsize = self.kinds[move.array].want.itemsize
                    pulled.setdefault(source, []).append(rows(move.box, *ends, itemsize))
            elif me == target:
                gets.append(move)
            elif me == source:
                gives.append(move)
        pids = self._reach.pids if self._reach is not None else []
        in_turn = sorted(pulled.items(), key=lambda each: (each[0] - me) % self.comm.size)
        pulls = [Pull(peer, pids[peer], some) for peer, some in in_turn]
        gotten = self._by_peer(gets, lambda m: m.source.rank)
        converts = [move for move in own if self.arrays.converts(move)]
        plain = [(self.arrays.part(move), self.arrays.into(move)) for move in own if not self.arrays.converts(move)]
        given = self._by_peer(gives, lambda m: m.target.rank)
        return StageShare(meet, converts, list(steps(plain, STEP)), pulls, gotten, given)

    def _pulled(self, move: Move) -> tuple[tuple[int, Box], tuple[int, Box]] | None:
        """The addresses and boxes of a move that is pulled, as all ranks know it; None: it is not."""
        source, target = move.source.rank, move.target.rank
        kinds = self.kinds[move.array]
        if self._reach is None or source == target or source not in self._reach.reads[target]:
            return None
        if move.when == FETCH and kinds.have != kinds.want:
            return None
        there = self._addresses[source][move.when][move.array][move.source.place]
        here = self._addresses[target][HAND_ON][move.array][move.target.place]
        if not there or not here or not worth(move.box, move.source.box, move.target.box, kinds.want.itemsize):
            return None
        return (there, move.source.box), (here, move.target.box)

    def _by_peer(self, moves: Sequence[Move], peer: Callable[[Move], int]) -> dict[int, list[Parcel]]:
        """The messages with each peer; those with the next rank come first, so that not all turn to one."""
        size, me = self.comm.size, self.comm.rank
        here = next(host for host in self.comm.membership.hosts if me in host)
        ordered = sorted(moves, key=lambda move: (peer(move) - me) % size)
        return {
            each: list(messages(list(some), self.kinds, self.arrays.block, each not in here))
            for each, some in groupby(ordered, key=peer)
        }

    def run(self, timeout: float | None) -> list[Damaged]:
        """Move all.  Returns what arrived otherwise than it was sent, where digests are compared."""
        damaged: list[Damaged] = []
        for stage in self.stages:
            how = self.arrays, timeout, damaged if self.check else None
            ways = [Flow(self.comm, peer, some, True, *how) for peer, some in stage.gets.items()]
            ways += [Flow(self.comm, peer, some, False, *how) for peer, some in stage.gives.items()]
            if stage.meet:
                self.comm.barrier(timeout=timeout)  # what neighbours hold is what they want to give
            for step in self._copies(stage):
                step()
                while ended := [way for way in ways if way.flights and way.flights[0].works[-1].done()]:
                    ended[0].next()
            drain(ways)
            if stage.meet:
                self.comm.barrier(timeout=timeout)  # from here on they may change it
        return damaged

    def _copies(self, stage: StageShare) -> Iterator[Callable[[], None]]:
        """The copies that this rank makes itself, in steps."""
        for pull in stage.pulls:
            yield from (partial(pull.run, number) for number in range(len(pull.calls)))
        yield from (partial(copy, table) for table in stage.copies)
        yield from (partial(self.arrays.copy, move) for move in stage.own)


class _Flight(NamedTuple):
    """A message that is under way: where its bytes are, and the works that carry it."""

    message: Parcel
    data: Words
    block: Words | None
    """The memory that is to be given back."""
    seal: Words | None
    """The digest of its bytes, which comes behind them."""
    works: list[Work]
    coming: Words | None = None
    """The length of what is packed, which is not on its way yet."""
    wire: Words | None = None
    """The packed bytes."""


class Flow:
    """One direction between this rank and a peer: its messages, one after the other, some of them under way."""

    def __init__(
        self, comm: Comm, peer: int, messages: Sequence[Parcel], comes: bool, arrays: Arrays,
        timeout: float | None, damaged: list[Damaged] | None,
    ) -> None:  # fmt: skip
        """`damaged`: where to put what has other bits at its end; None: digests do not travel."""
        self.comm, self.peer, self.comes, self.arrays = comm, peer, comes, arrays
        self.timeout, self.damaged = timeout, damaged
        self._ahead = iter(messages)
        self.flights: deque[_Flight] = deque()
        self._fill()

    def next(self) -> None:
        """The first message has ended: take what it brought, and begin another."""
        flight = self.flights.popleft()
        message, data, block, seal, works, coming, wire = flight
        for work in works:
            work.wait()
        if coming is not None:
            wire = numpy.empty(_bounded(coming, message, self.peer), numpy.uint8)
            self.flights.appendleft(flight._replace(works=self._calls([wire, seal], WIRE), coming=None, wire=wire))
            return
        if self.comes:
            if wire is not None and message.form is not None:
                unpack_array(_words(data, message.form), wire, message.form)
            if seal is not None and self.damaged is not None and digest(data) != seal[0]:
                self.damaged += [Damaged(move.array, move.box, move.source.rank) for move in message.moves]
            if block is not None:
                self.arrays.unpack(message, data)
        if block is not None:
            self.arrays.give_back(block)
        self._fill()

    def _fill(self) -> None:
        """Begin messages until enough are under way."""
        while len(self.flights) < UNDER_WAY and (message := next(self._ahead, None)) is not None:
            self.flights.append(self._begin(message))

    def _begin(self, message: Parcel) -> _Flight:
        block, straight = None, None
        if len(message.moves) == 1:  # what follows each other on this side alone needs no block here
            straight = self.arrays.straight(message.moves[0], self.comes)
        if straight is not None:
            data = straight
        else:
            block = self.arrays.memory(message.nbytes)
            data = block[: message.nbytes]
            if not self.comes:
                self.arrays.pack(message, data)
        seal = None
        if self.damaged is not None:
            seal = numpy.array([0 if self.comes else digest(data)], numpy.uint64)
        if message.form is None:
            return _Flight(message, data, block, seal, self._calls([data, seal], PLAIN))
        if self.comes:
            length = numpy.zeros(1, numpy.int64)
            return _Flight(message, data, block, seal, self._calls([length], LENGTH), length)
        wire = pack_array(_words(data, message.form), message.form)
        works = self._calls([numpy.array([wire.size])], LENGTH) + self._calls([wire, seal], WIRE)
        return _Flight(message, data, block, seal, works, wire=wire)

    def _calls(self, arrays: Sequence[Words | None], tag: int) -> list[Work]:
        call = self.comm.recv if self.comes else self.comm.send
        given = [each for each in arrays if each is not None]
        return [call(each, self.peer, tag, async_op=True, timeout=self.timeout) for each in given]


def _words(data: Words, form: Codec) -> Words:
    return data.view(f"u{form.itemsize}")


def _bounded(length: Words, message: Parcel, peer: int) -> int:
    """The length that a peer has told.  TransportError: no codec makes so many bytes of these."""
    if not 0 <= length[0] <= message.nbytes + message.nbytes // 100 + 16:
        raise TransportError(f"rank {peer} announces {length[0]} bytes for a part of {message.nbytes}")
    return int(length[0])


def drain(ways: Sequence[Flow]) -> None:
    """Carry all their messages."""
    while busy := [way for way in ways if way.flights]:
        at = wait_any([way.flights[0].works[-1] for way in busy])
        assert at is not None
        busy[at].next()
