"""Over which ranks the norm of a whole model goes, and which of this rank's parameters count there.

A model that is cut by tensor or by stage has one norm, and so has each of its layers (LARS, LAMB).  So `Sharded` must
know then, for each axis of the mesh beside its own, which parameters are cut along it, and which are alike on its
ranks, and count once.  Layers tell it (training/large/told.py), a pipeline of its axis, and the caller with `alike=`.
What nobody has told is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.arguments import choices, kind
from hocket.errors import ArgumentError
from hocket.training.flat import Array, Flat, digest
from hocket.training.large.told import asked

Alike = Mapping[str, Any]
"""By axis, the names of the parameters that are alike on its ranks; "all": the model is not cut along it."""


class Around:
    """`comm`: of the ranks that average; `axes`: those along which the model is cut, in one order on all ranks.

    `what`: who wants norms.  `whole`: of the whole model, not only of its layers, of which a pipeline cuts none.
    """

    def __init__(self, comm: Any, flat: Flat, alike: Alike | None, what: str, whole: bool) -> None:
        self.flat, self.mesh, self.what, self.whole = flat, getattr(comm, "mesh", None), what, whole
        given = {} if alike is None else self._checked(alike)
        self.listed = {name: set(names) for name, names in given.items() if names != "all"}
        self.told: dict[str, dict[str, bool]] = {}
        """By axis and parameter: is it alike there?  As layers have told."""
        self.own: dict[str, set[str]] = {}
        """By axis: parameters that are no parts of one array there."""
        comms: dict[str, Any] = {}
        for name in flat.arrays:
            self._ask(name, comms)
        if self.mesh is not None:
            own = self.mesh.axes_of(comm)
            length = self.mesh.axes
            if not whole:
                own = [*own, *self.mesh.staged]
            comms = {axis: self.mesh[axis] for axis in length if length[axis] > 1 and axis not in own}
        self.axes = {axis: each for axis, each in comms.items() if given.get(axis) != "all"}
        self.check_times()
        self.alike = {axis: self._alike_on(axis) for axis in self.axes}
        """By axis, this rank's parameters that are alike on its ranks."""

    def check_times(self) -> None:
        """ArgumentError: stages would wait for each other's norm, which they ask for at other times."""
        if apart := sorted(self.axes.keys() & getattr(self.mesh, "apart", set())):
            axis = apart[0]
            raise ArgumentError(
                f'{self.what} needs the norm along axis {axis!r}, but a "pipedream" Pipeline updates its stages at '
                f'other times: say alike={{{axis!r}: "all"}} to clip each stage by its own norm, or take another '
                "schedule"
            )

    def _checked(self, alike: Any) -> dict[str, Any]:
        known = {} if self.mesh is None else self.mesh.axes
        if not isinstance(alike, Mapping):
            raise ArgumentError(f"alike= must be names of parameters by axis, got {kind(alike)}")
        if wrong := [axis for axis in alike if axis not in known]:
            raise ArgumentError(f"alike= names the axis {wrong[0]!r} of no mesh; {choices(wrong[0], known)}")
        if wrong := [axis for axis, names in alike.items() if isinstance(names, str) and names != "all"]:
            raise ArgumentError(f'alike[{wrong[0]!r}] must be a list of names, or "all"')
        return dict(alike)

    def _ask(self, name: str, comms: dict[str, Any]) -> None:
        """Facts that layers have told of a parameter."""
        array = self.flat.held.first(name)
        if any(each.is_shard() for each in getattr(array, "placements", ())):
            how = "clip gradients by torch.nn.utils.clip_grad_norm_, and step by an optimizer of torch's"
            raise ArgumentError(f"{name!r} is a DTensor, whose cuts {self.what} does not know: {how}")
        for comm, alike, own in asked(array):
            axes = [str(tuple(comm.members))] if self.mesh is None else self.mesh.axes_of(comm)
            for axis in axes if comm.size > 1 else ():
                comms.setdefault(axis, comm)
                self.told.setdefault(axis, {})[name] = alike
                if own:
                    self.own.setdefault(axis, set()).add(name)

    def _alike_on(self, axis: str) -> set[str]:
        """ArgumentError: nobody has told of a parameter."""
        told, listed, names = self.told.get(axis, {}), self.listed.get(axis), set(self.flat.arrays)
        if listed is None and axis not in getattr(self.mesh, "staged", ()) and (unknown := sorted(names - told.keys())):
            if self.mesh is None:
                text = f"{self.what} needs to know whether {unknown[0]!r} is cut as others are: make a Mesh"
                raise ArgumentError(text)
            many = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
            raise ArgumentError(
                f"{self.what} needs the norm of the whole {'model' if self.whole else 'layer'}: is {many} alike on the "
                f"ranks of axis {axis!r}, or cut along it? Say alike={{{axis!r}: [the names that are alike there]}}; "
                '[] if none is; "all" if the model is not cut along it. '
                "Layers, and a Pipeline that is made before this, tell it"
            )
        if both := sorted(name for name in listed or () if told.get(name) is False):
            raise ArgumentError(f"alike[{axis!r}] names {both[0]!r}, which its layer has cut along that axis")
        return names & ((listed or set()) | {name for name, alike in told.items() if alike})

    def counted(self) -> tuple[set[str], str]:
        """The parameters that count on this rank: of those that are alike the first rank's; and what is wrong.

        Collective along the axes, when all ranks have their first parameters.
        """
        mine, wrong = set(self.flat.arrays), ""
        for axis, comm in self.axes.items():
            guessed = axis not in self.listed and axis in getattr(self.mesh, "staged", ())
            looked_at = [*self.flat.arrays] if guessed else sorted(self.alike[axis])
            rows = comm.share({name: [name in self.alike[axis], *self._print(name)] for name in looked_at}, "Sharded")
            own = rows[comm.rank]
            for name, (alike, varied, *printed) in own.items():
                others = [rank for rank, row in enumerate(rows) if name in row and row[name][0] and alike]
                if any(rows[rank][name][1:] != own[name][1:] for rank in others):
                    wrong = wrong or f"{name!r} is not alike on ranks {others} of axis {axis!r}: give them the same"
                if others and others[0] != comm.rank:
                    mine.discard(name)
                tied = [rank for rank, row in enumerate(rows) if printed in [each[2:] for each in row.values()]]
                if not alike and varied and len(tied) > 1:
                    where = f"{name!r} has the same numbers on ranks {tied} of axis {axis!r}"
                    wrong = wrong or f"{where}: is it tied? Say alike={{{axis!r}: [{name!r}]}}, or [] if it is not"
        return mine, wrong

    def joined(self) -> list[tuple[Any, set[str]]]:
        """For each axis: its communicator, and the parameters of which its ranks have parts.  Collective as `counted`.

        Not those of stages and experts, which are whole layers, whatever their names.
        """
        found = []
        for axis, comm in self.axes.items():
            staged = axis in getattr(self.mesh, "staged", ())
            mine = [] if staged else sorted({*self.flat.arrays} - self.alike[axis] - self.own.get(axis, set()))
            rows = comm.share(mine, "Sharded")
            found.append((comm, set(mine).intersection(*map(set, rows))))
        return found

    def _print(self, name: str) -> list[int]:
        """Do its numbers differ (many biases begin with one)?  How many are they, and a digest of them."""
        vector: Array = self.flat.empty(self.flat.sizes[name])
        self.flat.read([name], vector)
        return [int((vector != vector[:1]).any()), len(vector), digest(vector)]


def refuse(comm: Any, flat: Flat) -> None:
    """ArgumentError: ranks that average have other parts of a parameter."""
    members = set(comm.members)
    for name in flat.arrays:
        for told in asked(flat.held.first(name)):
            if not told.alike and len(members & set(told.comm.members)) > 1:
                raise ArgumentError(f"{name!r} is cut among the ranks that average: give those on which it is alike")
