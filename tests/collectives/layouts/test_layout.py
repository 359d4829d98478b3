"""The layouts that have a name, each beside what it stands for, told another way."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Layout

SHAPES = [(), (1,), (7,), (3, 4), (2, 3, 5), (0, 3), (4, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_flat_pieces_follow_each_other_in_the_vector(shape: tuple[int, ...]) -> None:
    """A vector of three arrays, ZeRO's: its elements in order, on 1 to 5 ranks, whose parts are of one length."""
    n = int(np.prod(shape))
    x = np.arange(n).reshape(shape)
    for size, begin, end in itertools.product(range(1, 6), (0, 3), (0, 5)):
        total = begin + n + end
        vector = np.concatenate([np.full(begin, -1), x.ravel(), np.full(end, -1)])
        each = -(-total // size)
        layout = Layout.flat(shape, size, begin, total)
        for rank in range(size):
            mine = [part.ravel() for part in layout.parts(x, rank)]
            wanted = vector[rank * each : (rank + 1) * each]
            assert np.array_equal(np.concatenate([np.empty(0, int), *mine]), wanted[wanted >= 0])
            assert len(mine) <= max(1, 2 * len(shape) - 1)


def test_parts_along_an_axis() -> None:
    x = np.arange(60).reshape(10, 6)
    for size in range(1, 12):
        for rank, want in enumerate(np.array_split(x, size)):
            assert np.array_equal(Layout.cut((10, 6), size).parts(x, rank)[0], want)
        for rank in range(size):
            (got,) = Layout.cyclic((10, 6), size).parts(x, rank) or [x[:0]]
            assert np.array_equal(got, x[rank::size])
            blocks = Layout.cyclic((10, 6), size, axis=1, block=2).parts(x, rank)
            columns = [c for c in range(6) if c // 2 % size == rank]
            assert np.array_equal(np.hstack([x[:, :0], *blocks]), x[:, columns])


def test_a_mesh() -> None:
    """JAX's PartitionSpec: an axis over two names is cut by the first, and the parts by the second."""
    x = np.arange(96).reshape(8, 12)
    layout = Layout.placed((8, 12), {"data": 2, "tensor": 3, "copy": 2}, (("data", "copy"), "tensor"))
    for rank, (data, tensor, copy) in enumerate(itertools.product(range(2), range(3), range(2))):
        rows, columns = 2 * (2 * data + copy), 4 * tensor
        assert np.array_equal(layout.parts(x, rank)[0], x[rows : rows + 2, columns : columns + 4])
    assert Layout.placed((8,), {"a": 3}, [None]) == Layout.replicated((8,), 3)
    mesh = types.SimpleNamespace(axes={"data": 2, "tensor": 2}, places=[3, 0, 4, 1])  # hocket's: 2 is spare
    layout = Layout.placed((4, 6), mesh, (None, "tensor"))
    assert [[box[1] for box in own] for own in layout.boxes] == [
        [slice(3, 6, 1)], [slice(3, 6, 1)], [], [slice(0, 3, 1)], [slice(0, 3, 1)]]  # fmt: skip


def test_layouts_of_others() -> None:
    """A JAX sharding and a torch mesh, as far as hocket asks them.  The frameworks' tests have real ones."""
    device = types.SimpleNamespace
    devices = [device(process_index=0), device(process_index=0), device(process_index=1)]
    indices = [(slice(None), slice(0, 2)), (slice(None), slice(0, 2)), (slice(None), slice(2, 5))]
    found = dict(zip(map(id, devices), indices, strict=True))
    sharding: Any = device(devices_indices_map=lambda shape: types.MappingProxyType(
        {_Key(each): found[id(each)] for each in devices}))  # fmt: skip
    assert Layout.of_sharding(sharding, (4, 5)) == Layout.cut((4, 5), 2, axis=1, lengths=[2, 3])
    shard, whole = type("Shard", (), {"dim": 0})(), type("Replicate", (), {})()
    mesh = device(mesh=np.array([[2, 0], [1, 3]]))
    layout = Layout.of_dtensor(mesh, [shard, whole], (5,))
    assert [layout.shapes(rank) for rank in range(4)] == [[(3,)], [(2,)], [(3,)], [(2,)]]
    twice = Layout.of_dtensor(mesh, [shard, shard], (5,))  # parts as torch.chunk cuts them, and cuts them again
    rows = [(box[0].start, box[0].stop) for box in (twice.boxes[rank][0] for rank in (2, 0, 1, 3))]
    assert rows == [(0, 2), (2, 3), (3, 4), (4, 5)]
    strided = type("_StridedShard", (), {"dim": 0, "split_factor": 2})()  # behind two parts along the next axis
    layout = Layout.of_dtensor(mesh, [strided, shard], (8,))
    assert [layout.boxes[rank] for rank in (2, 0, 1, 3)] == [[(slice(i, i + 2, 1),)] for i in (0, 4, 2, 6)]
    with pytest.raises(hocket.ArgumentError, match="a rank's part is not a box"):
        Layout.of_dtensor(mesh, [strided, whole], (8,))
    with pytest.raises(hocket.ArgumentError, match="redistribute it to Shard or Replicate first"):
        Layout.of_dtensor(mesh, [type("Partial", (), {})(), whole], (5,))


class _Key:
    """A device that can be a key."""

    def __init__(self, device: Any) -> None:
        self.process_index = device.process_index


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Layout.cut((4,), 2, axis=1), "axis=1"),
        (lambda: Layout.cut((4,), 2, lengths=[1, 2]), "add up to 4"),
        (lambda: Layout.cut((4,), 0), "size=0"),
        (lambda: Layout((-1,), []), "negative"),
        (lambda: Layout((4,), "ab"), "must be a list"),
        (lambda: Layout.cyclic((10**9,), 2, block=2), "take longer blocks"),
        (lambda: Layout.placed((4,), {"a": 2}, ["b"]), "the mesh has 'a'"),
        (lambda: Layout.placed((4, 4), {"a": 2}, ["a", "a"]), "twice"),
        (lambda: Layout.replicated((4,), 2).parts(np.zeros(5), 0), "is not the layout's"),
    ],
)
def test_what_is_wrong_is_said(make: Any, text: str) -> None:
    with pytest.raises(hocket.ArgumentError, match=text):
        make()
