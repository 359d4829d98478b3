from typing import Any

from hocket.collectives.calls.ask import Lasting
from hocket.collectives.quick.shortcut import Lists

class Packed:
    vectors: list[Any]
    alone: list[Any]
    leaves: list[Any]
    digest: int
    def __init__(self, tree: Any, largest: int, written: bool, spare: dict[Any, Any]) -> None: ...
    def unpack(self) -> None: ...

class Known(Lists):
    spare: dict[Any, Any]
    def learn(self, tree: Any, packed: Packed, label: Lasting) -> None: ...

def leaves_of(tree: Any) -> tuple[list[str], list[Any]]: ...
