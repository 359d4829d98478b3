from collections.abc import Callable
from typing import Any

calls: dict[bytes, Callable[[tuple[Any, ...], tuple[Any, ...]], object]]
dtypes: dict[int, Any]

def explain_by(function: Callable[[BaseException], bytes]) -> None: ...
def capsule() -> object: ...
