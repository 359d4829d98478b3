"""Lowering: one rank's schedule becomes instructions on bytes.

A chunk has a place: at first in the caller's input, and once it has been received or reduced, at its home - in the
caller's output if this rank wants it there, else in scratch.  So nothing is copied before it is needed, and input
stays untouched.  Three things are found here and not by the algorithms:

- sends of the same chunks to several peers become one multicast, where the channels offer it;
- reducing receives of the same chunks become one k-way reduction in rank order;
- a chunk that is sent and overwritten in the same step keeps its old value: small ones are sent first (the message
  is buffered, so the receive may wait for it), large ones are received into scratch.

Must not know: channels, time, and what bytes mean (dtypes are handed through).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Action, Copy, Recv, Schedule, Send, Step, ids, touched
from hocket.collectives.plans.instr import (
    AFTER,
    ALIGN,
    BEFORE,
    IN,
    OUT,
    OWNED_AFTER,
    OWNED_BEFORE,
    SCRATCH,
    Apply,
    ChunkLayout,
    Elements,
    Instr,
    Location,
    Lowered,
    Piece,
    Residual,
    Wires,
)  # fmt: skip
from hocket.errors import ScheduleError

MAX_READERS, MAX_WAYS = 63, 255
"""Peers of one send, and of one reduction: the engine keeps one pointer each on its stack."""

EARLY = {"send": 0, "copy": 1}
"""The order of instructions in a step whose own copies are early; all others come last."""
BARE, PLAIN = Wires(), Elements()
"""Channels of which nothing is known; elements that go as they are."""

Groups = list[tuple[tuple[int, ...], list[int]]]
"""Messages of a step that carry the same chunks: (chunks, peers)"""


def lower(
    algorithm: Algorithm, rank: int, size: int, root: int, layout: ChunkLayout, wires: Wires = BARE,
    elements: Elements = PLAIN,
) -> Lowered:  # fmt: skip
    """Instructions for this rank.

    Chunks that are encoded on the way stay in scratch until they are decoded, those of this rank too: all ranks decode
    the same bits.  The layout's residuals are added to what is encoded, and get what that loses;
    before `far` each rank adds its own in full precision, and who encodes the sum for its host gets what is lost.
    """
    before, after, in_place, far, _, added = elements
    lowering = _Lowering(algorithm, rank, size, root, layout, wires, elements)
    if before is not None and after is not None and far is not None:
        return lowering.run_far(before, after, far)
    if before is not None and after is not None and added is not None:
        return lowering.run_added(before, after, added)
    return lowering.run(before, in_place, after)


class _Lowering:
    def __init__(
        self, algorithm: Algorithm, rank: int, size: int, root: int, layout: ChunkLayout, wires: Wires,
        elements: Elements,
    ) -> None:  # fmt: skip
        self.rank, self.layout, self.eager, self.multicasts = rank, layout, wires.eager, wires.multicasts
        self.join = wires.join and layout.held is None  # the last block of a chunk may be short
        self.early = wires.early
        decodes = elements.after is not None and elements.after.made is not None
        self.encoded = decodes and elements.far is None and elements.added is None
        self.numbers = elements.numbers
        residuals = layout.residuals
        self.residual = residuals is not None and residuals.own
        self.sums_residual = residuals is not None and residuals.sums
        self.done = 0
        """Steps of the schedule."""
        self.lengths, self.held = layout.lengths, layout.held
        """The lengths of the chunks, and which are held, in the step that is being lowered."""
        self.schedule: Schedule = algorithm.steps(rank, size, root)
        self.result = Lowered()
        contract = CONTRACTS[algorithm.collective]
        count = len(layout.lengths) - algorithm.scratch
        self.place: list[Location | None] = [None] * len(layout.lengths)
        self.home: list[Location | None] = [None] * len(layout.lengths)
        self.wanted: list[int] = []
        for c in range(count):
            if contract.holds(rank, size, root, c):
                self.place[c] = layout.source(c)
            if contract.wants(rank, size, root, c) is not None:
                self.home[c] = None if self.encoded else layout.target(c)
                self.wanted.append(c)

    def run(self, before: Apply | None, in_place: bool, after: Apply | None) -> Lowered:
        held = [c for c, place in enumerate(self.place) if place is not None]
        if before is not None and held:
            residual = self._residual(held, BEFORE, AFTER) if self.residual else None
            self.result.steps.append([self._apply(held, before, None if in_place else self._fresh, residual)])
        for step in self.schedule:
            self.result.steps.append(self._step(step))
        homes = {} if self.encoded else {c: home for c in self.wanted if (home := self.home[c]) is not None}
        last = [self._copy(c, c, home) for c, home in homes.items() if self.place[c] != home]
        if last and not self._with_last_step(last):
            self.result.steps.append(last)
        if after is not None and self.wanted:
            self.result.steps.append([self._apply(self.wanted, after, self.layout.target if after.made else None)])
        return self.result

    def _with_last_step(self, copies: list[Instr]) -> bool:
        """Make these part of the last step, as what is done while it waits, if they touch nothing of it."""
        steps = self.result.steps
        if not self.join or not steps or any(piece[0] != IN for instr in copies for piece in instr.src or ()):
            return False
        if any(piece[0] == OUT for instr in steps[-1] if instr.kind == "send" for piece in instr.src or ()):
            return False
        own = copies[0] if len(copies) == 1 else None
        last = [instr._replace(kept=own.dst) if own and instr.src == own.src else instr for instr in steps[-1]]
        steps[-1] = last + [instr._replace(after_sends=True, early=self.early) for instr in copies]
        if self.early:
            steps[-1].sort(key=lambda instr: EARLY.get(instr.kind, len(EARLY)))
        return True

    def run_far(self, encode: Apply, decode: Apply, far: int) -> Lowered:
        """Chunks are the caller's elements before the step `far`, and encoded from then on."""
        steps = list(self.schedule)
        self._lie(encoded=False)
        near = []
        if self.residual:
            held = [c for c, place in enumerate(self.place) if place is not None]
            near.append([self._apply(held, Apply(), self._fresh, self._residual(held, BEFORE, AFTER))] if held else [])
        near += [self._step(step) for step in steps[:far]]
        near = [[instr._replace(encoded=False) for instr in step] for step in near]
        self._lie(encoded=True)
        home, self.home = self.home, [None] * len(self.home)
        moved = {c for step in steps[far:] for op in step for c in touched(op)}
        held = [c for c in sorted(_used(steps[far:])) if self.place[c] is not None]
        residual = self._residual(held, None, AFTER) if self.residual else None
        coded = [[self._apply(held, encode, self._fresh, residual)] if held else []]
        coded += [self._step(step) for step in steps[far:]]
        self.home = home
        self._lie(encoded=False)
        last = [self._copy(c, c, self._home(c)) for c in self.wanted if c not in moved and self.place[c] != home[c]]
        to = {c: self._home(c) for c in self.wanted if c in moved}
        self._lie(encoded=True)
        if to:
            last.append(self._apply(list(to), decode, to.__getitem__))
        self.result.steps = [*near, *coded, last]
        return self.result

    def run_added(self, encode: Apply, decode: Apply, added: int) -> Lowered:
        """Chunks are encoded before the step `added`.  Who has made a sum decodes it, and hands on the floats."""
        steps = list(self.schedule)
        home, self.home = self.home, [None] * len(self.home)
        multicasts, self.multicasts = self.multicasts, BARE.multicasts
        held = [c for c, place in enumerate(self.place) if place is not None]
        coded = [[self._apply(held, encode, self._fresh, None)], *(self._step(step) for step in steps[:added])]
        written = {c for step in steps[added:] for op in step if not isinstance(op, Send) for c in touched(op)}
        sums = sorted(_used(steps[added:]) | {*self.wanted} - written)
        self.home, self.multicasts = home, multicasts
        self._lie(encoded=False)
        to = {c: self._home(c) for c in sums}
        self._lie(encoded=True)
        coded.append([self._apply(sums, decode, to.__getitem__)] if sums else [])
        self._lie(encoded=False)
        plain = [self._step(step) for step in steps[added:]]
        plain.append([self._copy(c, c, self._home(c)) for c in self.wanted if self.place[c] != self._home(c)])
        self.result.steps = coded + [[instr._replace(encoded=False) for instr in step] for step in plain]
        return self.result

    def _lie(self, encoded: bool) -> None:
        """From now on chunks lie as elements of the wire, or as the caller's."""
        self.lengths = self.layout.lengths if encoded else self.layout.plain
        self.held = self.layout.held if encoded else None

    def _residual(self, chunks: Sequence[int], before: int | None, after: int) -> Residual:
        """The residual of these chunks, in these spaces."""
        assert self.layout.residuals is not None
        return Residual(before, after, [self.layout.residuals.at(c) for c in chunks if self.lengths[c]] or [0])

    def _apply(
        self, chunks: list[int], what: Apply, to: Callable[[int], Location] | None, residual: Residual | None = None
    ) -> Instr:
        """`to`: where each chunk comes to; None: it stays where it is."""
        src = self._pieces(chunks, self.place)
        if to is not None:
            for c in chunks:
                self.place[c] = to(c)
        dst = self._pieces(chunks, self.place)
        src, dst = _same_cuts(src, dst)
        dice = None if what.taken is None else self._dice(chunks)
        return Instr("apply", src=src, dst=dst, applied=what, held=self._held(chunks), dice=dice, residual=residual)

    def _held(self, chunks: Sequence[int]) -> list[int] | None:
        """Elements here of the pieces of these chunks, where several are encoded as one."""
        return None if self.held is None else [self.held[c] for c in chunks if self.lengths[c]] or [0]

    def _dice(self, chunks: Sequence[int]) -> list[int] | None:
        """The random numbers that what these chunks hold now is rounded by."""
        if self.numbers is None or self.held is None:
            return None
        return [self.numbers(self.done, c) for c in chunks if self.lengths[c]] or [0]

    def _step(self, step: Step) -> list[Instr]:
        self.done += 1
        sent = {c for op in step if isinstance(op, Send) for c in ids(op.chunks)}
        before = list(self.place)
        instrs = [self._copy_op(op, sent) for op in step if isinstance(op, Copy)]
        instrs += self._sends([op for op in step if isinstance(op, Send)], before)
        return instrs + self._recvs([op for op in step if isinstance(op, Recv)], sent, before)

    # --- where things lie

    def _pieces(self, chunks: Sequence[int], places: Sequence[Location | None]) -> list[Piece]:
        """Chunks in message order, neighbours in memory joined."""
        pieces: list[Piece] = []
        for c in chunks:
            place, length = places[c], self.lengths[c]
            if place is None:
                raise ScheduleError(f"rank {self.rank} sends or keeps chunk {c}, which it does not hold")
            if self.join and pieces and pieces[-1][0] == place[0] and pieces[-1][1] + pieces[-1][2] == place[1]:
                pieces[-1] = (place[0], pieces[-1][1], pieces[-1][2] + length)
            elif length or not pieces:
                pieces.append((*place, length))
        if len(pieces) > 1 and pieces[0][2] == 0:
            del pieces[0]
        return pieces or [(OUT, 0, 0)]

    def _fresh(self, chunk: int) -> Location:
        place = SCRATCH, self.result.scratch
        self.result.scratch += -(-self.lengths[chunk] // ALIGN) * ALIGN
        return place

    def _home(self, chunk: int) -> Location:
        place = self.home[chunk] or self._fresh(chunk)
        self.home[chunk] = place
        return place

    # --- ops

    def _copy(self, source: int, target: int, to: Location) -> Instr:
        src = self._pieces([source], self.place)
        self.place[target] = to
        return Instr("copy", src=src, dst=self._pieces([target], self.place))

    def _copy_op(self, op: Copy, sent: set[int]) -> Instr:
        busy = op.target in sent and self.place[op.target] == self._home(op.target)
        return self._copy(op.source, op.target, self._fresh(op.target) if busy else self._home(op.target))

    def _sends(self, ops: list[Send], before: Sequence[Location | None]) -> list[Instr]:
        groups: Groups = []
        for op in ops:
            chunks = tuple(ids(op.chunks))
            joined = self._joinable(groups, chunks, op.peer, MAX_READERS) if self.multicasts(op.peer) else None
            if joined is not None and self.multicasts(joined[0]) == self.multicasts(op.peer):
                joined.append(op.peer)
            else:
                groups.append((chunks, [op.peer]))
        return [Instr("send", peers, src=self._pieces(chunks, before)) for chunks, peers in groups]

    @staticmethod
    def _joinable(groups: Groups, chunks: tuple[int, ...], peer: int, most: int) -> list[int] | None:
        """The earlier group with the same chunks, unless joining it would overtake another message to this peer."""
        for other, peers in reversed(groups):
            if other == chunks and peer not in peers and len(peers) < most:
                return peers
            if peer in peers:
                return None
        return None

    def _recvs(self, ops: list[Recv], sent: set[int], before: Sequence[Location | None]) -> list[Instr]:
        groups: Groups = []
        plain: dict[int, bool] = {}
        for op in ops:
            chunks = tuple(ids(op.chunks))
            joined = self._joinable(groups, chunks, op.peer, len(ops)) if op.reduce else None
            if joined is not None:
                joined.append(op.peer)
            else:
                plain[len(groups)] = not op.reduce
                groups.append((chunks, [op.peer]))
        return [self._recv(chunks, peers, plain[i], sent, before) for i, (chunks, peers) in enumerate(groups)]

    def _recv(
        self, chunks: tuple[int, ...], peers: list[int], plain: bool, sent: set[int], before: Sequence[Location | None]
    ) -> Instr:
        if len(peers) > MAX_WAYS:
            raise ScheduleError(
                f"rank {self.rank} would reduce the messages of more than {MAX_WAYS} ranks in one step; ask for an "
                "algorithm of more steps, such as 'ring' or 'tree'"
            )
        after = self._settle(chunks, sent, before)
        held = [before[c] is not None for c in chunks]
        if plain or not any(held):
            own, src = -1, None
        elif all(held):
            own, src = sum(p < self.rank for p in peers), self._pieces(chunks, before)
        else:
            raise ScheduleError(f"rank {self.rank}: one message reduces into chunks held and not held: {chunks}")
        kind = "recv" if plain or (len(peers) == 1 and own < 0) else "reduce"
        dst = self._pieces(chunks, self.place)
        if src is not None:
            src, dst = _same_cuts(src, dst)
        if kind == "recv":
            return Instr(kind, sorted(peers), own, after, dst=dst)
        coded = self.sums_residual and self.held is not None
        residual = self._residual(chunks, OWNED_BEFORE, OWNED_AFTER) if coded else None
        floats, dice = self._held(chunks), self._dice(chunks)
        return Instr(kind, sorted(peers), own, after, src, dst, held=floats, dice=dice, residual=residual)

    def _settle(self, chunks: tuple[int, ...], sent: set[int], before: Sequence[Location | None]) -> bool:
        """Give the received chunks their new places.  True: the receive must wait for this step's sends."""
        clash = [c for c in chunks if c in sent and before[c] == self._home(c)]
        small = sum(self.lengths[c] for c in chunks) <= self.eager
        for c in chunks:
            self.place[c] = self._fresh(c) if c in clash and not small else self._home(c)
        return bool(clash) and small


def _used(steps: Sequence[Step]) -> set[int]:
    """The chunks whose value before these steps is sent, copied or added to in them."""
    used, written = set[int](), set[int]()
    for step in steps:
        sources = [[op.source] if isinstance(op, Copy) else ids(op.chunks) for op in step if not _overwrites(op)]
        used |= {c for chunks in sources for c in chunks} - written
        written |= {c for op in step if isinstance(op, Recv) for c in ids(op.chunks)}
        written |= {op.target for op in step if isinstance(op, Copy)}
    return used


def _overwrites(op: Action) -> bool:
    return isinstance(op, Recv) and not op.reduce


def _same_cuts(a: list[Piece], b: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Two piece lists of one total length, cut so that the i-th pieces are equally long."""
    left, right = [], []
    a, b = list(a), list(b)
    while a and b:
        n = min(a[0][2], b[0][2])
        left.append((a[0][0], a[0][1], n))
        right.append((b[0][0], b[0][1], n))
        for pieces in (a, b):
            space, at, length = pieces.pop(0)
            if length > n:
                pieces.insert(0, (space, at + n, length - n))
    return left or [(OUT, 0, 0)], right or [(OUT, 0, 0)]
