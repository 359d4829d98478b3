"""Ray Train: a backend for training functions that call hocket themselves, on NumPy arrays or any others.

(`TorchConfig(backend="hocket")` is for those that use torch.distributed; it needs nothing of this.)
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

import hocket
from hocket.ray.store import join

_Config: Any = BackendConfig
_Backend: Any = Backend


@dataclasses.dataclass
class HocketConfig(_Config):  # type: ignore[misc]
    """DataParallelTrainer(train, backend_config=HocketConfig(), scaling_config=ScalingConfig(num_workers=4)).

    In `train`, `hocket.communicator()` is the communicator of all workers, and `hocket.allreduce` and so on use it.
    Ranks are Ray Train's world ranks.  When Ray Train starts its workers again, it is a new one.

    `timeout_s`: seconds for all workers to come.  `transport`: names to use, best first ("shm,tcp"); default all.
    """

    timeout_s: float = 60.0
    transport: str | None = None

    @property
    def backend_cls(self) -> Any:
        return HocketBackend


class HocketBackend(_Backend):  # type: ignore[misc]
    """Ray Train calls this, in the driver or in its controller."""

    def on_start(self, worker_group: Any, backend_config: HocketConfig) -> None:
        job, size = f"train-{uuid.uuid4().hex}", len(worker_group)
        options = {"timeout": backend_config.timeout_s, "transport": backend_config.transport}
        ray.get([
            worker_group.execute_single_async(rank, _enter, job, rank, size, options) for rank in range(size)
        ])  # fmt: skip

    def on_shutdown(self, worker_group: Any, backend_config: HocketConfig) -> None:
        worker_group.execute(_leave)


def _enter(job: str, rank: int, size: int, options: dict[str, Any]) -> None:
    join(job, rank, size, make_default=True, **options)


def _leave() -> None:
    hocket.communicator().close()
