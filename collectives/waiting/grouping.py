"""`group()`: several calls issued as one."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from hocket.collectives.base.groups import open_group, opened, set_group
from hocket.collectives.waiting.work import Work


@contextlib.contextmanager
def group() -> Generator[list[Work], None, None]:
    """Issue several calls as one: inside the block each call returns at once; the block ends when all have ended.

    Sends and receives of a group progress together, so their order does not matter.  Results are in place, in
    `out=`, or in the array that the call returned; inside the block there are none yet.  Calls that need another
    rank's answer before they return raise ArgumentError there, and nothing is sent: calls with numbers, calls with
    objects (but `send_object`), those that make communicators, `tune`, and those of `hocket.compression`.  Calls of
    torch.distributed and of hocket.horovod are not part of a group: they are carried out at once.
    """
    outer = open_group()
    if outer is not None:
        yield outer  # nested: part of the outer group
        return
    works: list[Work] = []
    set_group(works)
    opened(1)
    try:
        yield works
    finally:
        set_group(None)
        opened(-1)
    for work in works:
        work.wait()
