"""Two levels: inside the groups (hosts), and between them; made of registered algorithms, none written anew.

The vector is cut into as many parts as a group has leaders.  Inside each group part l is brought together
at the group's l-th rank; the l-th ranks of all groups run the outer collective on part l, each over its own
link; then part l is handed out again inside the groups.  With one leader that is "reduce to the leader,
allreduce between leaders, broadcast"; with as many as ranks, every rank's link carries 1/leaders of the bytes.

The block of the rank at place i of a group belongs to part i modulo leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from hocket.algorithms.language.compose import beside, embed, then
from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm, Groups, Order, get, register, vouch
from hocket.algorithms.language.schedule import Schedule
from hocket.errors import ArgumentError

STAGES = {
    "allreduce": ("reduce", "allreduce", "broadcast"),
    "reduce_scatter": ("reduce", "reduce_scatter", "scatter"),
    "allgather": ("gather", "allgather", "broadcast"),
    "broadcast": ("scatter", "broadcast", "broadcast"),
    "reduce": ("reduce", "reduce", "gather"),
}
"""collective -> (inside the groups, between the leaders, inside the groups again)"""

ROOTED_RING = "chain"
"""The inner meaning of `outer="ring"` for broadcast and reduce: a ring with a root is a chain."""


@dataclass(frozen=True)
class _Layout:
    """Where ranks, parts and chunks are."""

    groups: tuple[tuple[int, ...], ...]
    leaders: int
    blocks: bool
    cuts: int
    """The outer algorithm cuts a part into so many chunks."""

    def place(self, rank: int) -> tuple[int, int]:
        """(group, place in it)"""
        return next((j, group.index(rank)) for j, group in enumerate(self.groups) if rank in group)

    def outer_chunk(self, part: int, chunk: int) -> tuple[int, ...]:
        if self.blocks:
            return self.groups[chunk][part :: self.leaders]
        return (part * self.cuts + chunk,)

    def part(self, part: int, chunk: int = 0) -> tuple[int, ...]:
        """A whole part: the one chunk of an inner reduce or broadcast."""
        return tuple(c for outer in range(self.cuts) for c in self.outer_chunk(part, outer))

    def member_block(self, group: Sequence[int], part: int, member: int) -> tuple[int, ...]:
        """The block of a member, if it belongs to that part: a chunk of an inner gather or scatter."""
        return (group[member],) if member % self.leaders == part else ()

    def leader_part(self, member: int) -> tuple[int, ...]:
        """The part that a member leads: a chunk of a gather to the root, or a scatter from it."""
        return self.part(member) if member < self.leaders else ()


def hierarchical(
    collective: str,
    groups: Groups,
    inner: str = "direct",
    outer: str = "ring",
    leaders: int | None = None,
) -> Algorithm:
    """allreduce, reduce_scatter, allgather, broadcast or reduce over groups of ranks, which may be unequal.

    `inner` names a reduce and broadcast algorithm on one chunk, `outer` one of the collective itself; `leaders`
    of each group take part in the outer step (default: as many as the smallest group has ranks).
    """
    hosts = tuple(tuple(group) for group in groups)
    leaders = min(map(len, hosts), default=0) if leaders is None else leaders
    _check(collective, hosts, leaders)
    first, middle, last = STAGES[collective]
    contract = CONTRACTS[collective]
    between = get(middle, ROOTED_RING if contract.rooted and outer == "ring" else outer)
    gathered, spread = (get(stage, "direct" if stage in ("gather", "scatter") else inner) for stage in (first, last))
    _check_parts(hosts, between, gathered, spread)
    layout = _Layout(hosts, leaders, contract.blocks, between.chunks(len(hosts)))

    def steps(rank: int, size: int, root: int) -> Schedule:
        return then(
            _inside(layout, gathered, rank, root, contract.rooted),
            _between(layout, between, rank, root),
            _inside(layout, spread, rank, root, contract.rooted),
        )

    total = sum(map(len, hosts))

    def far(size: int) -> int:
        return sum(1 for _ in _inside(layout, gathered, 0, 0, contract.rooted))

    def added(size: int) -> int:
        return far(size) + (between.added or partial(_length, between, root=0))(len(hosts))

    parts = gathered, between, spread
    algorithm = Algorithm(
        collective,
        "hierarchical",
        steps,
        lambda size: total if contract.blocks else leaders * layout.cuts,
        order=_order(hosts, (gathered, between, spread)),
        pipeline=True,
        requires=lambda size: None if size == total else f"its groups hold {total} ranks",
        doc=f"{len(hosts)} groups, {leaders} leaders each: {gathered.collective} ({gathered.name}) inside,"
        f" {between.collective} ({between.name}) between, {spread.collective} ({spread.name}) inside.",
        period=lambda size: _period(hosts, between),
        far=far if len(hosts) > 1 else None,
        added=added if collective == "allreduce" else None,
        repeats=any(part.repeats for part in parts if CONTRACTS[part.collective].reduces),
    )
    if all(part.own for part in parts):
        vouch(algorithm)
    return algorithm


@lru_cache(maxsize=256)
def _halves(collective: str, size: int) -> Algorithm:
    """Two hosts of consecutive ranks; the first has one more if they are odd."""
    middle = (size + 1) // 2
    return hierarchical(collective, [group for group in (range(middle), range(middle, size)) if group])


def example(collective: str) -> Algorithm:
    """An algorithm as `get(collective, "hierarchical")` gives it: of two hosts with half of the ranks each, whatever
    their number."""
    first, middle, last = STAGES[collective]
    return Algorithm(
        collective,
        "hierarchical",
        lambda rank, size, root: _halves(collective, size).steps(rank, size, root),
        lambda size: _halves(collective, size).chunks(size),
        order=_halves(collective, 4).order,
        pipeline=True,
        doc=f"Two hosts with half of the ranks each: {first} inside, {middle} between, {last} inside.\n\n"
        "Other groups: `hocket.algorithms.hierarchical(collective, groups)`.",
        period=lambda size: _halves(collective, size).period(size),
        for_hosts=partial(_for_hosts, collective),
    )


def _for_hosts(collective: str, hosts: Groups, far: bool) -> Algorithm:
    """Between two hosts far from each other a step costs more than bytes: one does where sums are made."""
    once = far and len(hosts) == 2 and collective == "allreduce"
    return hierarchical(collective, hosts, outer="one_shot" if once else "ring")


def _inside(layout: _Layout, algorithm: Algorithm, rank: int, root: int, rooted: bool) -> Schedule:
    """All groups at once, in each all parts at once; part l has the group's l-th rank for its root."""
    j, member = layout.place(rank)
    group = layout.groups[j]
    moves_shares = algorithm.collective in ("gather", "scatter")
    if moves_shares and rooted:
        home, lead = layout.place(root)
        pieces: Callable[[int], Sequence[int]] = layout.leader_part
        mine = [embed(algorithm.steps(member, len(group), lead), group, pieces)] if j == home else []
        return beside(mine, _length(algorithm, len(layout.groups[home]), lead))
    parts = []
    for part in range(layout.leaders):
        pieces = partial(layout.member_block, group, part) if moves_shares else partial(layout.part, part)
        parts.append(embed(algorithm.steps(member, len(group), part), group, pieces))
    sizes = {len(other) for other in layout.groups}
    return beside(parts, max(_length(algorithm, size, part) for size in sizes for part in range(layout.leaders)))


def _between(layout: _Layout, algorithm: Algorithm, rank: int, root: int) -> Schedule:
    """The l-th ranks of all groups, on part l; the other ranks are idle."""
    j, part = layout.place(rank)
    home, _ = layout.place(root)
    count = len(layout.groups)
    if part >= layout.leaders:
        return beside([], _length(algorithm, count, home))
    team = [group[part] for group in layout.groups]
    return embed(algorithm.steps(j, count, home), team, partial(layout.outer_chunk, part))


def _length(algorithm: Algorithm, size: int, root: int) -> int:
    return sum(1 for _ in algorithm.steps(0, size, root))


def _order(groups: Groups, stages: Sequence[Algorithm]) -> Order:
    consecutive = [rank for group in groups for rank in group] == list(range(sum(map(len, groups))))
    reducing = [stage for stage in stages if stage.collective in ("reduce", "allreduce", "reduce_scatter")]
    return "rank" if not reducing or consecutive and all(stage.order == "rank" for stage in reducing) else "any"


def _period(groups: Groups, between: Algorithm) -> int:
    """Groups of consecutive ranks, equally many, are as alike as the ranks of the outer algorithm are."""
    total, ranks = sum(map(len, groups)), len(groups[0])
    alike = groups == tuple(tuple(range(at, at + ranks)) for at in range(0, total, ranks))
    return ranks * between.period(len(groups)) if alike else total


def _check(collective: str, groups: Groups, leaders: int) -> None:
    if collective not in STAGES:
        raise ArgumentError(
            f"{collective!r} has no hierarchical algorithm; these collectives have one: {', '.join(STAGES)}"
        )
    ranks = [rank for group in groups for rank in group]
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        raise ArgumentError(f"groups must hold each rank 0..p-1 exactly once, got {groups}")
    smallest = min(map(len, groups))
    if not 1 <= leaders <= smallest:
        raise ArgumentError(f"leaders={leaders}: must be 1..{smallest}, the size of the smallest group")


def _check_parts(groups: Groups, between: Algorithm, *inside: Algorithm) -> None:
    for algorithm in (between, *inside):
        if algorithm.scratch:
            raise ArgumentError(
                f"{algorithm.collective} {algorithm.name} needs scratch chunks; choose another algorithm"
            )
    for algorithm in inside:
        if algorithm.collective in ("reduce", "broadcast") and any(algorithm.chunks(len(g)) != 1 for g in groups):
            raise ArgumentError(
                f"inner={algorithm.name!r} cuts the vector itself; choose an algorithm that works on one chunk"
            )
    for algorithm, size in ((between, len(groups)), *((a, len(g)) for a in inside for g in groups)):
        if reason := algorithm.requires(size):
            raise ArgumentError(f"{algorithm.collective} {algorithm.name} does not run with {size} ranks: {reason}")


for _collective in STAGES:
    register(example(_collective), listed=False)
