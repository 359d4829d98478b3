"""Lightning: a callback that makes an outer step after each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback

from hocket.torch.compressed.states import with_arrays, with_tensors
from hocket.torch.training.parameters import Parameters, parameters
from hocket.training import Outer, Report


class OuterCallback(Callback):  # type: ignore[misc]
    """`Trainer(callbacks=[OuterCallback(lambda p: DiLoCo(comm, p, every=100))])`.

    `make`: the outer loop of the module's parameters, made when the training begins.  `count`: samples or tokens of a
    batch, for `weight="count"`; those of batches whose gradients accumulate are added up.  Its state goes
    into Lightning's checkpoints.  `reports`: of the rounds.
    """

    def __init__(self, make: Callable[[Parameters], Outer], count: Callable[[Any], int] | None = None) -> None:
        self.make, self.count = make, count
        self.outer: Outer | None = None
        self.reports: list[Report] = []
        self._state: dict[str, Any] | None = None
        self._steps = self._counted = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.outer = self.make(parameters(pl_module))
        self._steps, self._counted = trainer.global_step, 0
        if self._state is not None:
            self.outer.load_state_dict(self._state)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.outer is not None
        self._counted += 1 if self.count is None else self.count(batch)
        if trainer.global_step == self._steps:  # gradients accumulate: no inner step was made
            return
        self._steps = trainer.global_step
        report = self.outer.step(1 if self.count is None else self._counted)
        self._counted = 0
        self.reports += [report] if report else []

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.outer is not None
        self.reports += self.outer.finish()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.outer is None else with_tensors(self.outer.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = with_arrays(state_dict) or None
