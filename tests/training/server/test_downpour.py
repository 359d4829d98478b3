"""Workers that talk every few steps: each gradient counts once, and what is fetched is as old as it is said."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import SGD, Client, Downpour, Range, Rows, serve
from support.worlds import same, spread


def downpours(comm: Communicator) -> None:
    tables = {"w": Range(5, dtype="float64", optimizer=SGD(1.0)), "e": Rows(2)}
    with serve(comm, tables, on=range(comm.size), clock="async", works=True) as server, Client(server) as client:
        dice = np.random.default_rng(comm.rank)
        gradients = dice.integers(-8, 8, (11, 5)).astype(np.float64)
        pushes = []
        push = client.push
        client.push = lambda *words, **how: pushes.append(words[1].copy()) or push(*words, **how)  # type: ignore[method-assign]
        worker = Downpour(client, "w", rate=1.0, n_push=3, n_fetch=4)
        for gradient in gradients:
            worker.step(gradient)
        assert len(pushes) == 3, "every third step"
        worker.finish()
        same(sum(pushes), gradients.sum(0), "each once")
        comm.barrier()
        everything = comm.allreduce(gradients.sum(0))
        same(client.pull("w"), -everything, "of all workers")
        comm.barrier()
        with pytest.raises(hocket.ArgumentError, match="needs a Range"):
            Downpour(client, "e", rate=1.0)
        with pytest.raises(hocket.ArgumentError, match="n_fetch=0"):
            Downpour(client, "w", rate=1.0, n_fetch=0)


def test_every_gradient_counts_once() -> None:
    spread(downpours, 3, "threads")


def fetches(comm: Communicator) -> None:
    """A worker alone, whose server's optimizer is its own: what it fetches is its own past, n_fetch steps old."""
    tables = {"w": Range(1, optimizer=SGD(1.0))}
    with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
        worker, seen = Downpour(client, "w", rate=0.0, n_push=1, n_fetch=2), []
        held = worker.parameters
        for _ in range(7):
            worker.step(np.ones(1))
            seen.append(float(worker.parameters[0]))
        assert seen == [0, 0, 0, -2, -2, -4, -4], seen
        worker.finish()
        assert worker.parameters[0] == -7 and held is worker.parameters, "what a model holds are the parameters"
        with pytest.raises(hocket.ArgumentError, match=r"the gradient has shape \(\), table 'w' \(1,\)"):
            worker.step(1.0)


def test_what_is_fetched_comes_later() -> None:
    spread(fetches, 1, "threads")
