from typing import Any

class Adapter:
    capsule: Any
    error: BaseException | None
    def __init__(self, target: Any) -> None: ...
