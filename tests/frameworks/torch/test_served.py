"""An embedding that servers hold learns what `torch.nn.Embedding` learns from the same gradients."""

from __future__ import annotations

import pathlib
import runpy
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.torch import ServedEmbedding
from hocket.training import SGD, Adagrad, Adam, Client, Range, Rows, serve
from support.worlds import spread

WIDTH, ROWS, STEPS = 4, 40, 5
TABLE = Rows(WIDTH, optimizer=SGD(0.03), rows=ROWS, seed=3)


def batch(step: int, worker: int) -> torch.Tensor:
    """Ids of shape (3, 2); some of them come twice."""
    return torch.from_numpy(np.random.default_rng((step, worker)).integers(0, ROWS // 4, (3, 2)))


def loss(rows: torch.Tensor) -> torch.Tensor:
    assert rows.shape == (3, 2, WIDTH)
    return (rows.sum((1, 2)) - 1).square().sum()


def alone(workers: int) -> torch.Tensor:
    """The weights that one process learns from the gradients of all."""
    dense = torch.nn.Embedding.from_pretrained(torch.from_numpy(TABLE.began(np.arange(ROWS))), freeze=False)
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.03)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(dense(batch(step, worker))) for worker in range(workers)).backward()  # type: ignore[union-attr]
        optimizer.step()
    return dense.weight.detach()


def learns(comm: Communicator) -> None:
    """All ranks serve a part, and work.  A pull may see what others push in the same clock, so all pull before that."""
    server = serve(comm, {"e": TABLE}, on=range(comm.size), works=True)
    with server, Client(server) as client:
        embedding = ServedEmbedding(client, "e")
        assert not list(embedding.parameters()) and repr(embedding) == "ServedEmbedding('e', width=4)"
        for step in range(STEPS):
            rows = embedding(batch(step, comm.rank))
            comm.barrier()
            loss(rows).backward()
            client.tick()
        embedding.wait()
        with torch.no_grad():
            found = embedding(torch.arange(ROWS, dtype=torch.int32))
        assert not found.requires_grad
        comm.barrier()
        torch.testing.assert_close(found, alone(comm.size), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_it_learns_what_one_process_learns(size: int) -> None:
    spread(learns, size, "threads")


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (SGD(0.1, 0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adagrad": (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adam": (Adam(0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
}


def used_again(comm: Communicator) -> None:
    """Twice in a step, and in two micro-batches: one step of the optimizer a tick, by the sum, as torch's."""
    tables = {name: Rows(WIDTH, optimizer=ours, rows=8, seed=3) for name, (ours, _) in OPTIMIZERS.items()}
    with serve(comm, tables, on=[0], works=True) as server, Client(server) as client:
        for name, (_, torchs) in OPTIMIZERS.items():
            embedding, began = ServedEmbedding(client, name), torch.from_numpy(tables[name].began(np.arange(8)))
            dense = torch.nn.Embedding.from_pretrained(began, freeze=False)
            optimizer = torchs(dense.parameters())
            for step in range(4):
                for each in (embedding, dense):
                    for micro in range(2):
                        ids = torch.tensor([1, 2 + micro, 1, 7])
                        (each(ids).square().sum() + each(ids + step % 2 - 1).sin().sum()).backward()
                    if name in ("momentum", "adam"):  # torch's move rows without a gradient, too
                        each(torch.arange(8)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                client.tick()
            found = embedding(torch.arange(8)).detach()
            torch.testing.assert_close(found, dense.weight.detach(), rtol=0, atol=2e-6, msg=name)


def test_an_embedding_that_is_used_several_times_in_a_step() -> None:
    spread(used_again, 1, "threads")


def behind(comm: Communicator) -> None:
    """One worker whose next rows are on their way while it computes: its own pushes are not missed."""
    if comm.rank == 0:
        assert serve(comm, {"e": TABLE}, on=[0]).wait(60)
        return
    with Client(comm, {"e": TABLE}) as client:
        embedding = ServedEmbedding(client, "e")
        embedding.prefetch(batch(0, 0))
        for step in range(STEPS):
            rows = embedding(batch(step, 0))
            embedding.prefetch(batch(step + 1, 0))
            loss(rows).backward()
            client.tick()
        torch.testing.assert_close(embedding(torch.arange(ROWS)), alone(1), rtol=0, atol=1e-6)


def test_rows_that_come_early_have_what_was_pushed_meanwhile() -> None:
    spread(behind, 2, "threads")


def refuses(comm: Communicator) -> None:
    tables = {"e": TABLE, "w": Range(3)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0]).wait(60)
        return
    with Client(comm, tables) as client:
        with pytest.raises(hocket.ArgumentError, match="table 'w' must be Rows"):
            ServedEmbedding(client, "w")
        embedding = ServedEmbedding(client, "e")
        with pytest.raises(hocket.ArgumentError, match="key 40 is unknown"):
            embedding(torch.tensor([3, ROWS]))
        with pytest.raises(hocket.ArgumentError, match="ids must be a tensor of int64"):
            embedding(torch.tensor([0.5]))
        with pytest.raises(hocket.ArgumentError, match="ids must be a tensor of int64 or int32; got a list"):
            embedding([1, 2])
        (embedding(torch.tensor([1])) * float("nan")).sum().backward()
        embedding(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(hocket.ArgumentError, match="not finite"):
            embedding.wait()


def test_what_it_refuses() -> None:
    spread(refuses, 2, "threads")


EXAMPLE = pathlib.Path(__file__).parents[3] / "examples/clicks.py"


def clicks(comm: Communicator) -> None:
    example = runpy.run_path(str(EXAMPLE))
    server = serve(comm, example["TABLES"], on=range(comm.size), works=True)
    with server, Client(server) as client:
        first, last = example["train"](comm, client)
        assert first < 0.85 and last > 0.95, (first, last)


def test_the_example_learns_clicks() -> None:
    spread(clicks, 1, "threads")
