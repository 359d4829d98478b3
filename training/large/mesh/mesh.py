"""`Mesh`: the ranks of a job as a grid with named axes, each of which is a communicator.

    mesh = Mesh(comm, {"data": 2, "pipe": 2, "tensor": 2})      # the axis that talks least comes first
    mesh["tensor"].allreduce(x)                                 # on the ranks of this one's row
    mesh.at                                                     # {"data": 0, "pipe": 1, "tensor": 0}

The first axis is that of replicas: each of its places holds the whole model, cut along the other axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hocket import Grid
from hocket.arguments import human, kind, whole
from hocket.errors import ArgumentError
from hocket.training.large.agreeing import agree, ranks
from hocket.training.large.mesh.axis import Axis
from hocket.training.large.mesh.placing import placed


class Loss(NamedTuple):
    """The meaning of lost ranks for a mesh."""

    lost: tuple[dict[str, int], ...]
    """Their places."""
    whole: tuple[int, ...]
    """Places on the first axis whose ranks all live: replicas that can go on."""
    spare: tuple[int, ...]
    """Ranks of the renewed communicator that live in a replica that cannot."""
    missing: tuple[dict[str, int], ...]
    """Parts of the model that no rank holds any more: places on the other axes."""
    words: str


class Mesh:
    """The ranks of `comm`, a communicator, as a grid.

    `axes`: lengths by name, whose product is `comm.size`; the first axis talks least, the last one most.  Ranks are
    placed so that the last axis stays inside hosts, then the one before it (placing.py).  `transport`, `codec`: by axis
    ("shm", "tcp"; "bf16", "int8", ...), for its calls.

    All ranks make it together, with equal arguments: ArgumentError and MismatchError name what is wrong, on all ranks.
    `places`: the rank at each place, the last axis fastest, instead of that; ranks that it does not name are spare.
    Cost: six allgathers, and four for each axis.

    >>> import hocket, numpy as np
    >>> from hocket.training import Mesh
    >>> def program(comm):
    ...     mesh = Mesh(comm, {"data": 2, "tensor": 2})
    ...     return mesh.at, mesh["tensor"].allreduce(np.array([comm.rank])).tolist()
    >>> hocket.local_world(4).run(program)[2]
    ({'data': 1, 'tensor': 0}, [5])
    """

    def __init__(
        self, comm: Any, axes: Mapping[str, int], *, transport: Mapping[str, str] | None = None,
        codec: Mapping[str, Any] | None = None, places: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.job, self._transport, self._codec = comm, dict(transport or {}), dict(codec or {})
        many = comm.size if places is None else len(places)
        self._host_of = agree(comm, "Mesh", lambda: self._said(axes, many), comm.host)
        self.axes = {name: whole(length, name) for name, length in axes.items()}
        """Their lengths."""
        self.places = [*places] if places is not None else placed(self._host_of, [*self.axes.values()])
        """The rank of `job` at each place, the last axis fastest."""
        self.at: dict[str, int] = {}
        """This rank's place on each axis; empty: this rank is spare."""
        self._made: dict[tuple[str, ...], Axis] = {}
        self.staged: set[str] = set()
        """Axes along which a pipeline's stages stand."""
        self.apart: set[str] = set()
        """The ones whose stages change their parameters at other times: "pipedream"."""
        spare = comm.rank not in self.places
        self.comm = comm.split(None if spare else 0, 0 if spare else self.places.index(comm.rank))
        """All ranks of the mesh, in the order of their places; None on a spare rank."""
        if not spare:
            self._grid = Grid(self.comm, [*self.axes.values()])
            self.at = self.place(comm.rank)
            for name in self.axes:
                self.along(name)

    def __getitem__(self, name: str) -> Axis:
        """The axis of that name, through this rank."""
        if not self.at:
            raise ArgumentError(f"rank {self.job.rank} is spare: it has no place in the mesh")
        if (name,) not in self._made:
            raise ArgumentError(f"the mesh has no axis {name!r}; it has {', '.join(self.axes)}")
        return self._made[name,]

    def along(self, *names: str) -> Axis:
        """The ranks that differ from this one on these axes only, the last axis fastest.  All ranks call it at first.

        It has the transport and codec of the first of the axes.  Cost: four allgathers, once.
        """
        unknown = [name for name in names if name not in self.axes]
        if unknown or not names:
            raise ArgumentError(f"the mesh has no axis {unknown[:1] or names!r}; it has {', '.join(self.axes)}")
        if names not in self._made:
            order = [*self.axes]
            comm = self._grid.along(*sorted(order.index(name) for name in names))
            first = names[0]
            self._made[names] = Axis(self, "+".join(names), comm, self._transport.get(first), self._codec.get(first))
        return self._made[names]

    def axes_of(self, comm: Any) -> list[str]:
        """The axes along which the ranks of a communicator differ; none if it has others than the mesh's."""
        job = {member: rank for rank, member in enumerate(self.job.members) if rank in self.places}
        if not job.keys() >= {*comm.members}:
            return []
        places = [self.place(job[member]) for member in comm.members]
        return [axis for axis in self.axes if len({place[axis] for place in places}) > 1]

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank of `job` is."""
        at, place = self.places.index(rank), {}
        for name, length in reversed(self.axes.items()):
            at, place[name] = divmod(at, length)
        return {name: place[name] for name in self.axes}

    def explain(self) -> str:
        """Describe the mesh: the place of each rank; each axis's ranks, links, transport and codec, and what this rank
        has sent on it; and what it has sent over each kind of link.

        Bytes are those that the collectives send at least, encoded; a call is counted when its turn comes.

        >>> import hocket
        >>> print(hocket.local_world(4).run(lambda comm: Mesh(comm, {"data": 2, "tensor": 2}).explain())[3])
        ... # doctest: +ELLIPSIS
        mesh of 4 ranks: data 2 x tensor 2, on 1 host
          this rank: data 1, tensor 1
          data: ranks 1, 3; inside host 0; ...
          tensor: ranks 2, 3; inside host 0; ...
        """
        hosts = len({self._host_of[rank] for rank in self.places})
        shape = " x ".join(f"{name} {length}" for name, length in self.axes.items())
        lines = [f"mesh of {len(self.places)} ranks: {shape}, on {hosts} host{'s' if hosts > 1 else ''}"]
        lines.append(f"  this rank: {_named(self.at) or 'spare'}")
        return "\n".join(lines + [f"  {self._line(axis)}" for axis in self._made.values()] + self._links())

    def _links(self) -> list[str]:
        """A line: what this rank has sent over each kind of link, on all axes."""
        by_link: dict[str, float] = {}
        for axis in self._made.values():
            for link, nbytes in axis.sent_over().items():
                by_link[link] = by_link.get(link, 0.0) + nbytes
        links = ", ".join(f"{human(round(nbytes))} over {link}" for link, nbytes in sorted(by_link.items()))
        return [f"  links: {links}"] if links else []

    def _line(self, axis: Axis) -> str:
        mine = self._numbers(axis)
        hosts = sorted({self._host_of[rank] for rank in mine})
        link = f"inside host {hosts[0]}" if len(hosts) == 1 else f"between hosts {', '.join(map(str, hosts))}"
        used = sorted({row.transport for row in axis.comm.stats() if row.transport})
        how = [axis.transport or "+".join(used) or "not used yet"] + ([f"codec {axis.codec}"] if axis.codec else [])
        sent = human(round(axis.sent()))
        return f"{axis.name}: {ranks(mine)}; {link}; {', '.join(how)}; {sent} sent"

    def _numbers(self, axis: Axis) -> list[int]:
        """The axis's ranks, as ranks of `job`."""
        numbers = {member: rank for rank, member in enumerate(self.job.members)}
        return [numbers[member] for member in axis.comm.members]

    def _said(self, axes: Any, many: int) -> dict[str, Any]:
        """Settings that have to be the same on all ranks."""
        if not isinstance(axes, Mapping) or not axes or any(not isinstance(name, str) for name in axes):
            raise ArgumentError(f"axes must be lengths by name, got {kind(axes)}")
        lengths = [whole(length, f"axes[{name!r}]") for name, length in axes.items()]
        if any(length < 1 for length in lengths) or math.prod(lengths) != many:
            product = " x ".join(f"{name} {length}" for name, length in zip(axes, lengths, strict=True))
            raise ArgumentError(f"axes {product} have {math.prod(lengths)} places, and there are {many} ranks")
        for what, given in (("transport", self._transport), ("codec", self._codec)):
            if unknown := [name for name in given if name not in axes]:
                raise ArgumentError(f"{what} names the axis {unknown[0]!r}; the mesh has {', '.join(axes)}")
        return {
            "axes": [*zip(axes, lengths, strict=True)], "transport": self._transport,
            "codec": {name: str(each) for name, each in self._codec.items()},
        }  # fmt: skip

    # --- ranks that are lost

    def meaning(self, members: Sequence[int]) -> str:
        """The meaning of the loss of these members of the job (`comm.members`), in words."""
        lost = [rank for rank in self.places if self.job.members[rank] in members]
        return self._loss(lost, range(self.job.size)).words

    def loss(self, made: Any) -> Loss:
        """The loss, and the ranks that can go on.

        `made`: what `renew` of this mesh's communicator has returned, or of that one, if more was lost meanwhile.
        """
        now = self._now(made)
        return self._loss([rank for rank in self.places if rank not in now], now)

    def _now(self, made: Any) -> dict[int, int]:
        """The rank in `made` of each rank of `job` that is there."""
        return {old: new for new, old in enumerate(made.ranks_in(self.job)) if old is not None}

    def _loss(self, lost: Sequence[int], now: Any) -> Loss:
        """`now`: today's number of each rank that lives, by its number in `job`."""
        first, *others = self.axes
        where = [self.place(rank) for rank in lost]
        hit = {at[first] for at in where}
        intact = tuple(at for at in range(self.axes[first]) if at not in hit)
        living = [rank for rank in self.places if rank not in lost]
        spare = tuple(now[rank] for rank in living if self.place(rank)[first] in hit)
        held = [_without(self.place(rank), first) for rank in living]
        missing = [part for part in (_without(at, first) for at in where) if part not in held]
        gone = tuple(part for i, part in enumerate(missing) if part not in missing[:i])
        return Loss(tuple(where), intact, spare, gone, self._words(where, intact, spare, gone))

    def _words(
        self, where: Sequence[dict[str, int]], intact: Sequence[int], spare: Sequence[int],
        gone: Sequence[dict[str, int]],
    ) -> str:  # fmt: skip
        first = next(iter(self.axes))
        text = f"mesh: lost are {'; '.join(map(_named, where)) or 'no ranks'}"
        if gone:
            return f"{text}; no other rank holds these parts of the model: go on from a checkpoint"
        if not intact:
            return f"{text}; each part is on some rank, but no place of {first!r} is whole: put the state together anew"
        rest = f"; spare ranks: {len(spare)}" if spare else ""
        return (
            f"{text}; the model is whole at {first} {', '.join(map(str, intact))}, where training can go on{rest}; "
            f"what is kept in shards along {first!r} (optimizer states) is lost with them: load a checkpoint's"
        )

    def renewed(self, made: Any) -> Mesh:
        """The mesh of the replicas that are whole; all ranks of `made` call it, and those of other replicas are spare.

        Each rank keeps its place on all axes but the first, which becomes shorter.  Raises ArgumentError, on all ranks,
        where no replica is whole.
        """
        loss = self.loss(made)
        if not loss.whole:
            raise ArgumentError(loss.words)
        now = self._now(made)
        first = next(iter(self.axes))
        stay = [now[rank] for rank in self.places if rank in now and self.place(rank)[first] in loss.whole]
        axes = {**self.axes, first: len(loss.whole)}
        return Mesh(made, axes, transport=self._transport, codec=self._codec, places=stay)


def _without(at: Mapping[str, int], first: str) -> dict[str, int]:
    return {name: place for name, place in at.items() if name != first}


def _named(at: Mapping[str, int]) -> str:
    """data 0, pipe 1"""
    return ", ".join(f"{name} {place}" for name, place in at.items())
