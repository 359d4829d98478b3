"""Calls on Python objects, which are pickled: convenient, and slow.  The rooms below know arrays only.

Who unpickles runs what the sender wrote, so a job of ranks that do not trust each other says HOCKET_OBJECTS=0.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy

from hocket.arguments import whole
from hocket.collectives.base.groups import at_once, open_group
from hocket.collectives.calls.ask import Ask, checked
from hocket.collectives.communicator.messenger import ANY, PROC_NULL, object_tag
from hocket.errors import ArgumentError, Error

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

Array = numpy.ndarray[Any, Any]
HEAD = 512
"""Bytes of the first piece: the length, and what fits of the object.  Most need no second one."""
LENGTH = 8
APART = 1 << 20
"""Buffers of so many bytes (NumPy's arrays give theirs to pickle) travel by themselves, not as a copy in the pickle."""


class Objects:
    """A part of `Communicator`."""

    @at_once
    def broadcast_object(self, value: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """The root's value, on all ranks; the others' is not looked at.

        Objects are pickled, so these calls take tens of microseconds, and who receives one runs what the sender wrote:
        HOCKET_OBJECTS=0 refuses them.  Raises ArgumentError, on this rank alone, for what cannot be pickled.  What an
        object raises while it is unpickled comes through as it is; the communicator stays usable.  Contiguous NumPy
        arrays of 1 MiB and more in it are sent as they lie, and received where they stay.

        >>> import hocket
        >>> hocket.local_world(2).run(lambda comm: comm.broadcast_object({"rate": 0.1} if comm.rank == 0 else None))
        [{'rate': 0.1}, {'rate': 0.1}]
        """
        return broadcast(cast("Communicator", self), value, root, timeout)

    @at_once
    def allgather_object(self, value: Any, timeout: float | None = None) -> list[Any]:
        """All ranks' values, in rank order; this rank's own is a copy, too."""
        return allgather(cast("Communicator", self), value, timeout)

    @at_once
    def gather_object(self, value: Any, root: int = 0, timeout: float | None = None) -> list[Any] | None:
        """All ranks' values, in rank order, at the root; None elsewhere."""
        return gather(cast("Communicator", self), value, root, timeout)

    @at_once
    def scatter_object(
        self, values: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None
    ) -> Any:
        """values[rank] of the root's list, which has one for each rank; the others give none."""
        return scatter(cast("Communicator", self), values, root, timeout)

    def send_object(self, value: Any, dest: int, tag: int = 0, timeout: float | None = None) -> None:
        """Send a value to `dest`, whose `recv_object` takes it; a `recv` with this tag does not.  A long one waits."""
        send(cast("Communicator", self), value, dest, whole(tag, "tag"), timeout)

    @at_once
    def recv_object(self, source: int | None, tag: int = 0, timeout: float | None = None) -> Any:
        """The oldest value that was sent here with `tag` from `source`; None: of any rank."""
        return recv(cast("Communicator", self), source, whole(tag, "tag"), timeout)


def broadcast(comm: Communicator, value: Any, root: int, timeout: float | None) -> Any:
    _allowed(comm)
    comm.membership.checked(root, "root")
    mine = comm.rank == root
    data, apart = _in_parts(comm, value) if mine else (None, [])
    head = _head(data) if data is not None else numpy.empty(HEAD, numpy.uint8)
    comm.broadcast(head, root, timeout=timeout)
    rest = _rest(data) if data is not None else _room(comm, _after(head))
    if len(rest):
        comm.broadcast(rest, root, timeout=timeout)
    if mine:
        for each in apart:
            comm.broadcast(each, root, timeout=timeout)
        return value
    data = _joined(head, rest)
    rooms = [_room(comm, nbytes) for nbytes in _apart(data)]
    for room in rooms:
        comm.broadcast(room, root, timeout=timeout)
    return _made(data, rooms)


def allgather(comm: Communicator, value: Any, timeout: float | None) -> list[Any]:
    data = _pickled(comm, value)
    lengths = [int(n) for n in comm.allgather(numpy.array([len(data)]), timeout=timeout)]
    every = comm.allgatherv(data, lengths, timeout=timeout)
    return _loaded(every, lengths)


def gather(comm: Communicator, value: Any, root: int, timeout: float | None) -> list[Any] | None:
    comm.membership.checked(root, "root")
    data = _pickled(comm, value)
    lengths = [int(n) for n in comm.allgather(numpy.array([len(data)]), timeout=timeout)]
    every = comm.gatherv(data, lengths, root, timeout=timeout)
    if every is None:
        return None
    return _loaded(every, lengths)


def scatter(comm: Communicator, values: Any, root: int, timeout: float | None) -> Any:
    comm.membership.checked(root, "root")
    if comm.rank != root:
        _allowed(comm)
        lengths = numpy.empty(comm.size, numpy.int64)
        comm.broadcast(lengths, root, timeout=timeout)
        room = _room(comm, int(lengths[comm.rank]))
        comm.scatterv(None, [*map(int, lengths)], root, room, timeout=timeout)
        return pickle.loads(room.data)
    try:
        given = list(values)
    except TypeError:
        raise ArgumentError(f"values must be a list of {comm.size} objects, one per rank, at the root") from None
    if len(given) != comm.size:
        raise ArgumentError(f"values has {len(given)} objects; it must have one for each of {comm.size} ranks")
    pieces = [_pickled(comm, each) for each in given]
    lengths = numpy.array([len(piece) for piece in pieces])
    comm.broadcast(lengths, root, timeout=timeout)
    comm.scatterv(numpy.concatenate(pieces), [*map(int, lengths)], root, timeout=timeout)
    return pickle.loads(pieces[root].data)


def send(comm: Communicator, value: Any, dest: int, tag: int, timeout: float | None) -> None:
    to, label, ask = comm.messenger.end(dest, "dest"), object_tag(tag), checked(Ask("message", timeout=timeout))
    later = open_group() is not None  # then the caller may write to its arrays before they are sent
    data, apart = _in_parts(comm, value, 1 << 62 if later else APART)
    if to == PROC_NULL:
        return
    for each in (_head(data), _rest(data), *apart):
        if len(each):
            comm.messenger.exchange(each, to, None, None, label, ask)


def recv(comm: Communicator, source: int | None, tag: int, timeout: float | None) -> Any:
    _allowed(comm)
    place = ANY if source is None else comm.messenger.end(source, "source")
    if place == PROC_NULL:
        return None
    label, head = object_tag(tag), numpy.empty(HEAD, numpy.uint8)
    ask = checked(Ask("message", async_op=True, timeout=timeout))
    work = comm.messenger.exchange(None, None, head, place, label, ask)
    work.wait()
    sender = place if work.source is None else work.source

    def more(nbytes: int) -> Array:
        room = _room(comm, nbytes)
        if nbytes:
            comm.messenger.exchange(None, None, room, sender, label, checked(Ask("message", timeout=timeout)))
        return room

    data = _joined(head, more(_after(head)))
    return _made(data, [more(nbytes) for nbytes in _apart(data)])


# --- bytes


def _allowed(comm: Communicator) -> None:
    if not comm.world.config.objects:
        raise ArgumentError(
            "this job refuses objects (HOCKET_OBJECTS=0), as unpickling runs code of the sender: send arrays"
        )


def _pickled(comm: Communicator, value: Any) -> Array:
    """The object's bytes; nothing has been sent yet.  Raises ArgumentError if it cannot be pickled."""
    _allowed(comm)
    try:
        return numpy.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), numpy.uint8)
    except Exception as why:
        raise ArgumentError(f"a {type(value).__name__} cannot be pickled, so it cannot be sent: {why}") from why


def _in_parts(comm: Communicator, value: Any, least: int = APART) -> tuple[Array, list[Array]]:
    """The object's bytes: how many buffers travel by themselves, their lengths, the pickle; and those buffers."""
    _allowed(comm)
    apart: list[Array] = []

    def taken(buffer: pickle.PickleBuffer) -> bool:
        """Does it stay in the pickle?"""
        raw = buffer.raw()
        if raw.nbytes < least:
            return True
        apart.append(numpy.frombuffer(raw, numpy.uint8))
        return False

    try:
        pickled = numpy.frombuffer(pickle.dumps(value, 5, buffer_callback=taken), numpy.uint8)
    except Exception as why:
        raise ArgumentError(f"a {type(value).__name__} cannot be pickled, so it cannot be sent: {why}") from why
    lengths = numpy.array([len(apart), *map(len, apart)])
    return numpy.concatenate([lengths.view(numpy.uint8), pickled]), apart


def _apart(data: Array) -> list[int]:
    """The lengths of the buffers that come after these bytes."""
    count = int(data[:LENGTH].view(numpy.int64)[0])
    return [int(n) for n in data[LENGTH : LENGTH * (1 + count)].view(numpy.int64)]


def _made(data: Array, buffers: list[Array]) -> Any:
    return pickle.loads(data[LENGTH * (1 + len(buffers)) :].data, buffers=buffers)


def _head(data: Array) -> Array:
    head = numpy.zeros(HEAD, numpy.uint8)
    head[:LENGTH] = numpy.array([len(data)]).view(numpy.uint8)
    first = data[: HEAD - LENGTH]
    head[LENGTH : LENGTH + len(first)] = first
    return head


def _rest(data: Array) -> Array:
    return data[HEAD - LENGTH :]


def _length(head: Array) -> int:
    return int(head[:LENGTH].view(numpy.int64)[0])


def _after(head: Array) -> int:
    """Count the bytes that come after `head`."""
    return max(0, _length(head) - (HEAD - LENGTH))


def _room(comm: Communicator, nbytes: int) -> Array:
    """For an object on its way.  Without memory for it this rank cannot go on, and the others hear of that."""
    try:
        return numpy.empty(nbytes, numpy.uint8)
    except MemoryError as why:
        error = Error(f"there is not enough memory for an incoming object of {nbytes} bytes ({why})")
        comm.reporter.give_up(error)
        raise error from None


def _joined(head: Array, rest: Array) -> Array:
    return numpy.concatenate([head[LENGTH : LENGTH + _length(head)], rest])


def _loaded(data: Array, lengths: list[int]) -> list[Any]:
    """Every rank's object.  This rank's own too, so that its entry is a copy like the others."""
    return [pickle.loads(part.data) for part in numpy.split(data, numpy.cumsum(lengths)[:-1])]
