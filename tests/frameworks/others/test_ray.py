"""hocket inside Ray: real actors of a real Ray on this machine."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective.types import ReduceOp
from ray.util.placement_group import placement_group_table

import hocket
import hocket.ray

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
KINDS = ["numpy", "torch", "mixed"]
for _ in range(2):
    hocket.ray.register_transport()  # before a method is declared by its name


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    hocket.ray.register()
    here = {"env_vars": {"HOCKET_IFACE": "127.0.0.1", "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=8, include_dashboard=False, runtime_env=here, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No key, no placement group; actors of `run` are gone (a fixture's may live)."""
    yield
    assert internal_kv._internal_kv_list("", namespace=b"hocket") == []
    assert [g for g in placement_group_table().values() if g["state"] != "REMOVED"] == []


@ray.remote(num_cpus=1)
class Actor:
    def do(self, function: Any, *args: Any) -> Any:
        return function(*args)


@pytest.fixture(scope="module")
def actors(cluster: None) -> Any:
    return [Actor.remote() for _ in range(2)]


def both(actors: Any, function: Any, *args: Any) -> list[Any]:
    """function(rank, *args) on both."""
    return list(ray.get([actor.do.remote(function, rank, *args) for rank, actor in enumerate(actors)], timeout=60))


def made(kind: str, rank: int, values: Any) -> Any:
    """An array of this kind; mixed: rank 0's is NumPy's and rank 1's is torch's."""
    x = np.asarray(values, np.float32).copy()
    return torch.from_numpy(x) if kind == "torch" or (kind == "mixed" and rank) else x


def join(rank: int, name: str, backend: str = "hocket") -> None:
    hocket.ray.register()
    collective.init_collective_group(2, rank, backend, name)


def leave(rank: int, name: str) -> None:
    collective.destroy_collective_group(name)


@pytest.fixture
def group(actors: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    name = request.node.name
    both(actors, join, name)
    yield lambda function, *args: both(actors, function, name, *args)
    both(actors, leave, name)


# --- the calls of ray.util.collective


def every_call(rank: int, name: str, kind: str) -> None:
    other = 1 - rank

    def new(values: Any, who: int = rank) -> Any:
        return made(kind, who, values)

    def equal(x: Any, values: Any) -> None:
        np.testing.assert_array_equal(np.asarray(x), np.asarray(values, np.float32))

    x = new([[1, 2], [rank, 4]])
    collective.allreduce(x, name)
    equal(x, [[2, 4], [1, 8]])
    for op, wanted in ((ReduceOp.PRODUCT, 6), (ReduceOp.MIN, 2), (ReduceOp.MAX, 3)):
        x = new([rank + 2])
        collective.allreduce(x, name, op)
        equal(x, [wanted])
    x = new(np.arange(5) + rank)
    collective.reduce(x, 1, name)
    equal(x, np.arange(5) * 2 + 1 if rank == 1 else np.arange(5))
    x = new([7 + rank, 8])
    collective.broadcast(x, 1, name)
    equal(x, [8, 8])
    parts = [new(np.zeros((2, 2)), who) for who in range(2)]
    collective.allgather(parts, new(np.full((2, 2), rank + 1)), name)
    equal(parts[0], np.full((2, 2), 1))
    equal(parts[1], np.full((2, 2), 2))
    parts = [new([1, 2, rank], who) for who in range(2)]
    x = new([0, 0, 0])
    collective.reducescatter(x, parts, name)
    equal(x, [2, 4, 1])
    equal(parts[other], [1, 2, rank])
    x = new([rank, 5])
    if rank == 0:
        collective.send(x, 1, name)
        collective.recv(x, 1, name)
        equal(x, [1, 6])
    else:
        y = new([9, 9])
        collective.recv(y, 0, name)
        equal(y, [0, 5])
        collective.send(new([1, 6]), 0, name)
    collective.barrier(name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_call(kind: str, group: Any) -> None:
    group(every_call, kind)


def test_dtypes(group: Any) -> None:
    def dtypes(rank: int, name: str) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8):
            x = torch.full((9,), rank + 1, dtype=dtype)
            parts = [torch.zeros(9, dtype=dtype) for _ in range(2)]
            collective.allgather(parts, x, name)
            collective.allreduce(x, name)
            assert x.tolist() == [3] * 9 and [part[0].item() for part in parts] == [1, 2], dtype

    group(dtypes)


def test_a_tensor_of_a_model_and_a_strided_one(group: Any) -> None:
    def unusual(rank: int, name: str) -> None:
        weight = torch.nn.Parameter(torch.ones(3))
        collective.allreduce(weight, name)
        wide = np.ones((4, 6), np.float32)
        collective.allreduce(wide[:, ::2], name)
        out = np.zeros((3, 4), np.float32)
        collective.reducescatter(out[:, ::2], [np.full((3, 2), i + 1, np.float32) for i in range(2)], name)
        assert weight.tolist() == [2, 2, 2] and wide.sum() == 36 and out.sum() == 6 * 2 * (rank + 1)

    group(unusual)


@pytest.mark.parametrize("n", [4, 1 << 18])
def test_arguments_of_an_actor_are_written_as_ray_does(n: int, actors: Any, group: Any, request: Any) -> None:
    """They are read-only; short ones came in a message, long ones lie in the object store."""

    def reduce_given(rank: int, x: Any, name: str) -> tuple[bool, float, float]:
        read_only = not x.flags.writeable
        collective.allreduce(x, name)
        return read_only, float(x[0]), float(x[-1])

    calls = [actor.do.remote(reduce_given, r, np.full(n, r + 1.0), request.node.name) for r, actor in enumerate(actors)]
    assert ray.get(calls, timeout=60) == [(True, 3.0, 3.0)] * 2


def test_a_declared_group(actors: Any) -> None:
    collective.create_collective_group(actors, 2, [1, 0], "hocket", "declared")

    def reduce_there(rank: int) -> tuple[int, float]:
        x = np.ones(3)
        collective.allreduce(x, "declared")
        return collective.get_rank("declared"), float(x[0])

    assert both(actors, reduce_there) == [(1, 2.0), (0, 2.0)]
    both(actors, leave, "declared")


def test_two_groups_of_one_name_in_two_namespaces(actors: Any) -> None:
    from hocket.ray.store import RayStore

    mine = RayStore("default")
    mine.set("note", "mine")
    context = ray.get_runtime_context().namespace
    assert mine.prefix == f"{context}/default/" and mine.get("note") == b"mine"
    theirs = RayStore("default")
    theirs.prefix = "other/default/"
    assert theirs.get("note") is None
    theirs.set("note", "theirs")
    mine.clear()
    assert mine.get("note") is None and theirs.get("note") == b"theirs"
    theirs.clear()


def held(rank: int) -> tuple[int, list[str]]:
    """The descriptors that this process has open, and hocket's threads."""
    import threading

    return len(os.listdir("/proc/self/fd")), [t.name for t in threading.enumerate() if "hocket" in t.name.lower()]


def test_destroy_leaves_nothing_behind(actors: Any) -> None:
    def once(rank: int, name: str) -> None:
        join(rank, name)
        collective.allreduce(np.ones(1 << 16), name)
        leave(rank, name)

    both(actors, once, "warm")
    before = both(actors, held)
    for i in range(5):
        both(actors, once, f"again {i % 2}")
    after = both(actors, held)
    assert all(threads == [] for _, threads in after), after
    assert all(now <= then for (now, _), (then, _) in zip(after, before, strict=True)), (before, after)


# --- what goes wrong


def test_shapes_that_do_not_fit(group: Any) -> None:
    def wrong(rank: int, name: str) -> None:
        for call in (
            lambda: collective.allgather([np.ones(2), np.ones(3)], np.ones(2), name),
            lambda: collective.allgather([np.ones(2), np.ones(2, np.float32)], np.ones(2), name),
            lambda: collective.reducescatter(np.ones(2), [np.ones(2), np.ones((1, 2))], name),
        ):
            with pytest.raises(RuntimeError, match="all must be alike") as caught:
                call()
            assert isinstance(caught.value, hocket.ArgumentError)
        with pytest.raises(RuntimeError, match="give each GPU an actor of its own"):
            collective.get_group_handle(name).allreduce([np.ones(1), np.ones(1)])

    group(wrong)


def test_ranks_that_call_different_things(actors: Any) -> None:
    both(actors, join, "differing")

    def differ(rank: int) -> str:
        with pytest.raises(RuntimeError) as caught:
            collective.allreduce(np.ones(3 + rank), "differing")
        assert isinstance(caught.value, hocket.MismatchError) and set(caught.value.calls) == {0, 1}
        return str(caught.value)

    for text in both(actors, differ):
        assert "rank 0 called allreduce(float64[3]" in text and "rank 1 called allreduce(float64[4]" in text
    both(actors, leave, "differing")


def test_an_actor_dies() -> None:
    pair = [Actor.remote() for _ in range(2)]
    both(pair, join, "dying")

    def die(rank: int) -> None:
        os._exit(1)

    def wait_for_it(rank: int) -> tuple[type, Any]:
        with pytest.raises(RuntimeError) as caught:
            collective.allreduce(np.ones(3), "dying")
        return type(caught.value).__mro__[1], caught.value.ranks  # type: ignore[attr-defined]

    waits = pair[0].do.remote(wait_for_it, 0)
    pair[1].do.remote(die, 1)
    assert ray.get(waits, timeout=20) == (hocket.PeerLostError, (1,))
    ray.get(pair[0].do.remote(leave, 0, "dying"))


def test_a_rank_that_does_not_come(actors: Any) -> None:
    """Rank 0 gives up, says who is missing, and takes its note away."""

    def alone(rank: int) -> tuple[int, ...]:
        from hocket.ray.store import join as meet

        with pytest.raises(hocket.TimeoutError) as caught:
            meet("alone", 0, 2, 1.0, make_default=False)
        return caught.value.missing

    assert ray.get(actors[0].do.remote(alone, 0), timeout=30) == (1,)


# --- run


def test_run() -> None:
    def total(comm: hocket.Communicator, scale: float, x: Any, power: int = 1) -> tuple[int, int, float]:
        mine = np.full(1000, (comm.rank + scale) ** power)
        hocket.allreduce(mine)  # on the default communicator
        return comm.rank, comm.size, float(mine[-1]) + float(x.sum())

    x = ray.put(np.ones(1 << 17))
    assert hocket.ray.run(total, 3, 1.0, x, power=2) == [(r, 3, 14.0 + (1 << 17)) for r in range(3)]
    assert hocket.ray.run(total, 1, 2.0, np.zeros(1), options={"num_cpus": 0.5}) == [(0, 1, 2.0)]
    alive = [each["ActorClassName"] for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
    assert "_RankActor" not in alive


@pytest.mark.parametrize("others", ["wait in a call", "compute"])
def test_run_ends_with_the_error_of_the_rank_that_failed(others: str) -> None:
    def fails(comm: hocket.Communicator) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("by rank 2")
        if others == "compute":
            time.sleep(600)
        comm.barrier()

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="by rank 2"):
        hocket.ray.run(fails, 3)
    assert time.monotonic() - started < 60


def test_run_ends_when_an_actor_dies() -> None:
    def dies(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            os._exit(7)
        comm.barrier()

    with pytest.raises(ray.exceptions.ActorDiedError):
        hocket.ray.run(dies, 2)


def test_run_without_room() -> None:
    with pytest.raises(hocket.TimeoutError, match=r"no room for 2 ranks of {'CPU': 5} within 1 s"):
        hocket.ray.run(lambda comm: None, 2, options={"num_cpus": 5}, timeout=1)
    with pytest.raises(hocket.ArgumentError, match="n=0 must be at least 1"):
        hocket.ray.run(lambda comm: None, 0)


# --- Ray Train


def trained(tmp_path: Any, trainer: Any, function: Any, failures: int = 0, **options: Any) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    run = RunConfig(storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=failures))
    return trainer(function, scaling_config=ScalingConfig(num_workers=2), run_config=run, **options).fit()


@pytest.mark.timeout(400)
def test_torch_trainer(tmp_path: Any) -> None:
    """DDP on hocket learns what one process learns from all the data."""
    from ray.train.torch import TorchConfig, TorchTrainer

    def learn() -> None:
        import torch.distributed as dist
        from ray.train.torch import prepare_model

        assert dist.get_backend() == "hocket" and type(dist.group.WORLD).__name__ == "ProcessGroupHocket"
        torch.manual_seed(1)
        bare = torch.nn.Linear(4, 1)
        alone = torch.nn.Linear(4, 1)
        alone.load_state_dict(bare.state_dict())
        model, data = prepare_model(bare), torch.randn(8, 4)
        share = data[dist.get_rank() :: 2]
        for net, rows in ((model, share), (alone, data)):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (net(rows) ** 2).mean().backward()
                optimizer.step()
        torch.testing.assert_close(bare.weight, alone.weight)
        (tmp_path / f"learned {dist.get_rank()}").touch()

    assert trained(tmp_path, TorchTrainer, learn, torch_config=TorchConfig(backend="hocket")).error is None
    assert sorted(path.name for path in tmp_path.glob("learned *")) == ["learned 0", "learned 1"]


@pytest.mark.timeout(400)  # three starts of workers, each of which imports all of Ray Train
def test_numpy_trainer_is_started_again(tmp_path: Any) -> None:
    """`HocketConfig`: a worker dies in the first start, and the second has a new communicator."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    flag = tmp_path / "died"

    def learn() -> None:
        from ray import train

        comm, context = hocket.communicator(), train.get_context()
        assert (comm.rank, comm.size) == (context.get_world_rank(), context.get_world_size())
        gradient = np.full(10, comm.rank + 1.0)
        hocket.allreduce(gradient)
        if comm.rank == 1 and not flag.exists():
            flag.touch()
            os._exit(1)
        comm.barrier()
        (tmp_path / f"sum {comm.rank} {gradient[0]:g}").touch()

    result = trained(tmp_path, DataParallelTrainer, learn, 1, backend_config=hocket.ray.HocketConfig())
    assert result.error is None and flag.exists()
    assert sorted(path.name for path in tmp_path.glob("sum *")) == ["sum 0 3", "sum 1 3"]


@pytest.mark.timeout(300)
def test_the_example() -> None:
    """In a Ray of its own."""
    program = pathlib.Path(__file__).parents[3] / "examples" / "frameworks" / "ray_train.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=280)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "2 workers on hocket: the loss is 0." in said, said[-4000:]


# --- tensors between actors (Ray Direct Transport)


@ray.remote(num_cpus=0.1, max_concurrency=3)
class Keeper:
    """An actor whose tensors stay with it."""

    @ray.method(tensor_transport="hocket")
    def make(self, factor: float = 1.0) -> Any:
        x = torch.arange(12.0).reshape(3, 4) * factor
        more = {"bf16": x.to(torch.bfloat16), "zero": torch.tensor(5), "none": torch.empty(0, 3), "array": np.arange(3)}
        return {"x": x, "turned": x.t(), "part": x[:, 1], "all": x[0].expand(2, 4), **more}

    def sum(self, made: Any, factor: float = 1.0) -> float:
        x = torch.arange(12.0).reshape(3, 4) * factor
        assert torch.equal(made["x"], x) and torch.equal(made["turned"], x.t()) and torch.equal(made["part"], x[:, 1])
        assert torch.equal(made["all"], x[0].expand(2, 4)) and torch.equal(made["bf16"], x.to(torch.bfloat16))
        assert made["zero"].item() == 5 and made["none"].shape == (0, 3) and made["array"].tolist() == [0, 1, 2]
        return float(made["x"].sum())

    def offered(self) -> int:
        from ray.experimental.rdt.util import get_tensor_transport_manager

        return len(get_tensor_transport_manager("HOCKET")._offered)

    def computes(self) -> None:
        self.busy = True
        end = time.monotonic() + 60
        while self.busy and time.monotonic() < end:
            pass
        assert not self.busy

    def ends(self) -> None:
        self.busy = False


@pytest.fixture
def keepers(cluster: None) -> Iterator[Any]:
    made = [Keeper.remote() for _ in range(3)]
    yield made
    for each in made:
        ray.kill(each)


def test_tensors_go_from_actor_to_actor_as_they_are(keepers: Any) -> None:
    """Strided ones, too, several times, and to the actor itself; then they are freed."""
    one, two, three = keepers
    refs = [one.make.remote(factor) for factor in (1.0, 2.0)]
    calls = [each.sum.remote(ref, factor) for ref, factor in zip(refs, (1.0, 2.0), strict=True) for each in keepers]
    assert ray.get(calls, timeout=60) == [66.0] * 3 + [132.0] * 3
    assert ray.get(three.sum.remote(two.make.remote()), timeout=60) == 66.0
    assert float(ray.get(refs[0], timeout=60)["x"].sum()) == 66.0
    assert ray.get(one.offered.remote(), timeout=60) == 2
    del refs, calls
    end = time.monotonic() + 20
    while ray.get(one.offered.remote(), timeout=60) and time.monotonic() < end:
        time.sleep(0.1)
    assert ray.get(one.offered.remote(), timeout=60) == 0


def test_an_actor_that_computes_holds_up_nobody(keepers: Any) -> None:
    one, two, _ = keepers
    busy = one.computes.remote()
    assert ray.get(two.sum.remote(one.make.remote(2.0), 2.0), timeout=60) == 132.0
    ray.get([one.ends.remote(), busy], timeout=60)


def test_an_actor_that_is_killed_is_an_error_where_its_tensors_are_used(keepers: Any) -> None:
    one, two, three = keepers
    refs = [one.make.remote() for _ in range(2)]
    ray.wait(refs, num_returns=2, timeout=60)
    assert ray.get(two.sum.remote(refs[0]), timeout=60) == 66.0
    ray.kill(one)
    time.sleep(1)
    for each in (two, three):
        with pytest.raises(ray.exceptions.RayError):
            ray.get(each.sum.remote(refs[1]), timeout=60)
    assert ray.get(two.sum.remote(three.make.remote()), timeout=60) == 66.0, "the others live"
