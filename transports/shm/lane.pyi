from typing import Any

from hocket.transports.shm.window import Window

NO_MEMORY: int
SLOT: int
EAGER: int

class RingLane:
    rank: int
    size: int
    offset: int
    def __init__(self, rank: int, windows: list[Window | None], pids: list[int] | None = None) -> None: ...
    def offer(self) -> dict[str, Any]: ...
    def open(self, peer: int, offer: dict[str, Any]) -> tuple[Any, Any]: ...
    def close(self) -> None: ...
