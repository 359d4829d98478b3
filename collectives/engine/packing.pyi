from typing import Any

class Packed:
    vectors: list[Any]
    alone: list[Any]
    digest: int
    def __init__(self, leaves: list[Any], largest: int, written: bool, spare: dict[Any, Any]) -> None: ...
    def unpack(self) -> None: ...

def leaves_of(tree: Any, leaves: list[Any]) -> None: ...
