"""What servers compute: optimizers, rows, snapshots; codecs on the way; parts as they come."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import SGD, Adagrad, Adam, Client, Range, Rows, serve
from hocket.training.server.shards import snapshots
from hocket.training.server.shards.store import Change, Tables, What
from hocket.training.server.tables import SHARES, Layout, shares
from support.worlds import same, spread

N = 24
MAKERS: dict[str, tuple[Any, Any]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (SGD(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "adagrad": (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_optimizers_are_torchs(name: str) -> None:
    mine, torchs = MAKERS[name]
    layout = Layout({"w": Range(N, optimizer=mine, initial=1.0, slice=40), "e": Rows(N, optimizer=mine, scale=0.0)}, 1)
    store, dice = Tables(layout, 0), np.random.default_rng(3)
    parameter = torch.nn.Parameter(torch.ones(N))
    row = torch.nn.Parameter(torch.zeros(N))
    theirs = torchs([parameter, row])
    for _ in range(5):
        gradient = dice.standard_normal(N).astype(np.float32)
        parameter.grad, row.grad = torch.from_numpy(gradient), torch.from_numpy(gradient)
        theirs.step()
        for part in layout.parts[1]:
            store.apply(Change(1, part.number, None, gradient[part.first : part.end]))
        store.apply(Change(0, 0, np.array([5]), gradient))
    got = np.concatenate([store.held[1, part.number].values for part in layout.parts[1]])
    assert np.allclose(got, parameter.detach().numpy(), atol=1e-5)
    assert np.allclose(store.held[0, 0].values[0], row.detach().numpy(), atol=1e-5)


def test_a_reader_keeps_what_it_was_lent() -> None:
    store = Tables(Layout({"w": Range(4)}, 1), 0)
    seen = store.read(What(0, 0, None))
    store.apply(Change(0, 0, None, np.ones(4, np.float32)))
    assert (seen == 0).all() and (store.held[0, 0].values == 1).all()


def test_shares_are_about_as_large() -> None:
    counts = np.bincount(shares(np.arange(100 * SHARES)), minlength=SHARES)
    assert counts.min() > 50 and counts.max() < 160


def test_snapshots_are_checked(tmp_path: pathlib.Path) -> None:
    """The newest that is whole is read; two stay; other tables are refused."""
    folder = snapshots.Folder(str(tmp_path), "tables")
    for order in (3, 7, 11):
        book = snapshots.Book(order, {2**47: order, 5: 1}, {5: 4})
        folder.write(2, book, {(0, 1): {"values": np.full(3, order, np.float32)}, (1, 0): {"keys": np.arange(2)}})
    names = sorted(os.listdir(tmp_path))
    assert names == ["shard-2.000000000007", "shard-2.000000000011"]
    found = folder.newest(2)
    assert found is not None and found[0] == snapshots.Book(11, {2**47: 11, 5: 1}, {5: 4})
    assert found[1][0, 1]["values"].tolist() == [11.0] * 3 and found[1][1, 0]["keys"].tolist() == [0, 1]
    whole = (tmp_path / names[1]).read_bytes()
    for broken in (whole[:-1], whole[:-3] + b"\x7f" + whole[-2:], whole[:40], b""):
        (tmp_path / names[1]).write_bytes(broken)
        again = folder.newest(2)
        assert again is not None and again[0].order == 7
    (tmp_path / names[1]).write_bytes(whole)
    with pytest.raises(hocket.ArgumentError, match="other tables"):
        snapshots.Folder(str(tmp_path), "others").newest(2)
    assert folder.newest(1) is None


def goes_on(comm: Communicator, folder: str, began: float) -> None:
    """A second job begins where the first has ended."""
    tables = {"w": Range(8), "e": Rows(2, optimizer="put")}
    if comm.rank == 0:
        server = serve(comm, tables, on=[0], clock="async", snapshot=folder)
        assert server.wait(60)
        return
    with Client(comm, tables) as client:
        same(client.pull("w"), np.full(8, began, np.float32), "at the beginning")
        client.push("w", np.ones(8))
        if began:
            same(client.pull("e", rows=[4]), np.full((1, 2), 7, np.float32), "a row")
        client.push("e", np.full((1, 2), 7.0), rows=[4])


def test_a_job_goes_on_from_a_snapshot(tmp_path: pathlib.Path) -> None:
    for began in (0.0, 1.0):
        with hocket.local_world(2) as world:
            world.run(goes_on, str(tmp_path), began)


def with_codecs(comm: Communicator) -> None:
    """What a codec loses of a push is in the next ones; answers are encoded, too."""
    tables = {"w": Range(300, slice=400), "e": Rows(8)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0], clock="async").wait(60)
        return
    dice = np.random.default_rng(comm.rank)
    with Client(comm, tables, codec="int8", answers="fp8" if comm.rank == 2 else None) as client:
        total = np.zeros(300, np.float32)
        for _ in range(20):
            gradient = dice.standard_normal(300).astype(np.float32)
            total += gradient
            client.push("w", gradient)
        client.push("e", np.ones((2, 8)), rows=[3, comm.rank])
        if comm.size == 2:
            assert abs(client.pull("w") - total).max() < 0.05
            assert np.allclose(client.pull("e", rows=[3]), Rows(8).began(np.array([3])) + 1, atol=0.02)
        elif comm.rank == 2:
            seen = client.pull("w")
            assert abs(seen).max() > 1 and np.isfinite(seen).all()


@pytest.mark.parametrize("size", [2, 3])
def test_codecs(size: int) -> None:
    spread(with_codecs, size, "threads")


def part_by_part(comm: Communicator) -> None:
    tables = {"w": Range(1000, slice=800, initial=2.0)}
    if comm.rank < 2:
        assert serve(comm, tables, on=[0, 1], clock="async").wait(60)
        return
    with Client(comm, tables, window=2000) as client:
        handle = client.pull("w", async_op=True)
        assert sorted(handle.parts()) == [(i, i + 200) for i in range(0, 1000, 200)]
        handles = [client.push("w", np.ones(1000, np.float32), async_op=True) for _ in range(100)]
        for each in handles:
            each.wait()
        same(handle.wait(), np.full(1000, 2.0, np.float32), "before the pushes")
        same(client.pull("w"), np.full(1000, 102.0, np.float32), "after them")


def test_slices_come_as_they_are_complete_and_pushes_keep_to_a_window() -> None:
    spread(part_by_part, 3, "threads")
