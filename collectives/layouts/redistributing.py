"""The calls that move sharded arrays from one layout to another."""

from __future__ import annotations

from typing import Any, cast

from hocket.collectives.base.groups import at_once
from hocket.collectives.layouts.comm import Comm
from hocket.collectives.layouts.redistribute import ROOM, Redistribution


class Redistributing:
    """A part of `Communicator`."""

    @at_once
    def redistribute(
        self, tree: Any, source: Any, target: Any, *, into: Any = None, dtype: Any = None, room: int = ROOM,
        check: bool = False, codec: Any = None, async_op: bool = False, timeout: float | None = None,
    ) -> Any:
        """Arrays that the ranks hold by the layout `source`, as they hold them by `target`.

        `source` and `target` map names to a `Layout`, or are one for all names; `tree[name]` is the list of arrays that
        this rank holds, one for each of its boxes in order.  A list with two Layouts is one array's.  Returns the same
        of the target: new arrays, or those of `into`.  What was given stays as it is.  A rank that holds no box may
        leave the name out, and learns the dtype from the others.

        - `dtype`: one for all, or for each name: the sender converts, rounding once
        - `room`: bytes of memory beside the arrays, about, on each rank
        - `codec`: "lossless", for all names or for each: parts of 16 KiB and more of float32, float16 and bfloat16 are
          packed between hosts
        - `check`: compare an XXH64 digest of each message at its end: other bits are a MismatchError on all ranks

        Every element comes from one holder: this rank, else one of its host, else one of another host, and then once
        for the host.  Cost: two allgathers of a few bytes a name, then the bytes that are wanted and not held; see
        docs/redistribute.md.  All ranks call it, with the same layouts.  ArgumentError on all ranks, before anything
        moves: an element that nobody holds, names, shapes or dtypes that differ.  A rank that is lost meanwhile is a
        PeerLostError; `into` may hold anything then.

        >>> import hocket, numpy as np
        >>> rows, columns = hocket.Layout.cut((2, 4), 2), hocket.Layout.cut((2, 4), 2, axis=1)
        >>> def turned(comm):
        ...     mine = np.arange(4) + 4 * comm.rank
        ...     return comm.redistribute([mine.reshape(1, 4)], rows, columns)[0].tolist()
        >>> hocket.local_world(2).run(turned)
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
        """
        made = Redistribution(cast(Comm, self), tree, source, target, into, dtype, room, check, timeout, codec)
        return made.start() if async_op else made()

    @at_once
    def prepare_redistribute(
        self, tree: Any, source: Any, target: Any, *, into: Any = None, dtype: Any = None, room: int = ROOM,
        check: bool = False, codec: Any = None, timeout: float | None = None,
    ) -> Redistribution:
        """`redistribute` of the same arrays, to be made after every update: `plan()`, or `plan.start()`.

        It compares, plans and allocates now, so that a call moves nothing but elements.

        >>> import hocket, numpy as np
        >>> def refit(comm):
        ...     w = np.zeros(2)
        ...     plan = comm.prepare_redistribute(
        ...         [w], hocket.Layout.cut((4,), 2), hocket.Layout.replicated((4,), 2))
        ...     w += comm.rank + 1
        ...     return plan()[0].tolist()
        >>> hocket.local_world(2).run(refit)[0]
        [1.0, 1.0, 2.0, 2.0]
        """
        return Redistribution(cast(Comm, self), tree, source, target, into, dtype, room, check, timeout, codec)
