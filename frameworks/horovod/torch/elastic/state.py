"""`TorchState`: models, optimizers, samplers and Python objects that training goes on from."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hocket.horovod.elastic import ObjectState
from hocket.horovod.torch.elastic.sampler import ElasticSampler
from hocket.horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters, broadcast_values

KINDS = torch.nn.Module, torch.optim.Optimizer, ElasticSampler
"""Whose state is saved; of anything else the object itself."""


class TorchState(ObjectState):
    """`TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)`: each is an attribute.

    Copies are kept in this process's memory, so a lost rank's are lost; all ranks have the same.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._kept: dict[str, Any] = {}
        """By name: the state of the last commit."""
        vars(self).update({name: value for name, value in given.items() if isinstance(value, KINDS)})
        self._stateful = [name for name, value in given.items() if isinstance(value, KINDS)]
        plain = {name: value for name, value in given.items() if value is not None and name not in self._stateful}
        super().__init__(broadcast_values, **plain)
        self._keep()

    def save(self) -> None:
        """Copy all of it."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to the copies."""
        for name, state in self._kept.items():
            getattr(self, name).load_state_dict(copy.deepcopy(state))
        super().restore()

    def sync(self) -> None:
        """Take rank 0's, and copy it."""
        for name in self._stateful:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root_rank=0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_values(value.state_dict()))
        super().sync()
        self._keep()

    def reset(self) -> None:
        """Samplers deal out again."""
        for name in self._stateful:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.reset()

    def _keep(self) -> None:
        self._kept = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._stateful}
