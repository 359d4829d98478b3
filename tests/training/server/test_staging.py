"""Layers that are pulled ahead: the values are the table's, the memory is bounded, and a pass may be left early."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import Client, Range, Rows, Staged, serve
from support.worlds import same, spread

SHAPES = [(3, 4), (4, 2), (700,), (5,), (2, 2), (9,)]


def passes(comm: Communicator) -> None:
    tables: dict[str, Range | Rows] = {"e": Rows(2)}
    for i, shape in enumerate(SHAPES):
        tables[f"l{i}"] = Range(shape, initial=np.full(shape, i + 1.0))
    with serve(comm, tables, on=range(comm.size), clock="async", works=True) as server, Client(server) as client:
        names = [f"l{i}" for i in range(len(SHAPES))]
        layers = Staged(client, names, ahead=2)
        assert layers.nbytes == 3 * 700 * 4
        began = []
        pull = client.pull
        client.pull = lambda *words, **how: began.append(words[0]) or pull(*words, **how)  # type: ignore[method-assign]
        for turn in range(2):
            for i, (name, values) in enumerate(layers):
                assert name == f"l{i}" and len(began) == turn * len(SHAPES) + min(i + 3, len(SHAPES)), "two ahead"
                time.sleep(0.002)  # the next ones come into other buffers meanwhile
                same(values, np.full(SHAPES[i], i + 1.0, np.float32), name)
        for name, values in layers:
            assert name == "l0" and values[0, 0] == 1
            with pytest.raises(hocket.ArgumentError, match="a pass is under way in these buffers"):
                next(iter(layers))
            break
        for (name, values), i in zip(Staged(client, names[::-1]), range(5, -1, -1), strict=True):
            assert name == f"l{i}" and values.min() == values.max() == i + 1
        assert list(Staged(client, [])) == []
        with pytest.raises(hocket.ArgumentError, match="ahead=0"):
            Staged(client, ["l0"], ahead=0)
        with pytest.raises(hocket.ArgumentError, match="a layer must be a Range"):
            Staged(client, ["e"])
        comm.barrier()


@pytest.mark.parametrize("transport", ["threads", "shm"])
def test_layers_that_are_pulled_ahead(transport: str) -> None:
    spread(passes, 2, transport)
