"""Experts on ranks are those of one process, dropped tokens and all; what travels is what the law says."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.training import Experts, Mesh
from hocket.training.large.experts.routing import room
from support.cases import more
from support.worlds import spread

Array = np.ndarray[Any, Any]
TOKENS, WIDTH, EACH = 10, 5, 2


class Linear:
    """x w."""

    def __init__(self, number: int) -> None:
        self.w = np.random.default_rng(number).normal(size=(WIDTH, WIDTH))
        self.gradient = np.zeros_like(self.w)

    def forward(self, x: Array) -> tuple[Array, Any]:
        return x @ self.w, x

    def backward(self, dy: Array, kept: Any) -> Array:
        self.gradient += kept.T @ dy
        return dy @ self.w.T  # type: ignore[no-any-return]


def inputs(rank: int, count: int, skew: float) -> tuple[Array, Array, Array]:
    """A rank's tokens, gates that prefer the first experts, and the gradient of the result."""
    dice = np.random.default_rng([rank, 5])
    logits = dice.normal(size=(TOKENS, count)) - skew * np.arange(count)
    gates = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return dice.normal(size=(TOKENS, WIDTH)), gates, dice.normal(size=(TOKENS, WIDTH))


def alone(size: int, top: int, capacity: float | None, skew: float) -> tuple[list[tuple[Array, ...]], list[Array], int]:
    """One process, by torch's autograd, token by token: y, dx and dgates of each rank; the experts'; rows left out."""
    count = EACH * size
    experts = [torch.tensor(Linear(n).w, requires_grad=True) for n in range(count)]
    found, dropped = [], 0
    for rank in range(size):
        x, gates, dy = (torch.tensor(each) for each in inputs(rank, count, skew))
        x.requires_grad_()
        gates.requires_grad_()
        y, taken = torch.zeros(TOKENS, WIDTH, dtype=torch.float64), [0] * count
        most = math.inf if capacity is None else math.ceil(capacity * top * TOKENS / count)
        for t in range(TOKENS):
            chosen = gates[t].argsort(descending=True, stable=True)[:top].tolist()
            total = gates[t, chosen].sum() if top > 1 else torch.tensor(1.0)
            for e in chosen:
                if taken[e] < most:
                    y = y.index_add(0, torch.tensor([t]), (gates[t, e] / total * (x[t] @ experts[e]))[None])
                    taken[e] += 1
                else:
                    dropped += 1
        y.backward(dy)
        found.append((y.detach().numpy(), *(_gradient(each) for each in (x, gates))))
    return found, [_gradient(each) for each in experts], dropped


def _gradient(x: torch.Tensor) -> Array:
    """None: it was not used."""
    return (torch.zeros_like(x) if x.grad is None else x.grad).numpy()  # type: ignore[no-any-return]


CASES = ((1, None, 0.0), (2, None, 0.0), (1, 1.0, 1.0), (2, 0.75, 1.0), (2, 4.0, 2.0))


def as_one_process(comm: Any, hierarchical: bool = False) -> None:
    for top, capacity, skew in CASES:
        results, gradients, dropped = alone(comm.size, top, capacity, skew)
        mine = [Linear(comm.rank * EACH + i) for i in range(EACH)]
        layer = Experts(comm, mine, top=top, capacity=capacity, hierarchical=hierarchical)
        x, gates, dy = inputs(comm.rank, layer.count, skew)
        y, kept = layer.forward(x, gates)
        for got, wanted in zip((y, *layer.backward(dy, kept)), results[comm.rank], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
        for i, expert in enumerate(mine):
            np.testing.assert_allclose(expert.gradient, gradients[comm.rank * EACH + i], rtol=1e-6, atol=1e-9)
        assert comm.allreduce(layer.dropped) == dropped
        assert (dropped > 0) == (capacity is not None and (top, capacity) != (2, 4.0))


def rows_that_travel(comm: Any) -> None:
    """tokens x d there, and as many back; and as many in the backward pass."""
    apart = comm.dup()
    layer = Experts(apart, [Linear(0)] * EACH, capacity=None)
    x, gates, dy = inputs(comm.rank, layer.count, 0.0)
    before = sum(row.bytes for row in apart.stats() if row.collective == "alltoall")
    layer.backward(dy, layer.forward(x, gates)[1])
    counts = 8 * layer.count
    sent = sum(row.bytes for row in apart.stats() if row.collective == "alltoall") - before - counts
    assert comm.allreduce(sent) == comm.size * 4 * TOKENS * WIDTH * 8


def wrong(comm: Any) -> None:
    last = comm.rank == comm.size - 1
    own = [Linear(0)] * EACH
    for kind, text, args, how in (
        (ArgumentError, "capacity=0 must be a number above 0", own, {"capacity": 0}),
        (ArgumentError, "top=3 must be 1 or 2", own, {"top": 3}),
        (MismatchError, "different number of experts: 2 on rank 0", own[: 1 + (not last)], {}),
        (ArgumentError, rf"0 experts on each rank .* \(on rank {comm.size - 1}\)", own[: 2 * (not last)], {}),
    ):
        with pytest.raises(kind, match=text):
            Experts(comm, args, **how)  # type: ignore[arg-type]
    layer = Experts(comm, own)
    gates = np.ones((3, 1 if last else layer.count))
    with pytest.raises(ArgumentError, match=rf"gates have shape \(3, 1\), .* \(on rank {comm.size - 1}\)"):
        layer.forward(np.ones((3, WIDTH)), gates)
    gates = np.ones((3, layer.count))
    with pytest.raises(ArgumentError, match=rf"x must be .*; got int64\(3, 5\) \(on rank {comm.size - 1}\)"):
        layer.forward(np.ones((3, WIDTH), int if last else float), gates)
    assert layer.forward(np.ones((3, WIDTH)), gates)[0].shape == (3, WIDTH)
    with pytest.raises(ArgumentError, match=r"expert 0's forward was given rows .*, 5\), and returned \(.*, 1\)"):
        Experts(comm, [Thin(0)] * EACH).forward(np.ones((3, WIDTH)), gates)


class Thin(Linear):
    """Returns one number for each row."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return x[:, :1], x


def masked_tokens(comm: Any) -> None:
    """A token whose gates are all 0 counts nothing, and spoils no gradient."""
    mine = [Linear(comm.rank * EACH + i) for i in range(EACH)]
    layer = Experts(comm, mine, top=2, capacity=None)
    x, gates, dy = inputs(comm.rank, layer.count, 0.0)
    gates[3] = 0
    y, kept = layer.forward(x, gates)
    dx, dgates = layer.backward(dy, kept)
    assert not y[3].any() and not dx[3].any() and y[2].any()
    assert all(np.isfinite(each).all() for each in (dgates, *(expert.gradient for expert in mine)))


@pytest.mark.parametrize(("size", "transport"), [*more((2, "threads")), (4, "shm")])
def test_experts(size: int, transport: str) -> None:
    spread((as_one_process, rows_that_travel, masked_tokens, wrong), size, transport)


class Hosts:
    """A communicator on one host that believes its ranks to be on several, in turns."""

    def __init__(self, comm: Any, hosts: int) -> None:
        self.comm, self.host, self.local_rank = comm, comm.rank % hosts, comm.rank // hosts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)


def in_two_steps(comm: Any) -> None:
    """Two steps give what one gives; a rank sends to those of its number alone, on other hosts."""
    for hosts in (1, 2, comm.size):
        as_one_process(Hosts(comm, hosts), hierarchical=True)
    layer = Experts(Hosts(comm, 2), [Linear(0)] * EACH, hierarchical=True)
    assert layer.exchange.between.size == 2 and layer.exchange.inside.size == comm.size // 2
    mesh = Mesh(comm, {"expert": comm.size}, codec={"expert": "fp16"})
    layer = Experts(mesh["expert"], [Linear(0)] * EACH, hierarchical=True)
    assert layer.exchange.between.codec == "fp16" and not hasattr(layer.exchange.inside, "codec")


def hosts_of_different_sizes(comm: Any) -> None:
    with pytest.raises(ArgumentError, match="needs the same number of ranks on each host; the hosts have 2, 1"):
        Experts(Hosts(comm, 2), [Linear(0)], hierarchical=True)


def tokens_in_fewer_bits(comm: Any) -> None:
    """An axis's codec counts for tokens of float32, to its error, and the bytes that travel are its own."""
    sent, results = [], []
    for codec in (None, "bf16"):
        mesh = Mesh(comm, {"expert": comm.size}, codec={"expert": codec} if codec else {})
        mine = [Linear(comm.rank * EACH + i) for i in range(EACH)]
        layer = Experts(mesh["expert"], mine, capacity=None)
        x, gates, _ = inputs(comm.rank, layer.count, 0.0)
        results.append(layer.forward(x.astype(np.float32), gates.astype(np.float32))[0])
        moved = sum(row.bytes for row in mesh["expert"].stats() if row.collective == "alltoall")
        sent.append(comm.allreduce(moved - 8 * layer.count))  # without the counts
    np.testing.assert_allclose(results[1], results[0], rtol=0.05, atol=0.05)
    assert (results[1] != results[0]).any() and sent[1] * 2 == sent[0] == comm.size * 2 * TOKENS * WIDTH * 4


@pytest.mark.parametrize(("size", "transport"), [*more((4, "threads")), (4, "shm")])
def test_two_steps(size: int, transport: str) -> None:
    spread((in_two_steps, tokens_in_fewer_bits), size, transport)


def test_two_steps_need_even_hosts() -> None:
    spread(hosts_of_different_sizes, 3, "threads")


def test_the_balancing_loss_is_that_of_switch() -> None:
    """Its value and gradient, by torch's autograd; and it evens out what the gates prefer."""
    dice = np.random.default_rng(2)
    logits = torch.tensor(dice.normal(size=(40, 4)) - np.arange(4), requires_grad=True)

    def program(comm: Any) -> None:
        experts, largest = Experts(comm, [Linear(n) for n in range(4)], capacity=1.0), []
        for step in range(600):
            gates = logits.softmax(1)
            gates.retain_grad()
            share = torch.bincount(gates.argmax(1), minlength=4).double() / 40
            wanted = 0.3 * 4 * (share * gates.mean(0)).sum()
            logits.grad = None
            wanted.backward()
            found, slope = experts.balancing(gates.detach().numpy(), 0.3)
            assert found == pytest.approx(float(wanted), rel=1e-12)
            np.testing.assert_allclose(slope, gates.grad.numpy(), rtol=1e-12)
            largest.append(float(share.max()))
            if step in (0, 599):
                experts.forward(np.zeros((40, WIDTH)), gates.detach().numpy())
                largest.append(experts.dropped)
            logits.data -= 5 * logits.grad
        assert largest[0] > 0.5 and largest[-2] < 0.35 and largest[-1] < largest[1] / 2, largest

    hocket.local_world(1).run(program)


def test_room_is_that_of_decimals() -> None:
    """capacity=1.1 is eleven tenths, whatever the float's last bit."""
    for hundredths, top, experts in product(range(1, 400), (1, 2), (3, 8, 10, 64)):
        for tokens in (1, 7, 100, 4096):
            exact = math.ceil(Fraction(hundredths, 100) * top * tokens / experts)
            assert room(hundredths / 100, top, tokens, experts) == exact, (hundredths, top, tokens, experts)
    assert room(0.1 + 0.2, 1, 10, 1) == 3 == room(1.5, 1, 10, 5) and room(None, 1, 10, 5) is None
