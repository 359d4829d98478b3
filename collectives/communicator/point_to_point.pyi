from typing import Any

from hocket.collectives.communicator.collectives import Collectives
from hocket.collectives.quick.short_messages import ShortMessages

class PointToPoint(Collectives):
    def _set_messages(self, messages: ShortMessages) -> None: ...
    def send(
        self, x: Any, dest: int, tag: int = 0, async_op: bool = False, timeout: float | None = None,
        transport: str | None = None, codec: str | None = None,
    ) -> Any: ...
    def recv(
        self, out: Any, source: int | None, tag: int | None = 0, async_op: bool = False, timeout: float | None = None,
        transport: str | None = None, codec: str | None = None,
    ) -> Any: ...
    def sendrecv(
        self, x: Any, dest: int, out: Any, source: int, tag: int = 0, async_op: bool = False,
        timeout: float | None = None, transport: str | None = None,
    ) -> Any: ...
