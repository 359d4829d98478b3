from typing import Any

import numpy

from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.plan import Plan

NOTHING: numpy.ndarray

def group_opened(change: int) -> None: ...

class Shortcut:
    def __init__(self, engine: Engine, timeout: float, runner: Any) -> None: ...
    def set_timeout(self, timeout: float) -> None: ...
    def forget(self) -> None: ...
    def remember(
        self, collective: str, x: Any, out: Any, op: Any, root: int, counts: Any, algorithm: Any, order: str,
        auto: bool, given: bool, in_place: bool, plan: Plan, code: int,
    ) -> None: ...

class ShortWay:
    shortcut: Shortcut
    def _set_shortcut(self, shortcut: Shortcut) -> None: ...
    def _call(
        self, collective: str, x: Any, out: Any, op: Any, root: int, counts: Any, async_op: bool,
        timeout: float | None, algorithm: Any, transport: str | None, order: str, codec: Any = None,
    ) -> Any: ...
