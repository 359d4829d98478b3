"""torch's store as hocket asks it: a real TCPStore, and clients that race."""

from __future__ import annotations

import pathlib
from datetime import timedelta

import pytest

from support import torch_ranks
from support.worlds import in_threads

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


def test_one_of_the_clients_that_race_wins() -> None:
    from hocket.torch.group.bootstrap import TorchStore

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    found: dict[int, list[bytes]] = {}

    def race(i: int) -> None:
        store = TorchStore(dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=20)))
        found[i] = [store.first(f"key {n}", f"of {i}") for n in range(20)]
        assert [store.get(f"key {n}") for n in range(20)] == found[i]

    in_threads(*(lambda i=i: race(i) for i in range(4)))
    assert len(found) == 4 and all(each == found[0] for each in found.values())


OTHER = """
if rank == 1:
    torch.__version__ = "2.99.1+cpu"
try:
    start()
except RuntimeError as error:
    tell(error)
"""


def test_ranks_whose_torch_differs_are_told_on_all_of_them(tmp_path: pathlib.Path) -> None:
    for end in torch_ranks.run(2, OTHER, tmp_path):
        said = torch_ranks.facts(end)
        assert "hocket.torch.errors.MismatchError" in said["kinds"], end
        assert f"rank 0 has torch {torch.__version__}, rank 1 has torch 2.99.1+cpu: install one on all" in said["text"]
