from collections.abc import Sequence
from typing import Any

from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.calls.ops import Op
from hocket.collectives.quick.shortcut import ShortWay
from hocket.kernels.codecs import Codec

class Collectives(ShortWay):
    def allreduce(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "any",
        codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None, axis: int | None = None,
    ) -> Any: ...
    def reduce(
        self, x: Any, root: int = 0, op: Op = "sum", out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        order: str = "any", axis: int | None = None,
    ) -> Any: ...
    def reduce_scatter(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "any",
        codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None, axis: int | None = None,
    ) -> Any: ...
    def reduce_scatterv(
        self, x: Any, counts: Sequence[int], op: Op = "sum", out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        order: str = "any", codec: str | Codec | None = None, residual: Any = None, owner_residual: Any = None,
        axis: int | None = None,
    ) -> Any: ...
    def scan(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "rank",
    ) -> Any: ...
    def exscan(
        self, x: Any, op: Op = "sum", out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None, order: str = "rank",
    ) -> Any: ...
    def broadcast(
        self, x: Any, root: int = 0, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None,
    ) -> Any: ...
    def allgather(
        self, x: Any, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any: ...
    def allgatherv(
        self, x: Any, counts: Sequence[int], out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any: ...
    def gather(
        self, x: Any, root: int = 0, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any: ...
    def gatherv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any: ...
    def scatter(
        self, x: Any = None, root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any: ...
    def scatterv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, async_op: bool = False,
        timeout: float | None = None, algorithm: str | Algorithm | None = None, transport: str | None = None,
    ) -> Any: ...
    def alltoall(
        self, x: Any, out: Any = None, async_op: bool = False, timeout: float | None = None,
        algorithm: str | Algorithm | None = None, transport: str | None = None,
        codec: str | Codec | None = None, residual: Any = None,
    ) -> Any: ...
    def alltoallv(
        self, x: Any, send_counts: Sequence[int], recv_counts: Sequence[int], out: Any = None,
        async_op: bool = False, timeout: float | None = None, algorithm: str | Algorithm | None = None,
        transport: str | None = None, codec: str | Codec | None = None, residual: Any = None,
    ) -> Any: ...
    def barrier(
        self, async_op: bool = False, timeout: float | None = None, algorithm: str | Algorithm | None = None,
        transport: str | None = None,
    ) -> Any: ...
