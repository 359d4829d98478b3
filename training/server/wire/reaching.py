"""The way to a server of a view: how a link to it is made, and how it is made again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import hocket
from hocket.training.server.views import View
from hocket.training.server.wire.frames import framed
from hocket.training.server.wire.link import ServerLink
from hocket.training.server.wire.messages import Named

REACH = 5.0
"""Seconds in which a server has to accept."""
AGAIN = 0.1
"""Seconds between two attempts to reach it."""
L = TypeVar("L", bound=ServerLink)


def reached(make: Callable[[Any], L], view: View, uid: int, who: Named, how: Mapping[str, Any]) -> L:
    """A new link to this server, which has been told who asks.  `how`: as in `hocket.connect`.  Raises as that does."""
    link = make(hocket.connect(view.addresses[uid], **{"timeout": REACH, **how}))
    link.post(framed(0, who))
    return link


def again(linked: Callable[[], bool], wait: Callable[[float], object]) -> None:
    """In a thread of its own: try until `linked()`, with pauses by `wait`, which returns True when all is over."""

    def until_linked() -> None:
        while not wait(AGAIN) and not linked():
            pass

    threading.Thread(target=until_linked, name="hocket-relink", daemon=True).start()
