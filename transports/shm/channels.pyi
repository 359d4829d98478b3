from typing import Any

from hocket.transports.shm.window import Window

NO_MEMORY: int
SLOT: int
EAGER: int
Rule = tuple[int | None, int | None, int | None]
READS: dict[str, tuple[Rule, Rule]]

class RingChannels:
    rank: int
    size: int
    offset: int
    circle: int
    checked: bool
    blocks: list[tuple[int, int, int]]
    usual: tuple[Rule, Rule]
    def __init__(
        self, rank: int, windows: list[Window | None], pids: list[int] | None = None, checked: bool = False
    ) -> None: ...
    @property
    def rule(self) -> Rule: ...
    def offer(self) -> dict[str, Any]: ...
    def read_from(self, moved: int | None, reduced: int | None, *tried: int | None) -> None: ...
    def agree(self, offers: list[dict[str, Any] | None]) -> bool: ...
    def open(self, peer: int, offer: dict[str, Any]) -> tuple[Any, Any]: ...
    def close(self) -> None: ...
