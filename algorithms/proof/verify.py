"""The proof: walk all ranks' schedules with symbols and see that the contract is kept.

What is proven, for one size and root:
1. every op is well formed: peers exist, chunks exist, nothing is written twice in a step;
2. messages match: as many sends as receives on every pair, in order, with the same chunks;
3. the step clock is global, so every op's counterpart is posted in the same step: no deadlock, even if a
   step ends only when all its peers have posted theirs (no buffering at all);
4. nothing that was never written is sent;
5. every wanted chunk holds each wanted contribution exactly once, in rank order if that was promised;
6. ranks that want the same result combine it the same way, so that all hold the same bits;
7. they do so by a codec that rounds at random, too: each encoded value is made by one rank, or by all from the same
   numbers (rounding.py).

The proof covers the schedule, not the engine that runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hocket.algorithms.language.compose import pipelined
from hocket.algorithms.language.contract import CONTRACTS, Contract, block_count
from hocket.algorithms.language.registry import Algorithm, Order
from hocket.algorithms.language.schedule import Chunks, Copy, Recv, Send, Step, ids, touched
from hocket.algorithms.proof.rounding import Rounding, repeats
from hocket.algorithms.proof.walk import Pair, Programs, Value, start, walk
from hocket.errors import ArgumentError, ScheduleError

Posted = tuple[int, Chunks]
"""(step, chunks)"""
Side = tuple[bool, int, int]
"""(is a send, source, target)"""


def verify(algorithm: Algorithm, size: int, root: int = 0, segments: int = 1) -> None:
    """Prove one algorithm for one size and root, cut into that many pipelined segments; else ScheduleError."""
    if reason := algorithm.requires(size):
        raise ArgumentError(f"{algorithm.collective} {algorithm.name} does not run with {size} ranks: {reason}")
    span = algorithm.chunks(size) + algorithm.scratch
    whole = segments == 1  # each segment is encoded by the steps of its own clock
    verify_steps(
        CONTRACTS[algorithm.collective],
        [list(pipelined(algorithm.steps(rank, size, root), segments, span)) for rank in range(size)],
        chunks=algorithm.chunks(size),
        scratch=algorithm.scratch,
        root=root,
        segments=segments,
        order=algorithm.order,
        name=algorithm.name,
        repeated=repeats(algorithm) or not whole,
        far=algorithm.far(size) if algorithm.far is not None and whole else 0,
    )


def verify_steps(
    contract: Contract,
    schedules: Sequence[Iterable[Step]],
    *,
    chunks: int,
    scratch: int = 0,
    root: int = 0,
    segments: int = 1,
    order: Order = "any",
    name: str = "schedule",
    repeated: bool = True,
    far: int = 0,
) -> None:
    """Prove the schedules of all ranks, given by rank; the first fault found is raised as ScheduleError.

    `repeated`: several ranks may make the same sum.  `far`: the step from which on a codec encodes (Algorithm.far).
    """
    programs = [list(schedule) for schedule in schedules]
    size, span = len(programs), chunks + scratch
    try:
        if contract.blocks and chunks != block_count(contract, size):
            blocks = block_count(contract, size)
            raise ScheduleError(f"the algorithm has {chunks} chunks; expected one for each block: {blocks}")
        _check_ops(programs, span * segments)
        _check_messages(programs)
        held = start(contract, size, root, chunks, span, segments)
        for _ in walk(programs, held, Rounding(programs, repeated, far)):
            pass
        _check_results(contract, held, root, [(k * span, c) for k in range(segments) for c in range(chunks)], order)
    except ScheduleError as fault:
        rooted = f", root {root}" if contract.rooted else ""
        merged = f", {segments} segments" if segments > 1 else ""
        raise ScheduleError(f"{contract.collective} {name}, {size} ranks{rooted}{merged}: {fault}") from None


def _check_ops(programs: Programs, total: int) -> None:
    for rank, steps in enumerate(programs):
        for t, step in enumerate(steps):
            try:
                _check_step(step, rank, len(programs), total)
            except ScheduleError as fault:
                raise ScheduleError(f"rank {rank} step {t}: {fault}") from None


def _check_step(step: Step, rank: int, size: int, total: int) -> None:
    plain: set[int] = set()
    reduced: set[int] = set()
    for op in step:
        if isinstance(op, Copy):
            written: Sequence[int] = (op.target,)
        else:
            if not 0 <= op.peer < size or op.peer == rank:
                raise ScheduleError(f"{op} must name another rank of 0..{size - 1}")
            written = ids(op.chunks) if isinstance(op, Recv) else ()
        named = touched(op)
        if not named:
            raise ScheduleError(f"{op} has no chunk")
        if len(set(named)) < len(named):
            raise ScheduleError(f"{op} names a chunk twice")
        if min(named) < 0 or max(named) >= total:
            raise ScheduleError(f"{op} names a chunk outside 0..{total - 1}")
        if isinstance(op, Recv) and op.reduce:
            reduced.update(written)
        elif written:
            if twice := plain.intersection(written):
                raise ScheduleError(f"{op}: chunk {min(twice)} is overwritten twice in one step")
            plain.update(written)
    if both := plain & reduced:
        raise ScheduleError(f"chunk {min(both)} is both overwritten and reduced into in one step")


def _check_messages(programs: Programs) -> None:
    sends: dict[Pair, list[Posted]] = defaultdict(list)
    recvs: dict[Pair, list[Posted]] = defaultdict(list)
    for rank, steps in enumerate(programs):
        for t, step in enumerate(steps):
            for op in step:
                if isinstance(op, Send):
                    sends[rank, op.peer].append((t, op.chunks))
                elif isinstance(op, Recv):
                    recvs[op.peer, rank].append((t, op.chunks))
    pairs = sorted({*sends, *recvs})
    for pair in pairs:
        _check_counts(pair, sends[pair], recvs[pair])
    for pair in pairs:
        _check_clock(pair, sends[pair], recvs[pair], programs)
    if len({len(steps) for steps in programs}) > 1:
        lengths = {rank: len(steps) for rank, steps in enumerate(programs)}
        raise ScheduleError(f"misaligned clock: the ranks yield different numbers of steps, {lengths}")
    for (source, target), sent in sends.items():
        for (t, out), (_, into) in zip(sent, recvs[source, target], strict=True):
            if out != into and tuple(ids(out)) != tuple(ids(into)):
                raise ScheduleError(
                    f"step {t}: rank {source} sends chunks {_show(out)} where rank {target} receives {_show(into)}"
                )


def _check_counts(pair: Pair, sent: list[Posted], received: list[Posted]) -> None:
    if len(sent) == len(received):
        return
    out, into = [t for t, _ in sent], [t for t, _ in received]
    t = min(t for t in {*out, *into} if out.count(t) != into.count(t))
    what = "sends a message that is never received" if len(sent) > len(received) else "does not send what is received"
    raise ScheduleError(
        f"step {t}: rank {pair[0]} {what} by rank {pair[1]}"
        f" ({out.count(t)} sent and {into.count(t)} received in this step, {len(out)} and {len(into)} in all)"
    )


def _check_clock(pair: Pair, sent: list[Posted], received: list[Posted], programs: Programs) -> None:
    for (t, chunks), (u, _) in zip(sent, received, strict=True):
        if t != u:
            _check_deadlock(programs)
            raise ScheduleError(
                f"misaligned clock: rank {pair[0]} sends chunks {_show(chunks)} in step {t},"
                f" rank {pair[1]} receives them in step {u}"
            )


def _check_deadlock(programs: Programs) -> None:
    """Only for misaligned clocks (aligned ones cannot hang): a step ends once all its counterparts are posted."""
    posted: dict[Side, int] = defaultdict(int)
    position = [-1] * len(programs)
    awaited: list[list[tuple[Side, int]]] = [[] for _ in programs]
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(programs):
            while position[rank] < len(steps) and all(posted[key] >= nth for key, nth in awaited[rank]):
                position[rank] += 1
                moved = True
                awaited[rank] = _post(steps[position[rank]], rank, posted) if position[rank] < len(steps) else []
    stuck = [rank for rank, steps in enumerate(programs) if position[rank] < len(steps)]
    if stuck:
        waits = "; ".join(f"rank {r} waits in step {position[r]}: {programs[r][position[r]]}" for r in stuck[:3])
        raise ScheduleError(f"deadlock without buffering: {waits}")


def _post(step: Step, rank: int, posted: dict[Side, int]) -> list[tuple[Side, int]]:
    """Count a step's messages as posted.  Returns, for each, its counterpart, and how many of these must be posted."""
    awaited: list[tuple[Side, int]] = []
    for op in step:
        if not isinstance(op, Copy):
            out = isinstance(op, Send)
            pair = (rank, op.peer) if out else (op.peer, rank)
            posted[(out, *pair)] += 1
            awaited.append(((not out, *pair), posted[(out, *pair)]))
    return awaited


def _check_results(
    contract: Contract, held: list[dict[int, Value]], root: int, places: list[tuple[int, int]], order: Order
) -> None:
    size = len(held)
    first: dict[tuple[int, tuple[int, ...]], tuple[int, Value]] = {}
    for rank in range(size):
        for base, c in places:
            wanted = contract.wants(rank, size, root, c)
            if wanted is None:
                continue
            value = held[rank].get(base + c)
            where = f"at the end rank {rank} chunk {base + c}"
            if value is None:
                raise ScheduleError(f"{where} holds nothing; expected the contributions of ranks {wanted}")
            if value.chunk != base + c:
                raise ScheduleError(f"{where} holds contributions to chunk {value.chunk}")
            if tuple(sorted(value.ranks)) != wanted:
                raise ScheduleError(f"{where} holds {value.ranks}; expected each of {wanted} once")
            if order == "rank" and value.ranks != wanted:
                raise ScheduleError(f"{where} is combined in the order {value.ranks}, but rank order is promised")
            other, same = first.setdefault((base + c, wanted), (rank, value))
            if same.made != value.made:
                raise ScheduleError(
                    f"{where} is combined in another way than on rank {other}: their last bits may differ"
                )
            if same.coded != value.coded:
                raise ScheduleError(
                    f"{where} is encoded in another way than on rank {other}: a codec that rounds at random would give "
                    "them different bits; say repeats=True if several ranks make the same sum"
                )


def _show(chunks: Chunks) -> str:
    listed = [str(chunk) for chunk in ids(chunks)]
    return ", ".join(listed if len(listed) <= 8 else [*listed[:6], "...", listed[-1]])
