from typing import Any

from hocket.system.cuda.driver import Device

SLOT: int

class Pinned:
    def __init__(self, device: Device) -> None: ...
    def open(self, out: Any, in_: Any) -> tuple[Any, Any]: ...
    def close(self) -> bool: ...
