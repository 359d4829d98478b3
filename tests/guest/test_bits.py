"""All collectives over verbs: 2 and 4 ranks, on one device, across both, mixed with shm; the bits are those of tcp."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from checks import perform
from forked import Job, outputs
from places import ADDRESSES, HOSTS, PLACES, TRANSPORTS, env, freed, held

TCP: dict[tuple[int, bool], Any] = {}
"""The results of the same checks over tcp: (size, mixed) -> by rank."""


def found(size: int, where: pathlib.Path, transport: str, places: Any, mixed: bool) -> list[Any]:
    hosts: dict[str, Any] = {"hosts": HOSTS, "master": ADDRESSES[0]} if mixed else {}
    with Job(size, perform, where, env(transport, places[:size], "shm" if mixed else ""), **hosts) as job:
        said = [json.loads(out.splitlines()[-1]) for out in outputs(job.wait())]
    print(size, transport, said[0]["seconds"])
    return said


def by_tcp(size: int, where: pathlib.Path, mixed: bool) -> Any:
    if (size, mixed) not in TCP:
        TCP[size, mixed] = found(size, where / "tcp", "tcp", HOSTS if mixed else (0,) * 4, mixed)
    return TCP[size, mixed]


def same_bits(size: int, transport: str, said: list[Any], wanted: list[Any]) -> None:
    for rank in range(size):
        differ = [name for name, bits in said[rank]["found"].items() if wanted[rank]["found"][name] != bits]
        assert not differ, f"rank {rank} got other bits over {transport} than over tcp: {differ}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_call(transport: str, size: int, place: str, tmp_path: pathlib.Path) -> None:
    before = held()
    said = found(size, tmp_path / "transport", transport, PLACES[place], False)
    assert all(each["transports"] == [transport] * (size - 1) for each in said), said
    same_bits(size, transport, said, by_tcp(size, tmp_path, False))
    freed(before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_hosts(transport: str, tmp_path: pathlib.Path) -> None:
    """One communicator over two transports: shared memory inside the hosts, the other between them."""
    before = held()
    said = found(4, tmp_path / "transport", transport, HOSTS, True)
    for rank, each in enumerate(said):
        wanted = ["shm" if p == rank ^ 1 else transport for p in range(4) if p != rank]
        assert each["transports"] == wanted and each["groups"] == [[0, 1], [2, 3]], each
    if transport != "tcp":
        same_bits(4, transport, said, by_tcp(4, tmp_path, True))
    freed(before)
