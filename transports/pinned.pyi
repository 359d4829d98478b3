from typing import Any

from hocket.transports.cuda import Device

SLOT: int

class Pinned:
    def __init__(self, device: Device) -> None: ...
    def open(self, out: Any, in_: Any) -> tuple[Any, Any]: ...
    def close(self) -> bool: ...
