"""Groups beside others: of several backends, made again over one store, beside Gloo's, under torch's debug mode."""

from __future__ import annotations

import pathlib

from hocket.torch.group import backend
from support.torch_ranks import facts, job, run

MIXED = """
place = "file://" + os.environ["PLACE"]
try:
    dist.init_process_group("cpu:hocket,cuda:gloo", init_method=place, rank=rank, world_size=size)
except ValueError as error:
    tell(error)
else:
    x = torch.ones(5)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).get_future().wait()
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, x[:2])
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.full((1, 3), float(rank))).sum().backward()
    say(found=[x[0].item(), parts[-1][0].item(), *objects, model.module.weight.grad[0, 0].item()])
    try:
        dist.all_reduce(torch.ones(3 + rank))
    except RuntimeError as error:
        tell(error)
    dist.destroy_process_group()
"""


def test_a_mixture_of_backends(tmp_path: pathlib.Path) -> None:
    """Refused where torch takes a group made in Python for the whole group, which would be silently hocket's."""
    ends = run(2, MIXED, tmp_path)
    for end in ends:
        said = facts(end)
        if backend.available():
            assert said["found"] == [4, 4, 0, 1, 0.5] and "called different things" in said["text"], said
        else:
            assert "hocket cannot share a group with gloo before torch 2.14" in said["text"], end


AGAIN = """
for turn in range(4):
    dist.init_process_group("hocket", store=dist.FileStore(os.environ["PLACE"], size), rank=rank, world_size=size)
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 3
    part = dist.new_group([0, 1])
    dist.all_reduce(x, group=part)
    assert x.tolist() == [size * 2] * 3
    dist.destroy_process_group()
say(done=True)
"""


def test_init_and_destroy_again_and_again_over_one_store(tmp_path: pathlib.Path) -> None:
    with job(2, AGAIN, tmp_path) as run:
        assert all(facts(end).get("done") for end in run.wait(90))


BESIDE = """
dist.init_process_group("gloo", init_method="file://" + os.environ["PLACE"], rank=rank, world_size=size)
pairs = [dist.new_group([0, 1], backend="hocket"), dist.new_group([1, 2], backend="hocket")]
whole = dist.new_group(backend="hocket")
x = torch.ones(2)
if rank < 2:
    dist.all_reduce(x, group=pairs[0])
if rank > 0:
    dist.all_reduce(x, group=pairs[1])
dist.all_reduce(x, group=whole)
say(x=x.tolist())
dist.destroy_process_group()
"""


def test_groups_beside_a_default_group_of_gloo(tmp_path: pathlib.Path) -> None:
    """Each of them meets on its own then."""
    with job(3, BESIDE, tmp_path) as run:
        assert [facts(end)["x"] for end in run.wait(90)] == [[8.0, 8.0]] * 3


DETAIL = """
dist.set_debug_level_from_env()  # as importing torch does; this process may have, before it got its environment
start()
assert dist.get_debug_level() == dist.DebugLevel.DETAIL
group = dist.new_group()
for each in (None, group):
    x = torch.ones(3)
    dist.all_reduce(x, group=each)
    assert x.tolist() == [size] * 3
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
try:
    dist.all_reduce(torch.ones(3 + rank), group=group)
except dist.DistBackendError as error:
    tell(error)
dist.destroy_process_group()
"""


def test_torchs_debug_mode_changes_nothing(tmp_path: pathlib.Path) -> None:
    """torch wraps no group that is made in Python; what its wrapper would find out is told anyway."""
    with job(2, DETAIL, tmp_path, TORCH_DISTRIBUTED_DEBUG="DETAIL") as started:
        for end in started.wait(90):
            assert end.code == 0, end.err
            told = facts(end)
            assert "hocket.errors.MismatchError" in told["kinds"]
            for rank in range(2):
                assert f"rank {rank} called allreduce(float32[{3 + rank}], op='sum') at rank.py:" in told["text"]


SHARDED = """
start()
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(size)])
x = sharded_tensor.full(spec, (4, 3), 1.0 + rank)
whole = torch.empty(4, 3) if rank == 0 else None
x.gather(0, whole)
if rank == 0:
    say(got=whole[:, 0].tolist(), devices=dist.Backend.backend_capability["hocket"])
dist.destroy_process_group()
"""


def test_no_gpu_is_named_where_there_is_none(tmp_path: pathlib.Path) -> None:
    """torch would gather a ShardedTensor through one."""
    ends = run(2, SHARDED, tmp_path)
    assert facts(ends[0]) == {"got": [1, 1, 2, 2], "devices": ["cpu"]}, ends
