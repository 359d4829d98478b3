"""hocket inside LightGBM: real ranks, and beside each model the one that LightGBM's own sockets make of these rows."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest

import hocket
import hocket.lightgbm
from hocket.lightgbm.halving import pairs
from support import jobs
from support.worlds import path_to, spread

SIZES = (2, 3)
ROWS, COLUMNS, ROUNDS = 3000, 10, 8
ALWAYS = {"verbosity": -1, "num_threads": 1, "num_leaves": 15, "min_data_in_leaf": 5, "max_bin": 63}
CASES: dict[str, dict[str, Any]] = {
    "regression": {"objective": "regression"},
    "regression_l1": {"objective": "regression_l1"},  # renews leaves by sums over ranks
    "binary": {"objective": "binary", "is_unbalance": True},
    "multiclass": {"objective": "multiclass", "num_class": 3},
    "lambdarank": {"objective": "lambdarank"},
    "categorical": {"objective": "regression", "min_data_per_group": 5},
    "samples": {"objective": "binary", "bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.6},
    "quantized": {"objective": "regression", "use_quantized_grad": True},
    "wide": {"objective": "regression", "max_bin": 255, "num_leaves": 63, "min_sum_hessian_in_leaf": 0},
}


def rows(name: str) -> tuple[Any, Any]:
    """All rows, the same on every rank."""
    random = np.random.default_rng(7)
    columns = 300 if name == "wide" else COLUMNS
    x = random.standard_normal((ROWS, columns))
    y = x[:, 0] * 2 + x[:, 1] ** 2 + 0.3 * random.standard_normal(ROWS)
    if name == "categorical":
        x[:, 2] = random.integers(0, 12, ROWS)
        y += np.isin(x[:, 2], [1, 5, 7]) * 3
    if name in ("binary", "samples"):
        y = (y > 1).astype(float)
    if name in ("multiclass", "lambdarank"):
        y = np.digitize(y, [0.0, 2.0]).astype(float)
    return x, y


def dataset(name: str, comm: Any) -> Any:
    x, y = rows(name)
    mine = slice(comm.rank * ROWS // comm.size, (comm.rank + 1) * ROWS // comm.size)
    n = mine.stop - mine.start
    group = [10] * (n // 10) if name == "lambdarank" else None
    categories = [2] if name == "categorical" else "auto"
    return lgb.Dataset(x[mine], y[mine], group=group, categorical_feature=categories)


def text(model: Any) -> str:
    """Without the parameters, which name the network."""
    found: str = model.model_to_string().partition("\nparameters:")[0]
    return found


def on_sockets(name: str, params: dict[str, Any], comm: Any, rounds: int = ROUNDS) -> Any:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        ports = comm.allgather_object(one.getsockname()[1])
    machines = ",".join(f"127.0.0.1:{port}" for port in ports)
    own = {"machines": machines, "local_listen_port": ports[comm.rank], "time_out": 1}
    return lgb.train({**params, **own}, dataset(name, comm), rounds)


def same_as_sockets(comm: Any, name: str, learner: str = "data") -> str:
    with hocket.lightgbm.setup(comm) as network:
        params = {**ALWAYS, **CASES[name], **network.params, "tree_learner": learner}
        ours = lgb.train(params, dataset(name, comm), ROUNDS)
    theirs = on_sockets(name, params, comm)
    assert ours.num_trees() == ROUNDS * CASES[name].get("num_class", 1)
    assert text(ours) == text(theirs), f"{name}, rank {comm.rank}"
    return text(ours)


def every_objective(comm: Any) -> None:
    for name in CASES:
        texts = comm.allgather_object(same_as_sockets(comm, name))
        assert len(set(texts)) == 1, f"{name}: the models differ between ranks"


@pytest.mark.parametrize("size", [*SIZES, 4])
def test_models_are_those_of_sockets(size: int) -> None:
    spread(every_objective, size, "shm")


def voting(comm: Any) -> None:
    """The trees are the same everywhere.  A root's internal_value is of this rank's rows, with sockets too."""
    for name in ("regression", "multiclass"):
        mine = same_as_sockets(comm, name, "voting")
        lines = r"^(internal_value=\S+|tree_sizes=.*)"
        texts = comm.allgather_object(re.sub(lines, "", mine, flags=re.M))
        assert len(set(texts)) == 1


@pytest.mark.parametrize("size", SIZES)
def test_voting(size: int) -> None:
    spread(voting, size, "shm")


def over_tcp(comm: Any) -> None:
    assert "tcp" in comm.explain()
    same_as_sockets(comm, "regression")


def test_over_tcp() -> None:
    spread(over_tcp, 2, "tcp")


def stopping_early(comm: Any) -> None:
    """All ranks have the same rows to validate with, so all stop at once."""
    x, y = rows("regression")
    with hocket.lightgbm.setup(comm) as network:
        params = {**ALWAYS, "objective": "regression", "learning_rate": 0.9, **network.params}
        train = dataset("regression", comm)
        random = np.random.default_rng(3)
        valid = lgb.Dataset(x[:400], y[:400] + random.standard_normal(400), reference=train)
        model = lgb.train(params, train, 200, [valid], callbacks=[lgb.early_stopping(5, verbose=False)])
    assert 0 < model.best_iteration < 100
    assert len(set(comm.allgather_object((model.best_iteration, text(model))))) == 1


def scikit_learn(comm: Any) -> None:
    x, y = rows("regression")
    part = slice(comm.rank, None, comm.size)
    with hocket.lightgbm.setup(comm) as network:
        options = {"n_estimators": 10, "n_jobs": 1, "verbosity": -1, **network.params}
        regressor = lgb.LGBMRegressor(**options).fit(x[part], y[part])
        classifier = lgb.LGBMClassifier(**options).fit(x[part], (y > 1)[part])
    assert regressor.score(x, y) > 0.8 and classifier.score(x, y > 1) > 0.85
    assert len(set(comm.allgather_object(text(regressor.booster_) + text(classifier.booster_)))) == 1


def afterwards_alone(comm: Any) -> None:
    """Nothing of it is left: the same thread trains without the others, as it did before."""
    x, y = rows("regression")

    def alone() -> str:
        return text(lgb.train({**ALWAYS, "objective": "regression"}, lgb.Dataset(x, y), 3))

    before = alone()
    for _ in range(2):
        network = hocket.lightgbm.setup(comm)
        with pytest.raises(hocket.ArgumentError, match=r"free\(\) it first"):
            hocket.lightgbm.setup(comm)
        network.free()
        with pytest.raises(hocket.ArgumentError, match="freed before"):
            network.free()
    if comm.rank == 0:
        assert alone() == before
    with hocket.lightgbm.setup(comm.split(comm.rank)) as one:  # a job of one rank has no network
        assert text(lgb.train({**ALWAYS, "objective": "regression", **one.params}, lgb.Dataset(x, y), 3)) == before


def warned(network: Any, what: Any) -> list[str]:
    """The warnings of hocket's log."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hocket").addHandler(handler)
    with network:
        what()
    logging.getLogger("hocket").removeHandler(handler)
    return found


def trained_alone(comm: Any) -> None:
    """LightGBM keeps its network for each thread, and does without it unless it is told the number of ranks."""
    network = hocket.lightgbm.setup(comm)

    def fit(**params: Any) -> None:
        lgb.train({**ALWAYS, "objective": "regression", **params}, dataset("regression", comm), 2)

    def elsewhere() -> None:
        thread = threading.Thread(target=fit, kwargs=network.params)
        thread.start()
        thread.join()

    (told,) = warned(network, elsewhere)
    assert "trained alone" in told and f"rank {comm.rank}" in told
    network = hocket.lightgbm.setup(comm)
    assert len(warned(network, fit)) == 1
    network = hocket.lightgbm.setup(comm)
    assert warned(network, lambda: fit(**network.params)) == []


@pytest.mark.parametrize("program", [stopping_early, scikit_learn, afterwards_alone, trained_alone])
def test_uses(program: Any) -> None:
    spread(program, 2, "shm")


def test_ranks_that_are_threads() -> None:
    with hocket.local_world(3) as world:
        world.run(lambda comm: same_as_sockets(comm, "regression"))


# --- what fails


class Own(Exception):
    """A rank's own error."""


@contextlib.contextmanager
def at_round(n: int, rank: int, comm: Any, what: Any) -> Iterator[Any]:
    """A callback of LightGBM's that does `what` on one rank."""

    def call(env: Any) -> None:
        if env.iteration == n and comm.rank == rank:
            what()

    yield call


def train(comm: Any, callback: Any = None, rounds: int = ROUNDS, **more: Any) -> Any:
    with hocket.lightgbm.setup(comm) as network:
        params = {**ALWAYS, "objective": "regression", **network.params, **more}
        return lgb.train(params, dataset("regression", comm), rounds, callbacks=[callback] if callback else None)


def raise_own() -> None:
    raise Own("by rank 1")


def one_raises(comm: Any) -> None:
    """The others hear whose error it was, and the communicator that was given can be used on."""
    with at_round(3, 1, comm, raise_own) as callback:
        if comm.rank == 1:
            with pytest.raises(Own):
                train(comm, callback)
        else:
            with pytest.raises(hocket.PeerLostError, match=r"rank 1.*Own: by rank 1") as caught:
                train(comm, callback)
            assert tuple(caught.value.ranks) == (1,)
            assert isinstance(caught.value.__context__, lgb.basic.LightGBMError)
            assert "PeerLostError" in str(caught.value.__context__)
    assert comm.allreduce(np.ones(1))[0] == comm.size
    assert train(comm).num_trees() == ROUNDS


@pytest.mark.parametrize("size", SIZES)
def test_one_rank_raises(size: int) -> None:
    spread(one_raises, size, "shm")


def disagreeing(comm: Any) -> None:
    """Where LightGBM's sockets would wait for ever, or mix up bytes."""
    with pytest.raises(hocket.MismatchError, match="the ranks called different things"):
        train(comm, num_leaves=31 if comm.rank else 15)


def different_rounds(comm: Any) -> None:
    """The rank that has more hears that the other has left; which may have left already, and be content."""
    try:
        train(comm, rounds=3 + comm.rank)
    except (hocket.MismatchError, hocket.PeerLostError) as error:
        assert "rank 0" in str(error)
    else:
        assert comm.rank == 0


@pytest.mark.parametrize("program", [disagreeing, different_rounds])
def test_ranks_that_disagree(program: Any) -> None:
    spread(program, 2, "shm")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DIES = """
import hocket, test_lightgbm as t
comm = hocket.init()
try:
    with t.at_round(2, 1, comm, t.dies) as callback:
        t.train(comm, callback)
except hocket.PeerLostError as error:
    print("ranks", error.ranks)
"""


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_is_killed(size: int) -> None:
    with jobs.Job(size, DIES, env={"PYTHONPATH": path_to(__file__)}) as job:
        ends = job.wait(60)
    assert ends[1].code == -signal.SIGKILL
    others = [end for rank, end in enumerate(ends) if rank != 1]
    assert all(end.out.endswith("ranks (1,)\n") for end in others), ends


def test_the_order_of_sums() -> None:
    """Each rank's block once, whatever the size."""
    for size in range(1, 40):
        sums = [[rank] for rank in range(size)]
        for into, of in pairs(size):
            sums[into] += sums[of]
        assert sorted(sums[0]) == list(range(size))
