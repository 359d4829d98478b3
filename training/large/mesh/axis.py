"""One axis of a mesh, as a rank sees it: a communicator whose calls use the axis's transport and codec."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.errors import PeerLostError

SENT: dict[str, float] = {
    "allreduce": 2, "reduce_scatter": 1, "allgather": 1, "alltoall": 1,
}  # fmt: skip
"""The least that a rank sends, in (p-1)/p of the vector."""
MOVING = {*SENT, "reduce_scatterv", "allgatherv", "alltoallv", "broadcast"}
OTHERS = {
    "reduce", "gather", "gatherv", "scatter", "scatterv", "scan", "exscan", "barrier", "send", "recv", "sendrecv",
}  # fmt: skip
"""Calls that take transport=, but no codec=."""
SAME = {"dup", "lane"}
"""Calls that return a communicator of the same ranks."""
OP_AT = {"allreduce": 1, "reduce_scatter": 1, "reduce_scatterv": 2}
"""Which of the arguments is the op, where there is one."""
LINEAR = ("sum", "avg")


class Axis:
    """The ranks that differ from this one on the axis `name` alone, in the axis's order.

    It has everything that a `Communicator` has.  Collectives and messages use `transport`, and those of float32 `codec`
    (with op sum or avg), if the caller asks for no other; its lanes and copies do so, too.  `comm` is the communicator
    itself.  A PeerLostError of a call says, in a note, what the loss means for the mesh.
    """

    def __init__(self, mesh: Any, name: str, comm: Any, transport: str | None = None, codec: Any = None) -> None:
        self.mesh, self.name, self.comm = mesh, name, comm
        self.transport, self.codec = transport, codec

    def __getattr__(self, name: str) -> Any:
        if name == "comm" or name.startswith("__"):  # copy and pickle ask before there is one
            raise AttributeError(name)
        attribute = getattr(self.comm, name)
        if name in SAME:
            return lambda *args, **how: self._of(attribute(*args, **how), self.codec)
        if name in MOVING or name in OTHERS or name == "share":
            return functools.partial(self._call, name, attribute)
        return attribute

    def _call(self, name: str, call: Any, *args: Any, **how: Any) -> Any:
        if self.transport is not None and name != "share":
            how.setdefault("transport", self.transport)
        if self.codec is not None and name in MOVING and _coded(name, self.codec, args, how):
            how.setdefault("codec", self.codec)
        with self.noting():
            return call(*args, **how)

    def _of(self, comm: Any, codec: Any) -> Axis:
        return Axis(self.mesh, self.name, comm, self.transport, codec)

    def lanes(self, priorities: Mapping[str, int]) -> list[Axis]:
        """Lanes as a communicator has them."""
        return [self._of(lane, self.codec) for lane in self.comm.lanes(priorities)]

    @functools.cached_property
    def plain(self) -> Axis:
        """The same axis without its codec: for what has one of its own, and numbers that must be exact."""
        return self._of(self.comm, None)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """A PeerLostError in this block gets the note; for those who wait for asynchronous calls."""
        try:
            yield
        except PeerLostError as error:
            if hasattr(error, "add_note"):  # since Python 3.11
                comm = self.comm if error.ranks else self.mesh.job  # whose rank is lost may be on no axis of this one
                error.add_note(self.mesh.meaning([comm.members[rank] for rank in error.ranks or comm.lost]))
            raise

    def sent(self) -> float:
        """Bytes that this rank has sent at least: those of its collectives by the algorithms that send least."""
        return sum(self.sent_over().values())

    def sent_over(self) -> dict[str, float]:
        """The same, by what carried them: "shm", "tcp", or "shm+tcp" of a call that used both."""
        p, by_link = self.comm.size, dict[str, float]()
        for row in self.comm.stats():
            nbytes = row.bytes * SENT.get(row.collective, 1) * (p - 1) / p
            by_link[row.transport] = by_link.get(row.transport, 0.0) + nbytes
        return {link: nbytes for link, nbytes in by_link.items() if nbytes}

    def __repr__(self) -> str:
        return f"<axis {self.name!r}: rank {self.comm.rank} of {self.comm.size}>"


def _coded(name: str, codec: Any, args: tuple[Any, ...], how: dict[str, Any]) -> bool:
    """May the call have this codec?  Functions and premul_sum have none, and "auto" not what one rank alone knows."""
    x = args[0] if args else how.get("x")
    op = how.get("op", (*args, None, None, None)[OP_AT[name]] if name in OP_AT else None)
    linear = op is None or isinstance(op, str) and op in LINEAR
    return str(getattr(x, "dtype", "")).endswith("float32") and linear and (codec, name) != ("auto", "alltoallv")
