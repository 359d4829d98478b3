"""A module that servers train learns what one process learns from the mean of all workers' gradients."""

from __future__ import annotations

import copy
import functools
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.torch import Served
from hocket.torch.training import parameters
from hocket.torch.training.tensor import ColumnParallel, RowParallel
from hocket.training import SGD, Adagrad, Adam, Client, Downpour, Mesh, Range, serve
from support.worlds import same, spread

STEPS = 4
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (SGD(0.1, 0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adagrad": (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}


WAYS: dict[str, dict[str, Any]] = {"overlap": {}, "step": {"overlap": False}, "layers": {"barrier": False}}
TRIED = [("momentum", "overlap"), ("adam", "step"), ("sgd", "layers"), ("adagrad", "overlap"), ("adam", "layers")]
CASES = [(name, way, OPTIMIZERS[name][0], WAYS[way]) for name, way in TRIED]


class Net(nn.Module):
    """With BatchNorm, a tied weight, a frozen parameter and one that no pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.full((6,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x * self.frozen))))  # type: ignore[no-any-return]


def made() -> Net:
    dice, net = np.random.default_rng(5), Net()
    with torch.no_grad():
        for p in (net.first.weight, net.last.bias):
            p.copy_(torch.from_numpy(dice.standard_normal(tuple(p.shape)).astype(np.float32) * 0.4))
    return net


def loss(net: nn.Module, step: int, worker: int) -> torch.Tensor:
    dice = np.random.default_rng((step, worker))
    x = torch.from_numpy(dice.standard_normal((8, 6)).astype(np.float32))
    return (net(x) - x.flip(1)).square().mean()  # type: ignore[no-any-return]


@functools.cache
def alone(name: str, ours: bool, workers: int = 2) -> Net:
    """One process, by the mean of all gradients; `ours`: its step is one of hocket's optimizers, for equal bits."""
    net, (mine, make) = made(), OPTIMIZERS[name]
    mine = mine if ours else None
    trained = [p for p in net.parameters() if p.requires_grad and p is not net.unused]
    optimizer = make(trained)
    slots = {p: {name: np.zeros(p.numel(), np.float32) for name in (mine.slots if mine else ())} for p in trained}
    for step in range(STEPS):
        begun = copy.deepcopy(net.state_dict())
        grads, stats = {p: np.zeros(tuple(p.shape)) for p in trained}, []
        for worker in range(workers):
            net.load_state_dict(begun)
            net.zero_grad()
            loss(net, step, worker).backward()
            for p in trained:
                grads[p] += p.grad.numpy()  # type: ignore[union-attr]
            stats.append([b.clone() for b in (net.norm.running_mean, net.norm.running_var)])
        for p in trained:
            p.grad = torch.from_numpy((grads[p] / workers).astype(np.float32))
        for k, name in enumerate(("running_mean", "running_var")):
            old = begun[f"norm.{name}"]
            mean = sum((each[k] - old).double() for each in stats) / workers
            getattr(net.norm, name).copy_(old + mean.float())  # type: ignore[union-attr]
        if mine is None:
            optimizer.step()
        else:
            for p in trained:
                mine.apply(p.detach().view(-1).numpy(), p.grad.view(-1).numpy().copy(), slots[p], step + 1)  # type: ignore[union-attr]
    return net


def compared(net: nn.Module, wanted: nn.Module, exact: bool, what: str) -> None:
    theirs = wanted.state_dict()
    for name, tensor in net.state_dict().items():
        if exact:
            same(tensor.numpy(), theirs[name].numpy(), f"{what}: {name}")
        else:
            torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=2e-6, msg=f"{what}: {name}")


def learns(comm: Communicator) -> None:
    """Rank 0 serves one table set for each optimizer; two workers take turns through all ways to step."""
    tables: dict[str, Range] = {}
    for name, way, mine, _ in CASES:
        tables |= Served.tables(made(), mine, slice=80, prefix=f"{name}/{way}/")
    if comm.rank == 0:
        assert serve(comm, tables, on=[0]).wait(60)
        return
    with Client(comm, tables) as client:
        for name, way, mine, how in CASES:
            net = made()
            with torch.no_grad():
                net.last.bias.zero_()  # the servers' values count
            served = Served(net, client, mine, prefix=f"{name}/{way}/", **how)
            assert not net.last.bias.eq(0).any()
            for step in range(STEPS):
                loss(net, step, comm.rank - 1).backward()
                served.step()
                served.zero_grad()
            served.finish()
            assert net.unused.eq(1).all() and net.frozen.eq(0.5).all() and net.last.weight is net.first.weight
            assert net.norm.num_batches_tracked == STEPS
            compared(net, alone(name, ours=True), True, f"{name}, {way}")
            compared(net, alone(name, ours=False), False, f"{name}, {way}, torch's")
            served.close()


def test_two_workers_are_one_process_with_the_mean_gradient() -> None:
    spread(learns, 3, "threads")


def states(comm: Communicator) -> None:
    """A state goes on where it was saved, in other tables too; what is of another kind is refused."""
    tables = Served.tables(made(), Adam(0.01), slice=80)
    tables |= Served.tables(made(), Adam(0.01), prefix="then/") | Served.tables(made(), SGD(0.1, 0.9), prefix="sgd/")
    if comm.rank == 0:
        assert serve(comm, tables, on=[0]).wait(60)
        return
    with Client(comm, tables) as client:
        net, then = made(), made()
        served = Served(net, client)
        for step in range(2):
            loss(net, step, comm.rank - 1).backward()
            served.step()
            served.zero_grad()
        file = io.BytesIO()
        torch.save(served.state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        assert state["tables"]["first.weight"]["steps"].item() == 2 and state["own"]["norm.num_batches_tracked"] == 2
        again = Served(then, client, prefix="then/")
        again.load_state_dict(state)
        compared(then, net, True, "loaded")
        for model, trains in ((net, served), (then, again)):
            for step in range(2, STEPS):
                model.zero_grad()
                loss(model, step, comm.rank - 1).backward()
                trains.step()
        compared(then, net, True, "gone on")
        compared(net, alone("adam", ours=True), True, "as if never saved")
        other = Served(made(), client, prefix="sgd/")
        with pytest.raises(hocket.ArgumentError, match=r"'frozen' was saved with Adam, and its table has SGD"):
            other.load_state_dict(state)
        with pytest.raises(hocket.ArgumentError, match=r"takes what Served.state_dict\(\) gave"):
            other.load_state_dict(net.state_dict())
        with pytest.raises(hocket.ArgumentError, match="the state lacks 'unused': it was saved of another"):
            again.load_state_dict({**state, "tables": {k: v for k, v in state["tables"].items() if k != "unused"}})
        with pytest.raises(hocket.ArgumentError, match=r"table 'unused' keeps values\[3\], m\[3\], v\[3\], steps\[1\]"):
            client.load("unused", {"values": np.ones(3)})
        client.load("unused", client.state("unused"))
        assert not any(way.open for way in client.ways)  # it is acknowledged


def test_a_state_is_loaded_where_it_fits() -> None:
    spread(states, 3, "threads")


def asynchronous(comm: Communicator) -> None:
    """Each push is a step of its own, and what is pulled is as old as the clock's rule says."""
    net = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(net.weight)
    tables = Served.tables(net, SGD(1.0), mean=False)
    if comm.rank == 0:
        with pytest.raises(hocket.ArgumentError, match="table 'weight' has mean=True.*say clock=.bsp., not 'ssp:2'"):
            serve(comm, Served.tables(net), on=[0], clock="ssp:2")
        assert serve(comm, tables, on=[0], clock="ssp:2").wait(60)
        return
    with Client(comm, tables) as client:
        served = Served(net, client)
        for step in range(1, STEPS + 1):
            served.zero_grad()
            net.weight.sum().backward()
            served.step()
            seen = -net.weight.max()
            assert step + max(0, step - 2) <= seen <= step + STEPS, f"{seen} pushes are seen in step {step}"
        for _ in range(3):
            client.tick()
        same(client.pull("weight"), np.full((2, 3), -2.0 * STEPS, np.float32), "each push once")


def test_asynchronous_workers() -> None:
    spread(asynchronous, 3, "threads")


def refuses(comm: Communicator) -> None:
    tables = Served.tables(made(), SGD(0.1))
    if comm.rank == 0:
        assert serve(comm, tables, on=[0]).wait(60)
        return
    with Client(comm, tables) as client:
        with pytest.raises(hocket.ArgumentError, match="parameter 'weight' is not a table of the servers"):
            Served(nn.Linear(2, 2), client)
        wider = made()
        wider.unused = nn.Parameter(torch.ones(4))
        with pytest.raises(hocket.ArgumentError, match=r"parameter 'unused' has shape \(4,\), and its table is Range"):
            Served(wider, client)
        with pytest.raises(hocket.ArgumentError, match=r"table of 'frozen' has SGD\(lr=0.1.*optimizer= says Adagrad"):
            Served(made(), client, "adagrad")
        with pytest.raises(hocket.ArgumentError, match="parameter 'weight' is on meta"):
            Served.tables(nn.Linear(2, 2, device="meta"))
        with pytest.raises(hocket.ArgumentError, match="takes a torch.nn.Module"):
            Served([], client)  # type: ignore[arg-type]
        net = made()
        served = Served(net, client)
        loss(net, 0, 0).backward()
        with pytest.raises(hocket.ArgumentError, match="its gradient was computed twice before step"):
            loss(net, 0, 0).backward()
        served.step()
        net.unused = nn.Parameter(torch.ones(3))
        with pytest.raises(hocket.ArgumentError, match="'unused' is another tensor than when Served was made"):
            served.step()
        served.close()
        net = made()
        served = Served(net, client, overlap=False)
        (loss(net, 0, 0) * float("nan")).backward()
        with pytest.raises(hocket.ArgumentError, match="a value that was pushed is not finite"):
            served.step()


def test_what_it_refuses() -> None:
    spread(refuses, 2, "threads")


def cut(comm: Communicator) -> None:
    """Two workers of two ranks each, with half of a network on a rank: one process with all of it."""
    mesh, columns = Mesh(comm, {"data": 2, "tensor": 2}), np.random.default_rng(1)
    wide, narrow = nn.Linear(4, 6), nn.Linear(6, 4)
    with torch.no_grad():
        for p in (*wide.parameters(), *narrow.parameters()):
            p.copy_(torch.from_numpy(columns.standard_normal(tuple(p.shape)).astype(np.float32) * 0.5))
    net = nn.Sequential(ColumnParallel(wide, mesh["tensor"]), nn.Tanh(), RowParallel(narrow, mesh["tensor"]))
    whole = nn.Sequential(copy.deepcopy(wide), nn.Tanh(), copy.deepcopy(narrow))
    tables, optimizer = Served.tables(net, SGD(0.2, 0.9)), torch.optim.SGD(whole.parameters(), 0.2, 0.9)
    assert set(tables) == {"0/0.weight", "1/0.weight", "0/0.bias", "1/0.bias", "0/2.weight", "1/2.weight", "2.bias"}
    server = serve(comm, tables, on=range(comm.size), works=True)
    with server, Client(server) as client:
        served = Served(net, client)
        for step in range(STEPS):
            x = [torch.from_numpy(np.random.default_rng((step, i)).standard_normal((5, 4)).astype("f")) for i in (0, 1)]
            net.zero_grad()
            net(x[mesh["data"].rank]).square().mean().backward()
            served.step()
            optimizer.zero_grad()
            torch.stack([whole(each).square().mean() for each in x]).mean().backward()
            optimizer.step()
        mine = slice(3 * mesh["tensor"].rank, 3 * mesh["tensor"].rank + 3)
        torch.testing.assert_close(net[0].weight, whole[0].weight[mine], rtol=0, atol=1e-5)
        torch.testing.assert_close(net[2].weight, whole[2].weight[:, mine], rtol=0, atol=1e-5)
        torch.testing.assert_close(net[2].bias, whole[2].bias, rtol=0, atol=1e-5)


def test_two_ranks_with_a_cut_network_are_one_worker() -> None:
    spread(cut, 4, "threads")


def downpours(comm: Communicator) -> None:
    """A module as Downpour's parameters: alone, it learns what torch's Adagrad does."""
    net, wanted = nn.Linear(3, 2), nn.Linear(3, 2)
    wanted.load_state_dict(net.state_dict())
    tables = Served.tables(net, Adagrad(0.1), mean=False)
    with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
        worker = Downpour(client, parameters(net), optimizer=Adagrad(0.1), n_fetch=STEPS + 1)
        theirs = torch.optim.Adagrad(wanted.parameters(), 0.1)
        for step in range(STEPS):
            for module in (net, wanted):
                module.zero_grad()
                x = torch.from_numpy(np.random.default_rng(step).standard_normal((4, 3)).astype(np.float32))
                module(x).square().sum().backward()
            worker.step({name: p.grad for name, p in net.named_parameters()})
            theirs.step()
        compared(net, wanted, False, "its own copy")
        worker.finish()
        compared(net, wanted, False, "the tables")


def test_downpour_takes_a_module() -> None:
    spread(downpours, 1, "threads")
