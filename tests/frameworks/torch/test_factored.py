"""Weights of fully connected layers go by factors where these are fewer bytes: the same averages, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.torch import DistributedOptimizer
from support.cases import more
from support.worlds import spread

STEPS, IN, HIDDEN, OUT = 5, 3 * 36, 64, 10


class Classifier(torch.nn.Module):
    """A VGG-like one: a convolution, layers of many weights, a weight that is used twice, and one that rests."""

    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.Conv2d(1, 3, 3)
        self.wide = torch.nn.Linear(IN, HIDDEN)
        self.twice = torch.nn.Linear(HIDDEN, HIDDEN)
        self.sometimes = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.alone = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.last = torch.nn.Linear(HIDDEN, OUT)
        dice = np.random.default_rng(3)  # not torch's numbers, which ranks that are threads share
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.from_numpy(dice.normal(size=p.shape) / 8))

    def forward(self, x: torch.Tensor, sometimes: bool = True, alone: bool = True) -> torch.Tensor:
        x = torch.tanh(self.wide(self.front(x).flatten(1)))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = x + self.sometimes(x) if sometimes else x
        x = x + self.alone(x) + self.alone.weight.sum(0) if alone else x  # not its product alone
        return self.last(x)  # type: ignore[no-any-return]


def gradients(comm: Communicator, factors: Any, passes: int = 1, **options: Any) -> tuple[list[Any], Any]:
    """The averages of some steps, and the optimizer's report."""
    model = Classifier().double()  # else rounding shows after some steps
    made = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1e-3), model, group=comm, passes=passes, factors=factors, **options
    )
    found: list[Any] = []
    for step in range(STEPS):
        made.zero_grad()
        for i in range(passes):
            dice = np.random.default_rng([step, i, comm.rank])
            samples = {0: 4 - comm.rank % 2, 3: 2 + comm.rank % 2}.get(step, 4)
            x = torch.from_numpy(dice.normal(size=(samples, 1, 8, 8)).astype(np.float64))
            some = step < 2 or (step == 3 and comm.rank == 0)
            model(x, sometimes=some).square().mean().backward()
        if options.get("barrier", True):
            made.synchronize()
            found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        made.step()
    made.finish()
    found += [p.detach().clone() for p in model.parameters()]
    report = {row.name: row for row in made.report()}
    made.close()
    return found, report


def averages_are_the_same(comm: Communicator) -> None:
    for passes, options in ((1, {}), (2, {"codec": None, "fuse": 0}), (1, {"barrier": False})):
        wanted, _ = gradients(comm, None, passes, **options)
        for factors in ("auto", ["wide.weight", "twice.weight", "sometimes.weight"]):
            found, report = gradients(comm, factors, passes, **options)
            for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
                assert (a is None) == (b is None), (i, a, b)
                if a is not None:
                    scale = float(b.abs().max())
                    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-12 * scale, err_msg=f"{i}")
                    assert comm.check_equal(a.numpy()) == {}, "all ranks have the same bits"
            samples = 4 * passes
            few = 8 * (1 + samples * (IN + HIDDEN))
            assert report["wide.weight"].bytes == (few if comm.size > 1 or factors != "auto" else 8 * IN * HIDDEN)
            dense = report["alone.weight"].bytes
            assert dense == 8 * HIDDEN * HIDDEN
            dear = 2 * samples * (HIDDEN + HIDDEN) * comm.size >= 2 * HIDDEN * HIDDEN  # two uses: twice the samples
            assert factors != "auto" or (report["twice.weight"].bytes == dense) == (dear or comm.size == 1)


def fewer_bytes_are_sent(comm: Communicator) -> None:
    """By the communicator's counters: of the chosen layers nothing goes as an allreduce."""
    def moved(factors: Any) -> dict[str, int]:
        apart = comm.dup()
        model = torch.nn.Linear(400, 300, bias=False)
        made = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, group=apart, factors=factors)
        for _ in range(3):
            made.zero_grad()
            model(torch.ones(2, 400)).sum().backward()
            made.step()
        found = made._gradients.averages.report()[0].bytes
        made.close()
        return found  # type: ignore[no-any-return]

    assert moved(None) == 4 * 400 * 300 and moved("auto") == 4 * (1 + 2 * 700)


def refused(comm: Communicator) -> None:
    model = Classifier()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for factors, text, options in (
        (["front.weight"], "names 'front.weight', a weight of Conv2d: only gradients of torch.nn.Linear's", {}),
        (["x"], "factors= names 'x', a weight of no module", {}),
        ("auto", 'needs another order than "agreed"', {"order": "agreed"}),
        ("auto", "are products, which round: leave it out, or exact=True", {"exact": True}),
        (None, "verify_every=-1 must be a number of steps, or 0: never", {"verify_every": -1}),
    ):
        with pytest.raises(ArgumentError, match=text):
            DistributedOptimizer(sgd, model, group=comm, factors=factors, **options)
    with pytest.raises(ArgumentError, match="needs the model itself"):
        DistributedOptimizer(sgd, model.named_parameters(), group=comm, factors="auto")
    made = DistributedOptimizer(sgd, model, group=comm.dup(), factors=["alone.weight"])
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    made.step()
    made.zero_grad()
    with pytest.raises(ArgumentError, match="names 'alone.weight', whose gradient is not the product of its module's"):
        model(torch.ones(2, 1, 8, 8)).sum().backward()


def more_samples_than_there_is_room_for(comm: Communicator) -> None:
    model = Classifier()
    made = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, group=comm, factors="auto")
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    made.step()
    made.zero_grad()
    with pytest.raises(ArgumentError, match="3 samples in a step, and factors= has room for 2, the most of the first"):
        model(torch.ones(3, 1, 8, 8)).sum().backward()


@pytest.mark.parametrize(("size", "transport"), [*more((2, "shm")), (3, "tcp")])
def test_factors(size: int, transport: str) -> None:
    spread((averages_are_the_same, fewer_bytes_are_sent, refused, more_samples_than_there_is_room_for), size, transport)


def test_alone() -> None:
    hocket.local_world(1).run(averages_are_the_same)
