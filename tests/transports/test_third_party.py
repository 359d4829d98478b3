"""A transport of another package, installed as one: found by its entry point, lawful, and used by a real job."""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import harness
import pytest
from conformance import LAWS, Pair, Side

from hocket.transports import registry

SOURCE = Path(__file__).parents[1] / "plugins" / "hocket_pipes"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(SOURCE, folder / "source")
    where = folder / "installed"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(where), str(folder / "source")]
    subprocess.run(command, check=True, timeout=100)
    return where


@pytest.fixture
def pipes(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(installed))
    yield importlib.import_module("hocket_pipes")


def test_it_is_found(pipes: ModuleType) -> None:
    assert registry.load(["pipes"]) == ({"pipes": pipes.PipesTransport}, {})
    assert list(registry.known())[: len(registry.BUILT_IN)] == list(registry.BUILT_IN)


NAMES = itertools.count()


def pair_of(pipes: ModuleType, made: list[object]) -> Pair:
    def pair() -> tuple[Side, Side]:
        ends = [pipes.PipesTransport(SimpleNamespace(rank=r, size=2)) for r in range(2)]
        made.extend(ends)
        name = f"lane{next(NAMES)}"
        lanes = [end.lane(name, r, [0, 1]) for r, end in enumerate(ends)]
        offers = [lane.offer() for lane in lanes]
        sides = [Side(*lane.open(1 - r, offers[1 - r]), (lane, lanes), lane.close) for r, lane in enumerate(lanes)]
        return sides[0], sides[1]

    return pair


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Pair], None], pipes: ModuleType) -> None:
    made: list[pipes.PipesTransport] = []  # type: ignore[name-defined]
    try:
        law(pair_of(pipes, made))
    finally:
        for transport in made:
            transport.close()


def test_a_job_of_two_processes(installed: Path) -> None:
    source = """
        import hocket, numpy as np
        comm = hocket.init()
        for n in (1, 5000, 300000):
            x = np.arange(n, dtype=np.float64) * (comm.rank + 1)
            assert np.array_equal(comm.allreduce(x), np.arange(n) * 3.0)
            assert np.array_equal(comm.allgather(np.full(n, comm.rank)), np.repeat([0, 1], n))
            y = np.full(n, comm.rank)
            comm.broadcast(y, root=1)
            assert (y == 1).all()
        print("pipes" in comm.explain())
        comm.close()
    """
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert harness.run(2, source, HOCKET_TRANSPORT="pipes", PYTHONPATH=path) == ["True\n", "True\n"]
