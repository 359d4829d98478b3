"""hocket inside Dask: a real scheduler and real workers, as processes and as threads, with and without TLS."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import distributed
import numpy as np
import pytest

import hocket
import hocket.dask

ROOT = pathlib.Path(__file__).parents[3]
SIZE = 3


def cluster(**options: Any) -> Any:
    options = {"n_workers": SIZE, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0, **options}
    return distributed.LocalCluster(**options)


@pytest.fixture(scope="module", autouse=True)
def workers_find_the_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.syspath_prepend(ROOT)  # processes that are spawned take this
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster(processes=True) as made, distributed.Client(made) as found:
        found.wait_for_workers(SIZE, timeout=60)
        yield found


def variables(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.extensions["variables"].variables)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "client" in request.fixturenames:
        assert request.getfixturevalue("client").run_on_scheduler(variables) == []


def total(comm: hocket.Communicator, scale: float, x: Any = None, power: int = 1) -> tuple[int, int, int, float]:
    mine = np.full(1000, (comm.rank + scale) ** power)
    hocket.allreduce(mine)
    return comm.rank, comm.size, os.getpid(), float(mine[-1]) + (0 if x is None else float(x.sum()))


def test_run(client: Any) -> None:
    x = client.scatter(np.ones(5), broadcast=True)
    found = hocket.dask.run(client, total, 1.0, x, power=2)
    assert [(rank, size, value) for rank, size, _, value in found] == [(r, SIZE, 19.0) for r in range(SIZE)]
    assert len({pid for _, _, pid, _ in found}) == SIZE
    assert hocket.dask.run(client, lambda comm: comm.size) == [SIZE] * SIZE


def test_some_workers_in_an_order(client: Any) -> None:
    chosen = sorted(client.nthreads(), reverse=True)[:2]
    assert hocket.dask.run(client, lambda comm: distributed.get_worker().address, workers=chosen) == chosen
    with pytest.raises(hocket.ArgumentError, match="a worker of its own"):
        hocket.dask.run(client, total, 1.0, workers=[chosen[0], chosen[0]])


@pytest.mark.parametrize("others", ["wait in a call", "compute"])
def test_one_rank_fails_and_all_end(others: str, client: Any) -> None:
    def fails(comm: hocket.Communicator) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("by rank 2")
        if others == "compute":
            time.sleep(15)
        comm.barrier()

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="by rank 2"):
        hocket.dask.run(client, fails)
    assert time.monotonic() - started < 14
    assert len(hocket.dask.run(client, lambda comm: comm.rank, timeout=60)) == SIZE  # the workers are of use


def test_calls_that_differ(client: Any) -> None:
    def differ(comm: hocket.Communicator) -> None:
        comm.allreduce(np.ones(1 + comm.rank))

    with pytest.raises(hocket.MismatchError) as caught:
        hocket.dask.run(client, differ)
    assert set(caught.value.calls) <= {0, 1, 2} and "the ranks called different things" in str(caught.value)


def test_the_key_is_seen_nowhere(client: Any) -> None:
    """Neither in a command line, nor an environment, nor a log, nor what the scheduler keeps."""
    keys = hocket.dask.run(client, lambda comm: comm.world.session.key.hex())
    assert len(set(keys)) == 1 and len(keys[0]) == 64

    def look() -> str:
        with open("/proc/self/cmdline") as line, open("/proc/self/environ") as environ:
            return line.read() + environ.read() + repr(os.environ)

    seen = [*client.run(look).values(), str(client.get_worker_logs()), str(client.get_scheduler_logs())]
    seen += [str(client.run_on_scheduler(lambda dask_scheduler: str(vars(dask_scheduler))))]
    assert not any(keys[0] in each for each in seen)


@pytest.mark.parametrize("protocol", ["inproc://", "tcp://"])
def test_workers_that_are_threads_of_one_process(protocol: str) -> None:
    with cluster(processes=False, protocol=protocol) as made, distributed.Client(made) as client:
        found = hocket.dask.run(client, total, 1.0)
        assert [value for *_, value in found] == [6.0] * SIZE and {pid for _, _, pid, _ in found} == {os.getpid()}


def test_tls() -> None:
    security = distributed.Security.temporary()
    made = cluster(processes=True, n_workers=2, security=security, protocol="tls://")
    with made, distributed.Client(made, security=security) as client:
        client.wait_for_workers(2, timeout=60)
        assert all(address.startswith("tls://") for address in client.nthreads())
        assert [value for *_, value in hocket.dask.run(client, total, 1.0)] == [3.0, 3.0]


@pytest.mark.parametrize("n", [1, 2])
def test_a_worker_dies(n: int) -> None:
    def dies(comm: hocket.Communicator) -> None:
        if comm.rank == comm.size - 1:
            os._exit(3)
        comm.barrier()

    with cluster(processes=True, n_workers=n) as made, distributed.Client(made) as client:
        client.wait_for_workers(n, timeout=60)
        with pytest.raises(hocket.PeerLostError, match="is gone during barrier|has left the cluster"):
            hocket.dask.run(client, dies)


def test_a_client_that_cannot_be_used() -> None:
    class Asynchronous:
        asynchronous = True

    with pytest.raises(hocket.ArgumentError, match="is asynchronous"):
        hocket.dask.run(Asynchronous(), total)


def test_the_example() -> None:
    root = os.path.join(os.path.dirname(__file__), "..", "..", "..")
    done = subprocess.run(
        [sys.executable, os.path.join(root, "examples", "frameworks", "dask_run.py")],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 workers found [ 3." in done.stdout, done.stdout
