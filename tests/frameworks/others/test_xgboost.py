"""hocket beside XGBoost: real ranks that train together, and what they raise when one fails."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import time
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

import hocket
import hocket.xgboost
from hocket.system.namespaces import hosts
from support import jobs
from support.two_hosts import job_on
from support.worlds import path_to, spread

ROWS, ROUNDS = 2000, 6


def rows() -> tuple[Any, Any]:
    """All rows, the same on every rank."""
    random = np.random.default_rng(3)
    x = random.standard_normal((ROWS, 8))
    return x, 2 * x[:, 0] + x[:, 1] ** 2 + 0.1 * random.standard_normal(ROWS)


class At(xgb.callback.TrainingCallback):  # type: ignore[misc]
    """Does `what` after round 2 on rank 1."""

    def __init__(self, comm: Any, what: Any) -> None:
        self.comm, self.what = comm, what

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch == 2 and self.comm.rank == 1:
            self.what()
        return False


def train(comm: Any, what: Any = None, params: Any = None, **options: Any) -> Any:
    x, y = rows()
    callbacks = [At(comm, what)] if what else None
    with hocket.xgboost.communicator(comm, **options):
        assert (xgb.collective.get_rank(), xgb.collective.get_world_size()) == (comm.rank, comm.size)
        matrix = xgb.DMatrix(x[comm.rank :: comm.size], y[comm.rank :: comm.size])
        return xgb.train({"nthread": 1, **(params or {})}, matrix, ROUNDS, callbacks=callbacks)


def models(comm: Any) -> None:
    """The same on all ranks, and nearly that of one process with all rows; twice, in one job."""
    x, y = rows()
    for method in ("hist", "approx"):
        model = train(comm, params={"tree_method": method})
        assert len(set(comm.allgather_object(bytes(model.save_raw())))) == 1
        alone = xgb.train({"nthread": 1, "tree_method": method}, xgb.DMatrix(x, y), ROUNDS)
        errors = [float(np.mean((each.predict(xgb.DMatrix(x)) - y) ** 2)) for each in (model, alone)]
        assert errors[0] < 1.1 * errors[1] < 0.2 * float(np.var(y))
    assert not xgb.collective.is_distributed()


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_models(size: int, transport: str) -> None:
    spread(models, size, transport)


def scikit_learn(comm: Any) -> None:
    x, y = rows()
    part = slice(comm.rank, None, comm.size)
    with hocket.xgboost.communicator(comm):
        model = xgb.XGBRegressor(n_estimators=20, n_jobs=1).fit(x[part], y[part])
    assert model.score(x, y) > 0.9


def longer_than_the_limit(comm: Any) -> None:
    """The limit is one of calls, not of the training."""
    with hocket.xgboost.communicator(comm, timeout=2):
        x, y = rows()
        time.sleep(4)
        xgb.train({"nthread": 1}, xgb.DMatrix(x, y), 2)


def one_port(comm: Any) -> None:
    """The tracker listens where it is told to, and no longer than the block."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = comm.broadcast_object(one.getsockname()[1])
    train(comm, host="127.0.0.1", port=port)
    comm.barrier()
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(hocket.ArgumentError, match="timeout"):
        train(comm, timeout=0)


@pytest.mark.parametrize("program", [scikit_learn, longer_than_the_limit, one_port])
def test_uses(program: Any) -> None:
    spread(program, 2, "shm")


# --- what fails


def raise_own() -> None:
    raise ZeroDivisionError("by rank 1")


def one_raises(comm: Any) -> None:
    if comm.rank == 1:
        with pytest.raises(ZeroDivisionError):
            train(comm, raise_own)
    else:
        with pytest.raises(hocket.PeerLostError, match="rank 1.*ZeroDivisionError: by rank 1"):
            train(comm, raise_own)
    assert comm.allreduce(np.ones(1))[0] == comm.size
    train(comm)


def wrong_parameter(comm: Any) -> None:
    """XGBoost's own error on one rank: all have its text."""
    params = {"max_depth": -5} if comm.rank == 1 else {}
    with pytest.raises(hocket.xgboost.TrainingError, match="rank 1: .*max_depth") as caught:
        train(comm, params=params)
    assert isinstance(caught.value, xgb.core.XGBoostError) and isinstance(caught.value, hocket.Error)


def late(comm: Any) -> None:
    """A rank that does not come in time."""
    with pytest.raises(hocket.xgboost.TrainingError, match="rank 0"):
        train(comm, lambda: time.sleep(5), timeout=2)


def no_such_address(comm: Any) -> None:
    with pytest.raises((hocket.Error, xgb.core.XGBoostError, OSError, ValueError)):
        train(comm, host="192.0.2.1", timeout=2)


@pytest.mark.parametrize(
    ("program", "size"), [(one_raises, 2), (one_raises, 3), (wrong_parameter, 2), (late, 2), (no_such_address, 2)]
)
def test_failures(program: Any, size: int) -> None:
    spread(program, size, "shm")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DIES = """
import hocket, test_xgboost as t
comm = hocket.init()
try:
    t.train(comm, t.dies)
except hocket.PeerLostError as error:
    print("ranks", error.ranks)
"""


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_is_killed(size: int) -> None:
    with jobs.Job(size, DIES, env={"PYTHONPATH": path_to(__file__)}) as job:
        ends = job.wait(60)
    assert ends[1].code == -signal.SIGKILL
    others = [end for rank, end in enumerate(ends) if rank != 1]
    assert all(end.out.endswith("ranks (1,)\n") for end in others), ends


# --- over two hosts

ON_HOSTS = """
import test_xgboost
comm = hocket.init()
import xgboost.tracker, hocket.xgboost.workers as workers
class Tracker(xgboost.tracker.RabitTracker):
    def start(self):
        super().start()
        say(listens=self.worker_args()["dmlc_tracker_uri"])
workers.RabitTracker = Tracker
model = test_xgboost.train(comm)
same = len(set(comm.allgather_object(bytes(model.save_raw()))))
comm.close()
say(same=same)
"""


@pytest.mark.skipif(hosts.refusal() is not None, reason=str(hosts.refusal()))
def test_two_hosts(tmp_path: pathlib.Path) -> None:
    """Network namespaces: rank 0's tracker listens where the other host reaches it, without being told."""
    source = f"import sys; sys.path.append({os.path.dirname(os.path.abspath(__file__))!r})\n" + ON_HOSTS
    with hosts.hosts() as names, job_on(names, source, tmp_path) as run:
        ends = run.wait(60)
    assert [end.code for end in ends] == [0] * 4, "\n".join(end.err for end in ends)
    told = [[json.loads(line) for line in end.out.splitlines() if line.startswith("{")] for end in ends]
    assert [each[-1]["same"] for each in told] == [1] * 4  # XGBoost's tracker prints lines of its own
    assert told[0][0]["listens"] == hosts.V4[0]
