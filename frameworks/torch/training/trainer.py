"""Hugging Face's Trainer: a callback that makes an outer step after each step of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from hocket.torch.training.parameters import Parameters, parameters
from hocket.training import Outer, Report


class OuterCallback(TrainerCallback):  # type: ignore[misc]
    """`Trainer(callbacks=[OuterCallback(lambda p: DiLoCo(comm, p, every=100))])`.

    `make`: the outer loop of the model's parameters, made when the training begins.  `reports`: of the rounds.  The
    Trainer saves no callback's arrays: keep `outer.state_dict()` yourself, and give it to `make`'s loop.
    """

    def __init__(self, make: Callable[[Parameters], Outer]) -> None:
        self.make = make
        self.outer: Outer | None = None
        self.reports: list[Report] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self.outer = self.make(parameters(model))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        assert self.outer is not None
        report = self.outer.step()
        self.reports += [report] if report else []

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        assert self.outer is not None
        self.reports += self.outer.finish()
