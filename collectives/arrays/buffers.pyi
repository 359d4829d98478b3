from typing import Any

from hocket.kernels.dtypes import DType

class Buffer:
    address: int
    nbytes: int
    count: int
    shape: tuple[int, ...]
    dtype: DType
    array: Any
    writable: bool
    fresh: bool
    host: Any
    device: int
    foreign: bool
    def stage(self) -> None: ...
    @property
    def rows(self) -> int: ...
    def restore(self) -> None: ...

def describe(array: Any, what: str = "x") -> Buffer: ...
def empty_like(model: Buffer, shape: tuple[int, ...]) -> Any: ...
def overlap(a: Buffer, b: Buffer) -> bool: ...
