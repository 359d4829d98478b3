"""torch's store as hocket asks it: a real TCPStore, and clients that race."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.worlds import in_threads

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
