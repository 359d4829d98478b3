"""The computation of servers: optimizers, rows, snapshots; codecs on the way; parts as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hocket.codecs import CODECS
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.training import SGD, Adagrad, Adam, Client, Lamb, Range, Rows, serve
from hocket.training.server.shards.store import Change, Tables, What
from hocket.training.server.tables import SHARES, Places, shares
from hocket.training.server.worker.encoding import Encoder, wire_codec
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
    layout = Places({"w": Range(N, optimizer=mine, initial=1.0, slice=40), "e": Rows(N, optimizer=mine, scale=0.0)}, 1)
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
    assert np.allclose(store.read(What(0, 0, np.array([5])))[0], row.detach().numpy(), atol=1e-5)


def test_a_reader_keeps_what_it_was_lent() -> None:
    store = Tables(Places({"w": Range(4)}, 1), 0)
    seen = store.read(What(0, 0, None))
    store.apply(Change(0, 0, None, np.ones(4, np.float32)))
    assert (seen == 0).all() and (store.held[0, 0].values == 1).all()
    kept = [store.read(What(0, 0, None))]
    for step in range(2, 6):
        store.apply(Change(0, 0, None, np.ones(4, np.float32)))
        kept.append(store.read(What(0, 0, None))[1:])
        assert [each[0] for each in kept] == [*range(1, step + 1)], "a view keeps them, too"
    del kept, seen
    homes = set()
    for _ in range(6):
        store.apply(Change(0, 0, None, np.ones(4, np.float32)))
        homes.add(store.read(What(0, 0, None)).ctypes.data)
    assert len(homes) == 2, "memory that nobody reads is used again"


def test_shares_are_about_as_large() -> None:
    counts = np.bincount(shares(np.arange(100 * SHARES)), minlength=SHARES)
    assert counts.min() > 50 and counts.max() < 160


def test_what_a_codec_leaves_is_taken_back_if_a_push_is_refused() -> None:
    """A push taken back leaves nothing, also if others were encoded since; nor does one that cannot be encoded."""
    dice = np.random.default_rng(1)
    refused, kept, last = (Change(0, 0, None, dice.standard_normal(300).astype(np.float32)) for _ in range(3))
    encoder, codec = Encoder(wire_codec("int8")), CODECS[wire_codec("int8") - 1]
    ((_, undo),), ((sent, _),) = encoder.encoded([refused]), encoder.encoded([kept])
    assert undo is not None
    undo()
    left = encoder._residuals[0, 0]
    assert np.allclose(codec.decode(sent.values, 300) + left, kept.values, atol=1e-5) and np.abs(left).max() > 1e-3
    with pytest.raises(ArgumentError, match="not finite by codec='int8'"):
        encoder.encoded([kept, kept._replace(part=1, values=np.full(300, np.inf, np.float32))])
    ((sent, _),) = encoder.encoded([last])
    assert np.allclose(codec.decode(sent.values, 300) + encoder._residuals[0, 0], last.values + left, atol=1e-5)


def with_codecs(comm: Communicator) -> None:
    """The loss of a codec in a push is in the next ones; answers are encoded, too."""
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


def test_an_optimizer_of_whole_layers_is_none_of_a_table() -> None:
    """Shards of a table begin anywhere."""
    with pytest.raises(ArgumentError, match=r"Lamb.* needs to know where each parameter begins.* give it to Sharded"):
        Range(8, optimizer=Lamb(0.01))
