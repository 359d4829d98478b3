from collections.abc import Callable
from typing import Any

from hocket.collectives.engine.engine import Engine
from hocket.collectives.engine.placed import Placed
from hocket.collectives.plans.plan import Plan

class Queued:
    status: int
    culprit: int
    foreign: int
    came: int
    source: int | None
    tag: int | None
    followed: bool
    limit: float
    words: str
    plan: Plan
    engine: Engine
    seq: int
    site: str | None
    broken_off: bool
    def __init__(
        self, engine: Engine, plan: Plan, src: int, dst: int, op: int = -1, user: Callable[..., None] | None = None,
        timeout: float = 0, tag: int | None = None, keep: Any = None,
        placed: Placed | None = None, residuals: tuple[int, ...] = (),
    ) -> None: ...
    needs_callers: bool
    def wait(self, timeout: float = -1, still: float = -1) -> bool: ...
    def cancel(self) -> bool: ...
    def look(self, seconds: float) -> None: ...
    def let_go(self) -> None: ...

def wait_any(works: list[Queued], timeout: float) -> None: ...
def forked() -> None: ...
def oldest(engine: Engine) -> Queued | None: ...
def unended(engine: Engine) -> list[Queued]: ...
def first_failed(engine: Engine) -> Queued | None: ...
def unreceived(engine: Engine) -> dict[int, int]: ...
def under_way(engine: Engine) -> list[Plan]: ...
