"""Collectives through which gradients flow.

    from hocket.torch import functions
    y = functions.allgather(x, comm)        # comm: a communicator, an axis of a Mesh, or a process group of hocket's
    y.sum().backward()                      # x.grad has come by a reduce-scatter

The law: each rank differentiates a loss of its own, and what is found are the gradients of the sum of all ranks'
losses.  It is the column `adjoint` of `CONTRACTS`:

    call                          its backward pass
    allreduce                     allreduce
    reduce_scatter, allgather     each other
    reduce, broadcast             each other
    alltoall                      alltoall, with the counts exchanged
    sendrecv, send, recv          along the message, backwards

`summed` and `shared` are for a loss that all ranks of `comm` compute alike, and that counts once (Megatron's g and f):

    summed                        the gradient as it is
    shared, which is x            allreduce

Each can be differentiated again.  Backward passes are calls, too: all ranks make them, in one order, as the graph is
the same on all ranks.  Derivatives are of op sum and avg; others raise ArgumentError in backward().  Tensors are in
host memory or on GPUs.  `torch.compile` keeps all of them but send, recv and sendrecv in its graph, which break it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from hocket.errors import ArgumentError
from hocket.extending import ADJOINTS
from hocket.torch.callers import pass_over_torch
from hocket.torch.training.parameters import communicator

Tensor = torch.Tensor
Function: Any = torch.autograd.Function
LAWS = {**ADJOINTS, "summed": "shared", "shared": "summed"}
LINEAR = ("sum", "avg")
BACKWARDS = 1 << 30
"""Added to the tags of messages that carry gradients: users' tags are below."""
_communicators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the numbers that graphs have for them."""
pass_over_torch()


# --- what users call


def allreduce(x: Tensor, comm: Any = None, op: str = "sum") -> Tensor:
    """The sum of all ranks' x, on all of them."""
    return _made(x, comm, "allreduce", op)


def summed(x: Tensor, comm: Any = None, op: str = "sum") -> Tensor:
    """An `allreduce` whose result all ranks use alike, and which counts once."""
    return _made(x, comm, "summed", op)


def shared(x: Tensor, comm: Any = None) -> Tensor:
    """A copy of x, which is the same on all ranks; its gradient is the sum of what all ranks make of it."""
    return _made(x, comm, "shared")


def reduce_scatter(x: Tensor, comm: Any = None, op: str = "sum", counts: Sequence[int] = ()) -> Tensor:
    """This rank's rows of the sum.  `counts`: rows of each rank; default equal ones."""
    return _made(x, comm, "reduce_scatter", op, there=counts)


def allgather(x: Tensor, comm: Any = None, counts: Sequence[int] = ()) -> Tensor:
    """All ranks' rows, one after the other.  `counts`: rows of each rank; default equal ones."""
    return _made(x, comm, "allgather", there=counts)


def reduce(x: Tensor, root: int = 0, comm: Any = None, op: str = "sum") -> Tensor:
    """The sum at the root; elsewhere zeros, whose gradient counts nothing."""
    return _made(x, comm, "reduce", op, root)


def broadcast(x: Tensor, root: int = 0, comm: Any = None) -> Tensor:
    """The root's x, on all ranks."""
    return _made(x, comm, "broadcast", root=root)


def alltoall(x: Tensor, comm: Any = None) -> Tensor:
    """Block d of x goes to rank d."""
    return _made(x, comm, "alltoall")


def alltoallv(x: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], comm: Any = None) -> Tensor:
    """The first send_counts[0] rows go to rank 0, ...; the result has recv_counts[0] rows from rank 0, ..."""
    return _made(x, comm, "alltoall", there=send_counts, back=recv_counts)


def sendrecv(x: Tensor, dest: int, like: Tensor, source: int, comm: Any = None, tag: int = 0) -> Tensor:
    """Send x to `dest`, and receive what `source` has sent, of the shape and dtype of `like`."""
    found: Tensor = _SendRecv.apply(x, like, dest, source, communicator_of(comm), _own(tag))
    return found


def send(x: Tensor, dest: int, comm: Any = None, tag: int = 0) -> Tensor:
    """Send x.  Returns a zero that stands for it: `backward()` from there, or from a sum with it, awaits x's gradient.

    >>> import hocket
    >>> def chain(comm):
    ...     x = torch.ones(2, requires_grad=True)
    ...     if comm.rank == 0:
    ...         send(3 * x, 1, comm).backward()
    ...         return x.grad.tolist()
    ...     return (2 * recv(torch.empty(2), 0, comm)).sum().backward()
    >>> hocket.local_world(2).run(chain)[0]
    [6.0, 6.0]
    """
    found: Tensor = _Send.apply(x, dest, communicator_of(comm), _own(tag))
    return found


def recv(like: Tensor, source: int, comm: Any = None, tag: int = 0) -> Tensor:
    """Receive a tensor of the shape and dtype of `like`; its gradient is sent to `source`."""
    found: Tensor = _Recv.apply(torch.empty(0, requires_grad=True), like, source, communicator_of(comm), _own(tag))
    return found


# --- collectives: one operator of torch's, so that graphs can hold it


def _made(
    x: Tensor, given: Any, name: str, op: str = "sum", root: int = 0, there: Sequence[int] = (),
    back: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    found: Tensor = _operator(x, _key(given), name, op, root, list(there), list(back))
    return found


@torch.library.custom_op("hocket::collective", mutates_args=(), device_types=["cpu", "cuda"])
def _operator(x: Tensor, key: int, name: str, op: str, root: int, there: list[int], back: list[int]) -> Tensor:
    """`key`: of the communicator.  `there`: rows of each rank, or that go to it; `back`: that come from it."""
    return _run(_communicators[key], name, x.detach().contiguous(), op, root, there, back)


def _run(comm: Any, name: str, x: Tensor, op: str, root: int, there: list[int], back: list[int]) -> Tensor:
    made = x.clone() if name in ("shared", "broadcast") else torch.empty_like(x)
    found: Any = made
    if name in ("allreduce", "summed"):
        comm.allreduce(x, op, out=made)
    elif name == "broadcast":
        comm.broadcast(made, root)
    elif name == "reduce":
        comm.reduce(x, root, op, **({"out": made} if comm.rank == root else {}))
        found = made if comm.rank == root else made.zero_()
    elif name == "reduce_scatter":
        found = comm.reduce_scatterv(x, there, op) if there else comm.reduce_scatter(x, op)
    elif name == "allgather":
        found = comm.allgatherv(x, there) if there else comm.allgather(x)
    elif name == "alltoall":
        found = comm.alltoallv(x, there, back) if there else comm.alltoall(x)
    return found  # type: ignore[no-any-return]


@_operator.register_fake
def _(x: Tensor, key: int, name: str, op: str, root: int, there: list[int], back: list[int]) -> Tensor:
    comm = _communicators[key]
    if name == "reduce_scatter":
        rows: Any = there[comm.rank] if there else x.shape[0] // comm.size
    elif name == "allgather":
        rows = sum(there) if there else x.shape[0] * comm.size
    elif name == "alltoall" and there:
        rows = sum(back)
    else:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return x.new_empty((rows, *x.shape[1:]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.how = inputs
    ctx.comm = _communicators[ctx.how[0]]  # which may be this call's alone, and has to live until backward()


def _adjoint(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    key, name, op, root, there, back = ctx.how
    if op not in LINEAR:
        raise ArgumentError(f"{name} with op {op!r} has no derivative; use {' or '.join(LINEAR)}")
    if name == "alltoall":
        there, back = back, there
    found = _operator(grad, key, LAWS[name], "sum", root, there, back)
    return (found / _communicators[key].size if op == "avg" else found, *[None] * 6)


_operator.register_autograd(_adjoint, setup_context=_remember)


def communicator_of(given: Any) -> Any:
    """The object that has the calls: of a process group its communicator, else as it is."""
    return communicator(given) if given is None or isinstance(given, torch.distributed.ProcessGroup) else given


def _key(given: Any) -> int:
    return _known(id(communicator_of(given)))  # of which torch.compile makes a guard: another one, another graph


def _known(number: int) -> int:
    """The number by which graphs know a communicator, as long as it lives."""
    _communicators[number] = ctypes.cast(number, ctypes.py_object).value
    return number


vars(_known)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result, which loads the compiler


# --- messages


def _own(tag: int) -> int:
    if not 0 <= tag < BACKWARDS:
        raise ArgumentError(f"tag={tag} must be between 0 and 2**30 - 1: larger tags are for gradients")
    return tag


class _SendRecv(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, like: Tensor, dest: int, source: int, comm: Any, tag: int) -> Tensor:
        ctx.how, ctx.x = (source, dest, comm, tag ^ BACKWARDS), x.new_empty(x.shape)
        made = torch.empty_like(like)
        comm.sendrecv(x.contiguous(), dest, made, source, tag)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _SendRecv.apply(grad, ctx.x, *ctx.how), None, None, None, None, None


class _Send(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, dest: int, comm: Any, tag: int) -> Tensor:
        ctx.how, ctx.x = (dest, comm, tag ^ BACKWARDS), x.new_empty(x.shape)
        comm.send(x.contiguous(), dest, tag)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _Recv.apply(grad, ctx.x, *ctx.how), None, None, None


class _Recv(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, token: Tensor, like: Tensor, source: int, comm: Any, tag: int) -> Tensor:
        ctx.how = source, comm, tag ^ BACKWARDS
        ctx.token = token
        made = torch.empty_like(like)
        comm.recv(made, source, tag)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _Send.apply(grad, *ctx.how)
        return torch.zeros_like(ctx.token), None, None, None, None
