"""DTensor, functional collectives, and gradients through collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

import hocket.torch
from torch_training.cases import case
from torch_training.task import (
    adam,
    close,
    full,
    rank,
    size,
)


@case(2, 3)
def dtensor() -> None:
    """Placements, also of parts that differ in size, and the product of sharded matrices."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size(),))
    a, b = torch.randn(7, 5), torch.randn(5, 9)
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(a, mesh, [Shard(1)])
    assert torch.equal(rows.to_local(), a.chunk(size())[rank()])
    assert torch.equal(rows.full_tensor(), a)
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).to_local(), columns.to_local())
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), a)
    assert_close((rows @ distribute_tensor(b, mesh, [Replicate()])).full_tensor(), a @ b)
    product = columns @ distribute_tensor(b, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    assert_close(product.redistribute(mesh, [Shard(0)]).full_tensor(), a @ b)
    assert_close(rows.sum().full_tensor(), a.sum())
    assert_close(rows.mean(0).full_tensor(), a.mean(0))
    parts = DTensor.from_local(torch.full((4,), rank() + 1.0), mesh, [Partial("max")])
    assert parts.full_tensor().tolist() == [size()] * 4


@case(4)
def another_mesh() -> None:
    """A state dict of two axes becomes one of two ranks, uneven too, and goes back with more ranks; others help."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    grid, pair = init_device_mesh("cpu", (2, 2)), DeviceMesh("cpu", [1, 3])
    full_ = {"w": torch.randn(7, 6), "b": torch.randn(5).to(torch.bfloat16), "n": torch.arange(3)}
    placed = {"w": [Shard(0), Shard(1)], "b": [Replicate(), Shard(0)]}
    state = {name: distribute_tensor(full_[name], grid, placements) for name, placements in placed.items()}
    state["n"] = full_["n"]
    moved = hocket.torch.redistribute(state, pair, {"w": [Shard(1)]})
    assert sorted(moved) == (["b", "n", "w"] if rank() in (1, 3) else [])
    if moved:
        at = (1, 3).index(rank())
        assert torch.equal(moved["w"].to_local(), full_["w"].chunk(2, 1)[at]) and moved["w"].placements == (Shard(1),)
        assert torch.equal(moved["b"].to_local(), full_["b"].chunk(2)[at]) and moved["b"].dtype == torch.bfloat16
        assert torch.equal(moved["n"], full_["n"]) and moved["w"].shape == (7, 6)
    back = hocket.torch.redistribute(moved, init_device_mesh("cpu", (4,)))
    for name in placed:
        assert isinstance(back[name], DTensor) and torch.equal(back[name].full_tensor(), full_[name])
    with pytest.raises(hocket.ArgumentError, match="2 placements, and the mesh 1 axes"):
        hocket.torch.redistribute(state, pair, [Shard(0), Shard(1)])


@case(4)
def shards_over_tensor_parallel() -> None:
    """FSDP2's parts of layers that are cut already, uneven ones too: torch's _StridedShard."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    grid, pair = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")), DeviceMesh("cpu", [1, 3])
    for width in (8, 6):
        layer = nn.Linear(5, width)
        whole = {name: x.detach().clone() for name, x in layer.state_dict().items()}
        parallelize_module(layer, grid["tensor"], ColwiseParallel())
        fully_shard(layer, mesh=grid["data"])
        state = layer.state_dict()
        assert type(state["weight"].placements[0]).__name__ == "_StridedShard"
        for name, x in hocket.torch.redistribute(state, pair, [Shard(0)]).items():
            assert torch.equal(x.to_local(), whole[name].chunk(2)[(1, 3).index(rank())])
        for lengths in ((2, 2), (4, 1), (1, 4)):
            other = init_device_mesh("cpu", lengths)
            for name, x in hocket.torch.redistribute(state, other).items():
                assert torch.equal(x.full_tensor(), whole[name]), (lengths, name)


@case(2)
def tensor_parallel() -> None:
    """Columns, then rows, with the sequence sharded between, and the loss over sharded classes."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    def made() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 10))

    mesh = init_device_mesh("cpu", (size(),))
    x, y = torch.randn(6, 8), torch.randint(0, 10, (6,))
    model, reference = made(), made()
    styles = {
        "0": SequenceParallel(sequence_dim=0, use_local_output=True),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
        "4": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, styles)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    other = adam(reference)
    for _ in range(3):
        optimizer.zero_grad(), other.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(x.chunk(size())[rank()]), y)
            loss.backward()
        wanted = nn.functional.cross_entropy(reference(x), y)
        wanted.backward()
        loss_value = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        assert_close(loss_value, wanted)
        optimizer.step(), other.step()
    close(full(model.parameters()), reference.parameters())
    assert model[1].weight.placements == (Shard(0),) and model[3].weight.placements == (Shard(1),)
    assert model[0].weight.placements == (Replicate(),)


@case(2, 3)
def functional_collectives() -> None:
    r, n, world = rank(), size(), dist.group.WORLD
    x = torch.arange(6.0).reshape(2, 3) + 10 * r
    every = [torch.arange(6.0).reshape(2, 3) + 10 * k for k in range(n)]
    assert torch.equal(fc.all_reduce(x, "sum", world) + 0, sum(every))  # type: ignore[arg-type]
    assert torch.equal(fc.all_reduce(x, "max", world) + 0, every[-1])
    assert torch.equal(fc.all_reduce(x, "avg", world) + 0, sum(every) / n)  # type: ignore[arg-type, operator]
    assert torch.equal(fc.all_gather_tensor(x, 0, world) + 0, torch.cat(every))
    assert torch.equal(fc.all_gather_tensor(x, 1, world) + 0, torch.cat(every, 1))
    wide = torch.cat([x] * n, 1)
    assert torch.equal(fc.reduce_scatter_tensor(wide, "sum", 1, world) + 0, sum(every))  # type: ignore[arg-type]
    assert torch.equal(fc.broadcast(x, n - 1, world) + 0, every[-1])
    sends = [1 + (r + d) % n for d in range(n)]
    recvs = [1 + (s + r) % n for s in range(n)]
    rows = torch.cat([torch.full((k, 2), 10.0 * r + d) for d, k in enumerate(sends)])
    got = fc.all_to_all_single(rows, recvs, sends, world) + 0
    assert torch.equal(got, torch.cat([torch.full((k, 2), 10.0 * s + r) for s, k in enumerate(recvs)]))
    assert torch.equal(fc.permute_tensor(x[0], [(k + 1) % n for k in range(n)], world) + 0, every[r - 1][0])
    two = fc.all_reduce_coalesced([x, x[0] * 2], "sum", world)
    close([each + 0 for each in two], [sum(every), sum(each[0] * 2 for each in every)])  # type: ignore[list-item]
    two = fc.all_gather_into_tensor_coalesced([x, x[0]], world)
    close([each + 0 for each in two], [torch.cat(every), torch.cat([each[0] for each in every])])
    two = fc.reduce_scatter_tensor_coalesced([torch.cat([x] * n), torch.cat([x[0]] * n)], "sum", [0, 0], world)
    close([each + 0 for each in two], [sum(every), sum(each[0] for each in every)])  # type: ignore[list-item]
    kept = x.clone()
    late = fc.all_reduce(x, "sum", world)
    assert isinstance(late, fc.AsyncCollectiveTensor)
    assert torch.equal(late + 0, sum(every)) and torch.equal(x, kept)  # type: ignore[arg-type]


@case(2, 3)
def functional_gradients() -> None:
    """The functional collectives that autograd goes through."""
    r, n, world = rank(), size(), dist.group.WORLD
    weights = [k + 1.0 for k in range(n)]
    x = torch.ones(2, 3, requires_grad=True)
    scale = torch.repeat_interleave(torch.tensor(weights), 2)[:, None]
    (fc.all_gather_tensor_autograd(x, 0, world) * scale * weights[r]).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), weights[r] * sum(weights)))
    x = torch.ones(2 * n, 3, requires_grad=True)
    (fc.reduce_scatter_tensor_autograd(x, "sum", 0, world) * weights[r]).sum().backward()
    assert torch.equal(x.grad, scale.expand(2 * n, 3))
    x = torch.ones(2 * n, 3, requires_grad=True)
    (fc.all_to_all_single_autograd(x, None, None, world) * scale * weights[r]).sum().backward()
    assert torch.equal(x.grad, weights[r] * scale.expand(2 * n, 3))


@case(2, 3)
def all_gather_into_tensor_out() -> None:
    """The operator that compiler passes emit."""
    out = torch.empty(3 * size())
    ops = torch.ops._c10d_functional
    got = ops.all_gather_into_tensor_out(torch.ones(3) * rank(), size(), dist.group.WORLD.group_name, out=out)
    got = ops.wait_tensor(got)
    assert got.data_ptr() == out.data_ptr()
    assert torch.equal(out, torch.arange(float(size())).repeat_interleave(3))


@case(2, 3)
def differentiable_collectives() -> None:
    """torch.distributed.nn.functional: values and gradients by hand."""
    import torch.distributed.nn.functional as F

    r, n, world = rank(), size(), dist.group.WORLD
    weights = [k + 1.0 for k in range(n)]
    total = sum(weights)

    def leaf(*shape: int) -> Tensor:
        return torch.full(shape, r + 2.0, requires_grad=True)

    def check(x: Tensor, wanted: float) -> None:
        assert torch.equal(x.grad, torch.full_like(x, wanted)), f"{x.grad} {wanted}"  # type: ignore[arg-type]

    x = leaf(3)
    out = F.all_reduce(x * 1, group=world)
    assert out.tolist() == [sum(k + 2.0 for k in range(n))] * 3
    (out * weights[r]).sum().backward()
    check(x, total)

    x = leaf(3)
    outs = F.all_gather(x, world)
    assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s] * weights[r]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    check(x, weights[r] * total)

    xs = [leaf(3) for _ in range(n)]
    out = F.reduce_scatter(torch.empty(3), xs, group=world)
    assert out.tolist() == [sum(k + 2.0 for k in range(n))] * 3
    (out * weights[r]).sum().backward()
    for s, each in enumerate(xs):
        check(each, weights[s])

    xs = [leaf(d + 1) for d in range(n)]
    outs = F.all_to_all([torch.empty(r + 1) for _ in range(n)], xs, world)
    assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s] * weights[r]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    for d, each in enumerate(xs):
        check(each, weights[d] * weights[r])

    x = leaf(n, 2)
    out = F.all_to_all_single(torch.empty(n, 2), x, group=world)
    assert out[:, 0].tolist() == [k + 2.0 for k in range(n)]
    (out * torch.tensor(weights)[:, None] * weights[r]).sum().backward()
    assert torch.equal(x.grad, weights[r] * torch.tensor(weights)[:, None].expand(n, 2))

    x = leaf(3)
    out = F.broadcast(x, n - 1, world)
    assert out.tolist() == [n + 1.0] * 3
    (out * weights[r]).sum().backward()
    check(x, total if r == n - 1 else 0.0)

    x = leaf(3)
    outs = F.gather(x, 0, world)
    if r == 0:
        assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    check(x, weights[r])

    xs = [leaf(3) for _ in range(n)]
    out = F.scatter([each * (s + 1) for s, each in enumerate(xs)], 0, world)
    assert out.tolist() == [2.0 * (r + 1)] * 3
    (out * weights[r]).sum().backward()
    for s, each in enumerate(xs):
        check(each, weights[s] * (s + 1) if r == 0 else 0.0)
