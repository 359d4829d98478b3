"""OD-SGD: equal to SGD where it must be, one step behind where it is meant to be, and as good on ten classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from hocket.training import Delayed, Scheduler
from support.worlds import same, spread

Arrays = dict[str, Any]


def start() -> Arrays:
    dice = np.random.default_rng(2)
    return {"first": dice.standard_normal((64, 24)) / 8, "second": dice.standard_normal((24, 10)) / 5}


CLASSES = np.random.default_rng(1).standard_normal((10, 64))
Y = np.arange(1797) % 10
X = CLASSES[Y] + 2 * np.random.default_rng(3).standard_normal((1797, 64))


def gradients(w: Arrays, rows: Any) -> Arrays:
    """Gradients of the cross-entropy of a network with one hidden layer."""
    x, y = X[rows], Y[rows]
    hidden = np.maximum(x @ w["first"], 0)
    z = hidden @ w["second"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ w["second"].T) * (hidden > 0)
    return {"first": x.T @ back, "second": hidden.T @ p}


def accuracy(w: Arrays, rows: Any) -> float:
    return float((np.argmax(np.maximum(X[rows] @ w["first"], 0) @ w["second"], 1) == Y[rows]).mean())


def batch(step: int, rank: int, size: int) -> Any:
    return np.random.default_rng(step).permutation(1400)[rank * 64 // size : (rank + 1) * 64 // size]


def sgd(comm: Communicator, steps: int, lr: float) -> Arrays:
    w = start()
    for step in range(steps):
        for name, gradient in gradients(w, batch(step, comm.rank, comm.size)).items():
            w[name] -= lr * comm.allreduce(gradient, "avg")
    return w


def delayed(comm: Communicator, steps: int, lr: float, equal: bool = False, **options: Any) -> Arrays:
    w = start()
    made = Delayed(Scheduler(comm, slice=4096), w, lr, **options)
    for step in range(steps):
        made.step(gradients(w, batch(step, 0, 1) if equal else batch(step, comm.rank, comm.size)))
    made.finish()
    return w


def equal_gradients_are_sgd(comm: Communicator) -> None:
    """x_i = W_{t+1}, bit for bit."""
    w = start()
    for step in range(30):
        for name, gradient in gradients(w, batch(step, 0, 1)).items():
            w[name] -= 0.3 * gradient
    for name, x in delayed(comm, 30, 0.3, equal=True).items():
        same(x, w[name], name)


def a_schedule_is_sgds(comm: Communicator) -> None:
    """Each step has the rate and the momentum that stood when it was sent, whatever stands when its average arrives."""
    for rates in ([0.3 * 0.5**step for step in range(8)], [0.01 * step for step in range(8)]):  # decay, and a warm-up
        w, alone = start(), start()
        made = Delayed(Scheduler(comm), w, lr=1.0)
        for step, rate in enumerate(rates):
            made.lr = rate
            made.step(gradients(w, batch(step, 0, 1)))
            for name, gradient in gradients(alone, batch(step, 0, 1)).items():
                alone[name] -= rate * gradient
            for name in w:
                same(w[name], alone[name], f"{name} after {step + 1} steps")
    w, at, velocity = {"w": np.ones(2)}, 1.0, 0.0
    made = Delayed(Scheduler(comm), w, lr=1.0)
    for rate, momentum in ((0.5, 0.0), (0.25, 0.5), (0.125, 0.75), (0.5, 0.5)):  # the gradient is always 1
        made.lr, made.momentum = rate, momentum
        made.step({"w": np.ones(2)})
        velocity = momentum * velocity + 1 if momentum else 0.0
        at -= rate * (velocity if momentum else 1)
    made.lr, made.momentum = 100.0, 0.9
    made.finish()
    assert w["w"].tolist() == [at, at]


def all_warmup_is_sgd(comm: Communicator) -> None:
    for name, x in delayed(comm, 20, 0.3, warmup=20).items():
        same(x, sgd(comm, 20, 0.3)[name], name)


def one_behind(comm: Communicator) -> None:
    """With local_lr=0 the gradient of step t is that of the weights after step t - 2."""
    w, seen = {"w": np.zeros(1)}, []
    made = Delayed(Scheduler(comm), w, lr=1.0, local_lr=0.0)
    for _ in range(5):
        seen.append(float(w["w"][0]))
        made.step({"w": np.ones(1)})
    assert seen == [0.0, 0.0, -1.0, -2.0, -3.0] and float(made.weights["w"][0]) == -4.0
    made.finish()
    assert float(w["w"][0]) == -5.0


def as_good(comm: Communicator) -> None:
    test = slice(1400, None)
    wanted = accuracy(sgd(comm, 150, 0.5), test)
    for options in ({}, {"momentum": 0.5}):
        w = delayed(comm, 150, 0.25 if "momentum" in options else 0.5, **options)
        assert accuracy(w, test) > wanted - 0.02, (options, accuracy(w, test), wanted)
        same(comm.broadcast(w["first"].copy()), w["first"], "the same bits on all ranks")


def goes_on(comm: Communicator) -> None:
    """From what was saved, as if nothing had been: the momentum too, and no second warmup."""
    ways, options = [], {"momentum": 0.5, "warmup": 3}
    for restarts in (False, True):
        w = start()
        made = Delayed(Scheduler(comm), w, 0.2, **options)
        for step in range(12):
            if step == 6:
                saved = made.state_dict()
                if restarts:
                    w = {name: x.copy() for name, x in w.items()}
                    made = Delayed(Scheduler(comm), w, 0.2, **options)
                    made.load_state_dict(saved)
            made.step(gradients(w, batch(step, comm.rank, comm.size)))
        made.finish()
        ways.append(w)
    for name, x in ways[0].items():
        same(ways[1][name], x, name)
    with pytest.raises(ArgumentError, match=r"the momentum of 'first' is none, the saved one of shape \(64, 24\)"):
        Delayed(Scheduler(comm), {"first": np.zeros((64, 24)), "second": w["second"]}, 0.2).load_state_dict(saved)
    made._velocity["first"] += comm.rank
    made.load_state_dict({**saved, "velocity": made._velocity})
    with pytest.raises(MismatchError, match="the digest of the parameters and the momentum"):
        made.step(gradients(w, batch(0, 0, 1)))


def changes_are_kept(comm: Communicator) -> None:
    """Weights that others load or clamp: those before the first step, those around a state, and no others."""
    for dtype in (np.float32, np.float64):
        w = {"w": np.zeros(2, dtype), "v": np.zeros((), dtype)}
        made = Delayed(Scheduler(comm), w, lr=1.0, momentum=0.5)
        w["w"][...] = 8
        zero = {name: np.zeros_like(x) for name, x in w.items()}
        for _ in range(2):
            made.step(zero)
        state = made.state_dict()
        assert w["w"].tolist() == [8, 8]
        w["w"] /= 2
        made.load_state_dict(state)
        made.step(zero)
        for finished in (False, True):  # while an average travels, and while none does
            if finished:
                made.finish()
            w["v"][...] -= 1
            with pytest.raises(ArgumentError, match="'v' was changed since the last step"):
                made.step(zero)
            w["v"][...] += 1
            made.step(zero)
        made.finish()
        assert w["w"].tolist() == [4, 4] and w["v"] == 0


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (2, "threads"), (4, "threads")])
def test_equal_gradients_are_sgd(size: int, transport: str) -> None:
    spread([equal_gradients_are_sgd, a_schedule_is_sgds], size, transport)


def test_delayed() -> None:
    spread([all_warmup_is_sgd, one_behind, as_good, goes_on, changes_are_kept], 2, "shm")


def test_wrong_names() -> None:
    def wrong(comm: Communicator) -> str:
        with pytest.raises(ArgumentError, match=r"differ in names: v, w") as error:
            Delayed(Scheduler(comm), {"w": np.zeros(1)}, 1.0).step({"v": np.zeros(1)})
        w = {"w": np.zeros(1)}
        delayed = Delayed(Scheduler(comm), w, 1.0)
        w["w"] = w["w"] - 1
        with pytest.raises(ArgumentError, match="'w' is another array than at the beginning"):
            delayed.step({"w": np.zeros(1)})
        return str(error.value)

    with hocket.local_world(1) as world:
        world.run(wrong)


def test_ranks_that_begin_apart_are_told() -> None:
    """They would stay apart, without a word."""
    def apart(comm: Communicator) -> None:
        with pytest.raises(MismatchError, match=r"the digest of the parameters and the momentum is \d+ on rank 1"):
            Delayed(Scheduler(comm), {"w": np.full(2, comm.rank, np.float32)}, 1.0).step({"w": np.zeros(2, np.float32)})
        with pytest.raises(MismatchError, match=r"momentum is 0\.5 on rank 1, 0\.0 on rank 0"):
            Delayed(Scheduler(comm), {"w": np.zeros(2)}, 1.0, momentum=comm.rank / 2).step({"w": np.zeros(2)})

    with hocket.local_world(2) as world:
        world.run(apart)


def test_back_to_a_checkpoint_after_a_step() -> None:
    """The step's gradient is waited for and forgotten, also where its average is no number."""

    def program(comm: Communicator) -> Any:
        w = {"w": np.zeros(3), "v": np.zeros(2)}
        made = Delayed(Scheduler(comm), w, 0.5, momentum=0.5)
        made.step({name: x - 1 for name, x in w.items()})
        state, kept = made.state_dict(), {name: x.copy() for name, x in w.items()}
        for bad in (2.0, np.nan):
            made.step({name: x * bad for name, x in w.items()})
            for name, x in w.items():
                x[...] = kept[name]
            made.load_state_dict(state)
        made.step({name: x - 1 for name, x in w.items()})
        made.finish()
        return w["w"].tolist()

    assert hocket.local_world(2).run(program) == [[1.0] * 3] * 2


def test_tensors_of_torch() -> None:
    def program(comm: Communicator) -> Any:
        layer = torch.nn.utils.skip_init(torch.nn.Linear, 2, 1, bias=False)
        with torch.no_grad():
            layer.weight.zero_()
        made = Delayed(Scheduler(comm), dict(layer.named_parameters()), 0.5)
        for _ in range(20):
            layer.zero_grad()
            ((layer.weight - comm.rank) ** 2 / 2).sum().backward()
            made.step({name: p.grad for name, p in layer.named_parameters()})
        made.finish()
        with pytest.raises(ArgumentError, match=r"'w' must be .* a dtype that NumPy has; got torch.bfloat16\(2,\)"):
            Delayed(Scheduler(comm), {"w": torch.zeros(2, dtype=torch.bfloat16)}, 0.5)
        return layer.weight.tolist()

    assert hocket.local_world(2).run(program) == [[[pytest.approx(0.5, abs=1e-3)] * 2]] * 2
