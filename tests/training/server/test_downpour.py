"""Workers that talk every few steps: each gradient counts once, and what is fetched is as old as it is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import SGD, Adagrad, Client, Downpour, Range, Rows, serve
from support.worlds import same, spread


def downpours(comm: Communicator) -> None:
    tables = {
        "w": Range(5, dtype="float64", optimizer=SGD(1.0)), "b": Range((2, 2), dtype="float64", optimizer=SGD(1.0)),
        "e": Rows(2), "m": Range(5, dtype="float64", mean=True),
    }  # fmt: skip
    with serve(comm, tables, on=range(comm.size), clock="bsp", works=True) as server, Client(server) as client:
        dice = np.random.default_rng(comm.rank)
        gradients = dice.integers(-8, 8, (11, 9)).astype(np.float64)
        pushes = []
        push = client.push
        client.push = lambda *words, **how: pushes.append((words[0], words[1].copy())) or push(*words, **how)  # type: ignore[method-assign]
        theta = {"w": np.full(5, 7.0), "b": np.full((2, 2), 7.0)}
        worker = Downpour(client, theta, optimizer=SGD(1.0), n_push=3, n_fetch=4)
        assert not theta["w"].any() and not theta["b"].any(), "the tables' values"
        comm.barrier()
        for gradient in gradients:
            worker.step({"b": gradient[5:].reshape(2, 2), "w": gradient[:5]})
        worker.step({"b": None, "w": np.zeros(5)})
        assert [name for name, _ in pushes] == ["b", "w"] * 4 or [name for name, _ in pushes] == ["w", "b"] * 4
        worker.finish()
        same(sum(each for name, each in pushes if name == "w"), gradients[:, :5].sum(0), "each once")
        comm.barrier()
        everything = comm.allreduce(gradients.sum(0))
        same(client.pull("w"), -everything[:5], "of all workers")
        same(client.pull("b").ravel(), -everything[5:], "of all workers")
        comm.barrier()
        for wrong, said in (
            ({"e": np.zeros((1, 2))}, "needs Ranges without mean; table 'e' is"),
            ({"m": np.zeros(5)}, "table 'm' is mean=True"),
            ({"w": np.zeros(4)}, r"parameter 'w' is float64\[4\], and its table Range\(\(5,\)"),
            ({"w": np.zeros(5, np.float32)}, r"parameter 'w' is float32\[5\]"),
        ):
            with pytest.raises(hocket.ArgumentError, match=said):
                Downpour(client, wrong, optimizer=SGD(1.0))
        with pytest.raises(hocket.ArgumentError, match="n_fetch=0"):
            Downpour(client, {"w": np.zeros(5)}, optimizer=SGD(1.0), n_fetch=0)


def test_every_gradient_counts_once() -> None:
    spread(downpours, 3, "threads")


def fetches(comm: Communicator) -> None:
    """A worker alone, whose server's optimizer is its own: what it fetches is its own past, n_fetch steps old."""
    tables = {"w": Range(1, optimizer=SGD(1.0))}
    with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
        held = np.ones(1, np.float32)
        worker, seen = Downpour(client, {"w": held}, optimizer=SGD(1e-30), n_push=1, n_fetch=2), []
        for _ in range(7):
            worker.step({"w": np.ones(1)})
            seen.append(round(float(held[0]), 6))
        assert seen == [0, 0, 0, -2, -2, -4, -4], seen
        worker.finish()
        assert held[0] == -7, "what a model holds are the parameters"
        with pytest.raises(hocket.ArgumentError, match=r"the gradient of 'w' has shape \(\), its table \(1,\)"):
            worker.step({"w": 1.0})
        with pytest.raises(hocket.ArgumentError, match="gradients must be by name, of w; got"):
            worker.step(np.ones(1))  # type: ignore[arg-type]


def test_what_is_fetched_comes_later() -> None:
    spread(fetches, 1, "threads")


def trains(comm: Communicator, optimizer: Any) -> float:
    """Two workers, each with half of the data, of a badly scaled least-squares problem: the loss at the end."""
    dice = np.random.default_rng(3)
    scales = np.array([1, 0.2, 0.04, 0.008])
    x, wanted = dice.normal(size=(64, 4)) * scales, np.ones(4) / scales
    y, mine = x @ wanted, slice(comm.rank, None, comm.size)
    tables = {"w": Range(4, dtype="float64", optimizer=optimizer)}
    server = serve(comm, tables, on=range(comm.size), clock="async", works=True)
    with server, Client(server) as client:
        theta = {"w": np.zeros(4)}
        worker = Downpour(client, theta, optimizer=optimizer, n_push=2, n_fetch=3)
        for _ in range(400):
            worker.step({"w": x[mine].T @ (x[mine] @ theta["w"] - y[mine]) / 32})
        worker.finish()
        comm.barrier()
        return float(np.square(x @ client.pull("w") - y).mean())


def converges(comm: Communicator) -> None:
    """Adagrad finds a rate for each parameter; SGD, with a large one that does not diverge, does not come near."""
    began = 4.0
    adagrad, sgd = trains(comm, Adagrad(5.0)), trains(comm, SGD(0.2))
    assert adagrad < 0.01 * began < 0.1 * sgd, (adagrad, sgd)


def test_adagrad_converges_where_scales_differ() -> None:
    spread(converges, 2, "threads")
