"""The task that all ways train: handwritten digits, and a network of 64-1024-1024-10 (1,126,410 parameters)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hocket.lab.outer.digits import EACH, MOMENTUM, RATE, data

SITES, EVERY, WIDTH = 4, 20, 1024


class Learner:
    """One site: a model with the same first weights as everybody's, an optimizer, and images of its own choice."""

    def __init__(self, site: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        sizes = [(64, WIDTH), (WIDTH, WIDTH), (WIDTH, 10)]
        first, second, third = (nn.Linear(*size) for size in sizes)
        self.model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self._known, self._dice = data(1, "iid"), np.random.default_rng([3, site])

    def step(self) -> None:
        taken = self._dice.integers(0, self._known.digits.shape[1], EACH)
        images, digits = self._known.images[0, taken], self._known.digits[0, taken]
        self.optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(self.model(torch.from_numpy(images)), torch.from_numpy(digits))
        loss.backward()
        self.optimizer.step()

    def accuracy(self) -> float:
        """The accuracy on images that nobody has learned from, in percent."""
        with torch.no_grad():
            answers = self.model(torch.from_numpy(self._known.tests[0])).argmax(-1).numpy()
        return 100 * float((answers == self._known.answers[0]).mean())

    def weights(self) -> dict[str, Any]:
        """The parameters' own memory, by name."""
        return {name: each.data.numpy() for name, each in self.model.named_parameters()}
