"""Collectives through which gradients flow, in torch: their laws, gradcheck on all ranks together, and graphs."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hocket
from hocket.errors import ArgumentError
from hocket.extending import ADJOINTS
from hocket.torch import functions as F  # noqa: N812
from hocket.training import Mesh
from support.worlds import spread

Tensor = torch.Tensor
Run = Callable[[Tensor, Any], Tensor]


def _counts(comm: Any) -> list[int]:
    return [rank + 1 for rank in range(comm.size)]


def _own(x: Tensor, comm: Any) -> Tensor:
    return x[: comm.rank + 1]


def _turned(x: Tensor, comm: Any) -> Tensor:
    """Rank r sends r + 1 rows to each; x has enough of them."""
    rows = comm.rank + 1
    return F.alltoallv(x.repeat(comm.size, 1)[: rows * comm.size], [rows] * comm.size, _counts(comm), comm)


def _ring(x: Tensor, comm: Any) -> Tensor:
    return F.sendrecv(x, (comm.rank + 1) % comm.size, x, (comm.rank - 1) % comm.size, comm)


CALLS: dict[str, Run] = {
    "allreduce": lambda x, c: F.allreduce(x, c),
    "allreduce, avg": lambda x, c: F.allreduce(x, c, "avg"),
    "reduce_scatter": lambda x, c: F.reduce_scatter(x[: x.shape[0] // c.size * c.size], c),
    "reduce_scatter, avg": lambda x, c: F.reduce_scatter(x[: x.shape[0] // c.size * c.size], c, "avg"),
    "reduce_scatterv": lambda x, c: F.reduce_scatter(x.repeat(2, 1)[: sum(_counts(c))], c, counts=_counts(c)),
    "allgather": lambda x, c: F.allgather(x.T, c),
    "allgatherv": lambda x, c: F.allgather(_own(x, c), c, counts=_counts(c)),
    "reduce": lambda x, c: F.reduce(x, c.size - 1, c),
    "broadcast": lambda x, c: F.broadcast(x, c.size - 1, c),
    "alltoall": lambda x, c: F.alltoall(x[: x.shape[0] // c.size * c.size], c),
    "alltoallv": _turned,
    "sendrecv": _ring,
}
"""Each of x, of 6 rows of 2."""


def test_an_error_names_the_users_line(tmp_path: pathlib.Path) -> None:
    """Not torch's, which calls us: with a communicator alone, no process group has told which lines are torch's."""
    source = """
import hocket, torch
from hocket.torch import functions

def run(comm):
    try:
        functions.allreduce(torch.ones(2 + comm.rank), comm)  # line 7
    except hocket.MismatchError as error:
        return str(error)

print(*hocket.local_world(2).run(run))
"""
    (tmp_path / "program.py").write_text(source)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert done.stdout.count(" at program.py:7 in run") == 4, done
    assert ".py:" not in done.stdout.replace("program.py:7", ""), done


def everything(call: Run, comm: Any) -> Callable[[Tensor], Tensor]:
    """All ranks' results, on all ranks, of all ranks' x: a function that every rank knows, and gradcheck can check."""

    lengths = comm.share(call(torch.ones(6, 2), comm).numel())

    def function(every: Tensor) -> Tensor:
        made = call(F.shared(every, comm)[comm.rank], comm).reshape(-1)
        found = F.allgather(made, comm, lengths)
        return (found + (comm.size - 1) * found.detach()) / comm.size  # it counts once, not on each rank

    return function


def gradients_are_right(comm: Any) -> None:
    every = torch.randn(comm.size, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for name, call in CALLS.items():
        x = every.clone().requires_grad_()
        assert torch.autograd.gradcheck(everything(call, comm), (x,), fast_mode=True), name


def gradients_have_gradients(comm: Any) -> None:
    """The sum of fourth powers, which a call brings to so many ranks, has the derivative 4 n x^3; of their squares 96
    n^2 x^5."""
    for name, times in (("allgather", comm.size), ("alltoall", 1), ("sendrecv", 1)):
        x = torch.arange(1.0, 13).reshape(6, 2).requires_grad_()
        (first,) = torch.autograd.grad((CALLS[name](x * x, comm) ** 2).sum(), x, create_graph=True)
        torch.testing.assert_close(first, 4 * times * x**3)
        (first**2).sum().backward()
        torch.testing.assert_close(x.grad, 96 * times**2 * x.detach() ** 5)


def values_are_those_of_the_calls(comm: Any) -> None:
    x = torch.arange(12.0).reshape(6, 2) + 100 * comm.rank
    assert torch.equal(F.allreduce(x, comm), comm.allreduce(x.clone()))
    assert torch.equal(F.summed(x, comm, "max"), comm.allreduce(x.clone(), "max"))
    assert torch.equal(F.shared(x, comm), x)
    assert torch.equal(F.allgather(x.T, comm), comm.allgather(x.T.contiguous()))
    root, wanted = F.reduce(x, 0, comm), comm.reduce(x, 0)
    assert torch.equal(root, wanted if comm.rank == 0 else torch.zeros(6, 2))
    assert x[0, 0] == 100 * comm.rank


def what_counts_once(comm: Any) -> None:
    """Megatron's f and g: a layer that is cut has the gradients of the whole one."""
    w = torch.arange(8.0).reshape(4, 2).requires_grad_()
    x = torch.ones(3, 4, requires_grad=True)
    mine = slice(comm.rank * 4 // comm.size, (comm.rank + 1) * 4 // comm.size)
    y = F.summed(F.shared(x, comm)[:, mine] @ w[mine], comm)
    (y**2).sum().backward()
    v, z = w.detach().clone().requires_grad_(), torch.ones(3, 4, requires_grad=True)
    ((z @ v) ** 2).sum().backward()
    assert x.grad is not None and w.grad is not None and v.grad is not None and z.grad is not None
    torch.testing.assert_close(x.grad, z.grad)
    torch.testing.assert_close(w.grad[mine], v.grad[mine])


def messages(comm: Any) -> None:
    """A chain of stages: the gradient comes back to the first; two messages of one tag keep their order."""
    torch.manual_seed(comm.rank)
    weight = torch.full((3,), comm.rank + 2.0, requires_grad=True)
    for _ in range(2):
        x = torch.ones(3) if comm.rank == 0 else F.recv(torch.empty(3), comm.rank - 1, comm, tag=5)
        y = x * weight
        (F.send(y, comm.rank + 1, comm, tag=5) if comm.rank + 1 < comm.size else y.sum()).backward()
    product = 1.0
    for rank in range(comm.size):
        product *= rank + 2.0
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((3,), 2 * product / (comm.rank + 2.0)))


def one_graph(comm: Any) -> None:
    """torch.compile keeps them in its graph, backward pass and all; another communicator is another graph."""
    import torch._dynamo

    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def step(x: Tensor, c: Any) -> Tensor:
        return F.summed((F.alltoall(F.reduce_scatter(F.allgather(x, c) ** 2, c), c) * 3).sum(), c)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    twin = comm.dup()
    for c, count in ((comm, 1), (comm, 1), (twin, 2)):
        x = torch.arange(4.0, requires_grad=True)
        y = torch.arange(4.0, requires_grad=True)
        found, wanted = compiled(x, c), step(y, c)
        torch.testing.assert_close(found, wanted)
        found.backward()
        wanted.backward()
        assert x.grad is not None and torch.equal(x.grad, y.grad) and len(graphs) == count


def on_an_axis(comm: Any) -> None:
    mesh = Mesh(comm, {"data": comm.size, "tensor": 1})
    x = torch.ones(2, requires_grad=True)
    F.allreduce(x, mesh["data"]).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [comm.size] * 2


def the_graph_keeps_the_communicator(comm: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    y = F.allreduce(x, comm.dup())
    gc.collect()
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [comm.size] * 2


def wrong(comm: Any) -> None:
    with pytest.raises(ArgumentError, match="allreduce with op 'max' has no derivative; use sum or avg"):
        F.allreduce(torch.ones(2, requires_grad=True), comm, "max").sum().backward()
    with pytest.raises(ArgumentError, match=r"tag=1073741824 must be between 0 and 2\*\*30 - 1"):
        F.send(torch.ones(2), 0, comm, tag=1 << 30)
    with pytest.raises(ArgumentError, match="not a multiple of"):
        F.reduce_scatter(torch.ones(comm.size + 1), comm)


PROGRAMS = (
    gradients_are_right, gradients_have_gradients, values_are_those_of_the_calls, what_counts_once, messages, one_graph,
    on_an_axis, the_graph_keeps_the_communicator, wrong,
)  # fmt: skip


def test_laws_on_two_ranks() -> None:
    spread(PROGRAMS, 2, "shm")


@pytest.mark.more
def test_laws_on_three_ranks() -> None:
    spread((gradients_are_right, gradients_have_gradients, what_counts_once, messages), 3, "tcp")


def test_adjoints_are_mutual() -> None:
    """<A x, y> = <x, A* y>: the adjoint of the adjoint is the call itself."""
    assert all(ADJOINTS[ADJOINTS[name]] == name for name in ADJOINTS)
    assert set(ADJOINTS) == {
        "allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "gather", "scatter", "alltoall"}  # fmt: skip


def test_outside_of_a_job_it_says_what_is_needed() -> None:
    with pytest.raises(hocket.ArgumentError, match="init_process_group"):
        F.allreduce(torch.ones(2))
