"""The list of streams that heal, which garbage may change while it is read."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from hocket.transports.tcp.mending import AGAIN, Mender


class Streams:
    """They are forgotten by their own end, like a dropped communicator's."""

    def __init__(self, mender: Mender, key: Any) -> None:
        self.mender, self.key = mender, key

    def __del__(self) -> None:
        self.mender.forget(self.key)


def test_a_communicator_that_is_collected_while_the_list_is_read_is_forgotten() -> None:
    context = SimpleNamespace(reactor=SimpleNamespace(add=lambda end, call: None))
    transport: Any = SimpleNamespace(context=context, purpose=next(iter(AGAIN)))
    mender: Any = Mender(transport)
    kept = {key: Streams(mender, key) for key in range(8)}
    mender._live.update(kept)

    def read() -> None:
        with mender._lock:
            kept.clear()  # as a collection does
        found.append(mender._all())

    found: list[Any] = []
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert found == [[]]
