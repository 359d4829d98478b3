"""A user's function as the op of a call on GPU arrays: called with arrays on the GPU, in stream order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.collectives.arrays import borrowed
from hocket.collectives.arrays.buffers import Buffer, describe
from hocket.collectives.calls.user_ops import Function, inside
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.system.cuda.driver import Device


class GpuFold:
    """`function(a, b) -> array` folded over the operands whose addresses the engine hands out, in rank order.

    The function works on `stream`, which is its library's current one meanwhile.  It must not write to its arguments,
    which are the caller's x, or memory that other ranks read too.
    """

    def __init__(self, function: Function, model: Buffer, device: Device, stream: int) -> None:
        self.function, self.device = function, device
        self._array, self._dtype = model.array, model.dtype
        self._where = device.ordinal, stream

    def __call__(self, operands: Sequence[int], out: int, nbytes: int) -> None:
        with self.device, borrowed.current(self._array, *self._where):
            total, at = self._lent(operands[0], nbytes), operands[0]
            for address in operands[1:]:
                with inside():
                    total = self.function(total, self._lent(address, nbytes))
                at = self._checked(total, nbytes // self._dtype.itemsize).address
            if at != out:
                self.device.copy(out, at, nbytes, self._where[1])

    def _lent(self, address: int, nbytes: int) -> Any:
        return borrowed.lend(self._array, address, nbytes, *self._where)

    def _checked(self, total: Any, count: int) -> Buffer:
        """The function's result as a buffer, if its place, dtype and shape are right."""
        result = describe(total, "the result of op")
        if result.device != self.device.ordinal:
            where = f"on GPU {result.device}" if result.device >= 0 else "in host memory"
            raise ArgumentError(f"op returned an array {where}; its arguments are on {self.device}")
        if result.dtype != self._dtype or result.shape != (count,):
            raise ArgumentError(f"op returned {result}; expected {self._dtype.name}[{count}], like its two arguments")
        return result
