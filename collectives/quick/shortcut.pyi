from typing import Any

import numpy

from hocket.collectives.calls.ask import Ask
from hocket.collectives.engine.engine import Engine
from hocket.collectives.engine.placed import Placed
from hocket.collectives.plans.plan import Plan

NOTHING: numpy.ndarray

def group_opened(change: int) -> None: ...

class Lists: ...

class Shortcut:
    def __init__(self, main: Engine, timeout: float, runner: Any, lists: Lists) -> None: ...
    def set_timeout(self, timeout: float) -> None: ...
    def forget(self) -> None: ...
    def remember(self, ask: Ask, call: Any, engine: Engine, plan: Plan, code: int,
                 placed: Placed | None = None) -> None: ...  # fmt: skip

class ShortWay:
    shortcut: Shortcut
    def _set_shortcut(self, shortcut: Shortcut) -> None: ...
    def _call(self, x: Any, out: Any, asked: Ask) -> Any: ...
