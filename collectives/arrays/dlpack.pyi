from collections.abc import Callable
from typing import Any

from hocket.kernels.dtypes import DType

def opened(
    array: Any, what: str, stream: Callable[[int], int]
) -> tuple[Any, int, int, tuple[int, ...], DType, bool]: ...
