"""Layers that are cut have the results and gradients of whole ones; so have sums of sufficient factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.torch.training import parameters
from hocket.torch.training import pipeline as of_torch_stages
from hocket.torch.training import tensor as of_torch
from hocket.training import Adam, ColumnParallel, Mesh, Pipeline, RowParallel, Sharded
from hocket.training.large.factors import average, costs
from hocket.training.large.stage import Chain, Recomputed
from support.worlds import same, spread

ROWS, WIDTH, HIDDEN = 12, 6, 24
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def layers() -> tuple[nn.Linear, nn.Linear, torch.Tensor, torch.Tensor]:
    """Two layers, x, and the gradient of y: the same on all ranks."""
    torch.manual_seed(7)
    return nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def whole() -> dict[str, Any]:
    """The results of one rank."""
    first, second, x, dy = layers()
    x.requires_grad_()
    y = second(torch.relu(first(x)))
    y.backward(dy)
    grads = {"w1": first.weight, "b1": first.bias, "w2": second.weight, "b2": second.bias, "x": x}
    found = {name: each.grad.numpy() for name, each in grads.items() if each.grad is not None}
    return {"y": y.detach().numpy(), **found}


def compared(found: dict[str, Any], comm: Any, sequence: bool) -> None:
    wanted, cut = whole(), slice(comm.rank * HIDDEN // comm.size, (comm.rank + 1) * HIDDEN // comm.size)
    rows = slice(comm.rank * ROWS // comm.size, (comm.rank + 1) * ROWS // comm.size) if sequence else slice(None)
    parts = {"y": rows, "x": rows, "w1": cut, "b1": cut, "w2": (slice(None), cut), "b2": slice(None)}
    for name, where in parts.items():
        np.testing.assert_allclose(found[name], wanted[name][where], err_msg=name, **CLOSE)


def mine(x: torch.Tensor, comm: Any, sequence: bool) -> torch.Tensor:
    return x[comm.rank * ROWS // comm.size : (comm.rank + 1) * ROWS // comm.size] if sequence else x


def in_numpy(comm: Any) -> None:
    for sequence in (False, True):
        first, second, x, dy = layers()
        a, b = (
            kind(each.weight.detach().numpy().T, each.bias.detach().numpy(), comm, sequence=sequence)
            for kind, each in ((ColumnParallel, first), (RowParallel, second))
        )
        hidden, kept = a.forward(mine(x, comm, sequence).numpy())
        y, kept_too = b.forward(np.maximum(hidden, 0))
        a.forward(mine(dy, comm, sequence).numpy())  # another micro-batch on its way
        for _ in range(2):
            a.clear()
            b.clear()
            dx = a.backward(b.backward(mine(dy, comm, sequence).numpy(), kept_too) * (hidden > 0), kept)
        found = {"w1": a.gradients["weight"].T, "b1": a.gradients["bias"], "w2": b.gradients["weight"].T,
                 "b2": b.gradients["bias"], "y": y, "x": dx}  # fmt: skip
        compared(found, comm, sequence)
        assert a.parameters["weight"].size * comm.size == WIDTH * HIDDEN


def in_torch(comm: Any) -> None:
    for sequence in (False, True):
        first, second, x, dy = layers()
        a = of_torch.ColumnParallel(first, comm, sequence=sequence)
        b = of_torch.RowParallel(second, comm, sequence=sequence)
        x = mine(x, comm, sequence).clone().requires_grad_()
        y = b(torch.relu(a(x)))
        y.backward(mine(dy, comm, sequence))
        grads = {"w1": a.weight, "b1": a.bias, "w2": b.weight, "b2": b.bias, "x": x}
        found = {name: each.grad.numpy() for name, each in grads.items() if each is not None and each.grad is not None}
        compared({**found, "y": y.detach().numpy()}, comm, sequence)


def bytes_are_the_same_either_way(comm: Any) -> None:
    """An allreduce each way, or an allgather and a reduce-scatter each way."""
    sent = []
    for sequence in (False, True):
        mesh = Mesh(comm, {"tensor": comm.size})
        a = ColumnParallel(np.ones((WIDTH, HIDDEN), np.float32), None, mesh["tensor"], sequence=sequence)
        b = RowParallel(np.ones((HIDDEN, WIDTH), np.float32), None, mesh["tensor"], sequence=sequence)
        x = np.ones((ROWS // comm.size if sequence else ROWS, WIDTH), np.float32)
        before = mesh["tensor"].sent()
        hidden, kept = a.forward(x)
        a.backward(b.backward(*b.forward(hidden)), kept)
        sent.append(mesh["tensor"].sent() - before)
    assert sent == [pytest.approx(2 * 2 * ROWS * WIDTH * 4 * (comm.size - 1) / comm.size)] * 2


def a_pair_is_computed_again(comm: Any) -> None:
    """The same bits, of the input alone, without another message: the sum at the end is not made again."""
    for sequence in (False, True):
        found = []
        for kind in (Recomputed, lambda pair: pair):
            first, second, x, dy = layers()
            apart = comm.dup()
            pair = [
                kind(each.weight.detach().numpy().T, each.bias.detach().numpy(), apart, sequence=sequence)
                for kind, each in ((ColumnParallel, first), (RowParallel, second))
            ]
            stage = kind(Chain([pair[0], Relu(), pair[1]]))
            for _ in range(2):
                y, kept = stage.forward(mine(x, comm, sequence).numpy())
                before = sum(row.calls for row in apart.stats())
                dx = stage.backward(mine(dy, comm, sequence).numpy(), kept)
            calls = sum(row.calls for row in apart.stats()) - before
            found.append((calls, [y, dx, *pair[0].gradients.values(), *pair[1].gradients.values()]))
        assert found[0][0] == found[1][0] + sequence, found  # whose rows are gathered again
        for got, wanted in zip(found[0][1], found[1][1], strict=True):
            same(got, wanted, f"sequence {sequence}")


class Relu:
    def forward(self, x: Any) -> Any:
        return np.maximum(x, 0), x > 0

    def backward(self, dy: Any, kept: Any) -> Any:
        return dy * kept


def test_torchs_dropout_is_drawn_again() -> None:
    """By the state of torch's random numbers, which goes on as without."""

    def program(comm: hocket.Communicator) -> None:
        found = []
        for recompute in (False, True):
            torch.manual_seed(3)
            module = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Dropout(0.5), nn.Linear(HIDDEN, 1))
            pipe = Pipeline(of_torch_stages.Stage(module), comm, micro=4, schedule="gpipe", recompute=recompute)
            targets = torch.ones(ROWS, 1).chunk(4)
            losses = [
                pipe.step(np.ones((ROWS, WIDTH), np.float32), of_torch_stages.loss(nn.functional.mse_loss, targets))
                for _ in range(2)
            ]
            found.append((losses, [p.grad.tolist() for p in module.parameters()]))
        assert found[0] == found[1]

    hocket.local_world(1).run(program)


def a_torch_model_in_shards(comm: Any) -> None:
    """Its parameters change in place; as by torch's Adam on averages, clipped by the norm."""
    dice = torch.Generator().manual_seed(comm.rank)
    for stage in (1, 2):
        first, other = (nn.Sequential(*layers()[:2]) for _ in "ab")
        sharded = Sharded(Adam(lr=0.01), comm, parameters(first), stage=stage, clip=0.5)
        optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
        for _ in range(3):
            x = torch.randn(4, WIDTH, generator=dice)
            for model in (first, other):
                model.zero_grad()
                (model(x) ** 2).sum().backward()
            sharded.step({name: p.grad for name, p in first.named_parameters()})
            for p in other.parameters():
                assert p.grad is not None
                comm.allreduce(p.grad, "avg", order="rank")
            nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            optimizer.step()
        for p, wanted in zip(first.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, wanted, rtol=1e-5, atol=1e-5)


def more_axes_are_more_rows(comm: Any) -> None:
    """x of (batch, length, width) has the results of the same rows in two axes."""
    dice = np.random.default_rng(3)
    w1, b1, w2, b2 = (dice.normal(size=shape) for shape in ((WIDTH, HIDDEN), HIDDEN, (HIDDEN, WIDTH), WIDTH))
    x, dy = dice.normal(size=(2, 6, 4, WIDTH))
    for sequence in (False, True):
        own = slice(comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size) if sequence else slice(6)
        found = []
        for shape in ((-1, 4, WIDTH), (-1, WIDTH)):
            first = ColumnParallel(w1, b1, comm, sequence=sequence)
            second = RowParallel(w2, b2, comm, sequence=sequence)
            hidden, kept = first.forward(x[own].reshape(shape))
            y, kept_too = second.forward(hidden)
            dx = first.backward(second.backward(dy[own].reshape(shape), kept_too), kept)
            grads = [*first.gradients.values(), *second.gradients.values()]
            found.append([y.reshape(-1, WIDTH), dx.reshape(-1, WIDTH), *grads])
        for three, two in zip(*found, strict=True):
            np.testing.assert_allclose(three, two, rtol=1e-9, atol=1e-9)


def factors_make_the_dense_gradient(comm: Any) -> None:
    dice = np.random.default_rng(comm.rank)
    u, v = (dice.normal(size=(5, n)).astype(np.float32) for n in (40, 30))
    dense = average(comm, u, v, "dense")
    found = average(comm, u, v, "factors")
    np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-5)
    for rank, other in enumerate(comm.allgather(found[None])):
        assert (other == found).all(), rank
    apart = comm.dup()
    average(apart, u, v)  # the cheaper one
    n = {row.collective: row.bytes for row in apart.stats() if row.collective in ("allgather", "allreduce")}
    assert ("allreduce" in n) == (costs(40, 30, 5, comm.size).way == "dense")


def factors_of_other_numbers_of_samples(comm: Any) -> None:
    """Each rank chooses the way of all, and counts alike, also with no sample."""
    for m, n, most in ((40, 30, 1), (4, 3, 7)):  # few factors; more of them than the product has numbers
        k = most * comm.rank
        dice = np.random.default_rng(comm.rank)
        u, v = dice.normal(size=(k, m)), dice.normal(size=(k, n))
        wanted = comm.allreduce(u.T @ v, "avg")
        for way in (None, "factors", "dense"):
            np.testing.assert_allclose(average(comm, u, v, way), wanted, atol=1e-12)


def wrong(comm: Any) -> None:
    last = comm.rank == comm.size - 1
    w = np.ones((6, comm.size * 2 + 1), np.float32)
    with pytest.raises(ArgumentError, match=f"outputs={comm.size * 2 + 1} must be a multiple of the {comm.size} ranks"):
        ColumnParallel(w, None, comm)
    with pytest.raises(MismatchError, match="different shapes: .* on rank 0"):
        ColumnParallel(np.ones((6 + last, comm.size), np.float32), None, comm)
    with pytest.raises(ArgumentError, match=rf"weight must be an array .* \(on rank {comm.size - 1}\)"):
        RowParallel(None if last else np.ones((comm.size, 2), np.float32), None, comm)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="bias has 1 numbers, the weight 3 outputs"):
        RowParallel(np.ones((comm.size, 3), np.float32), np.ones(1, np.float32), comm)
    with pytest.raises(ArgumentError, match="in_features=5 must be a multiple of"):
        of_torch.RowParallel(nn.Linear(5, 2), comm)
    with pytest.raises(ArgumentError, match="rows=1 must be a multiple of"):
        ColumnParallel(np.ones((2, comm.size), np.float32), None, comm, sequence=True)._summed(np.ones((1, 2)))


PROGRAMS = (
    in_numpy, in_torch, more_axes_are_more_rows, a_torch_model_in_shards, bytes_are_the_same_either_way,
    a_pair_is_computed_again,
    factors_make_the_dense_gradient, factors_of_other_numbers_of_samples, wrong,
)  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
def test_laws(size: int) -> None:
    spread(PROGRAMS, size, "shm")


def test_on_one_rank_nothing_is_cut() -> None:
    hocket.local_world(1).run(in_numpy)


VGG = {"fc6": (25088, 4096), "fc7": (4096, 4096), "fc8": (4096, 1000)}


@pytest.mark.parametrize(
    ("samples", "workers", "ways"),
    [(32, 8, "factors factors factors"), (32, 32, "factors factors factors"), (256, 8, "factors factors dense"),
     (256, 32, "dense dense dense")],
)  # fmt: skip
def test_the_cheaper_way_for_the_layers_of_vgg(samples: int, workers: int, ways: str) -> None:
    found = {name: costs(m, n, samples, workers) for name, (m, n) in VGG.items()}
    assert " ".join(each.way for each in found.values()) == ways, found
