from typing import Any

from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import Queued

def group_opened(change: int) -> None: ...

class HotPath:
    def _hot_init(self, engine: Engine, timeout: float) -> None: ...
    def _call(
        self, collective: str, x: Any, out: Any, op: Any, root: int, counts: Any, async_op: bool,
        timeout: float | None, algorithm: Any, transport: str | None, order: str,
    ) -> Any: ...
    def _forget(self) -> None: ...
    def _ended(self, run: Queued) -> None: ...
    def _remember(
        self, collective: str, x: Any, out: Any, op: Any, root: int, algorithm: Any, order: str, given: bool,
        in_place: bool, plan: Plan, code: int, after: float,
    ) -> None: ...
