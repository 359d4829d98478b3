from typing import Any

from hocket.collectives.calls.ask import Ask
from hocket.collectives.quick.shortcut import ShortWay

class Prepared:
    def __call__(self) -> Any: ...
    def start(self) -> Any: ...

class PreparedCollective(Prepared):
    def __init__(self, comm: ShortWay, x: Any, out: Any, asked: Ask) -> None: ...

class PreparedMessage(Prepared):
    def __init__(
        self, comm: ShortWay, messenger: Any, name: str, x: Any, dest: int | None, out: Any, source: int | None,
        tag: int | None,
    ) -> None: ...
