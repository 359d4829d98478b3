"""`dist._reconfigure` and `dist.shrink_group`: ranks are killed, come late and come new; what cannot go on says so.

torch has the first since 2.14 (`make test-torch TORCH=...` runs these tests there); before that a group that torch does
not know is in the place of the default one.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys

import pytest
import torch.distributed as dist

from hocket.torch.group import backend
from support import torch_ranks
from support.torch_ranks import facts

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "pytorch" / "reconfigure.py"
API = "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters
BEGIN = f"""
import os, signal
from types import SimpleNamespace as Options
api, place = {API}, os.environ["PLACE"]
store, limit = dist.FileStore(place + ".handles"), timedelta(seconds=60)
""" + """
if api:
    start(enable_reconfigure=True, timeout=limit)
group = dist.group.WORLD if api else hocket.torch.reconfigurable(limit)
beside = hocket.torch.reconfigurable(limit)
def handles(turn, ranks, of=group):
    store.set(f"{turn}/{rank}", of.get_reconfigure_handle())
    return [store.get(f"{turn}/{each}").decode() for each in ranks]
def meet(uuid, handles, seconds=60, of=group):
    of.reconfigure(Options(uuid=uuid, handles=handles, timeout=timedelta(seconds=seconds))).wait()
    if api:
        assert (dist.get_rank(), dist.get_world_size()) == (group.rank(), group.size())
        assert dist.get_process_group_ranks(group) == list(range(group.size()))
def total(of=group):
    x = torch.full((3,), of.rank() + 1.0)
    of.allreduce(x).wait()
    return x[0].item()
def failing(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
"""
LIFE = BEGIN + """
before = failing(total)
own = group.get_reconfigure_handle()
first = handles("a", range(4))
said = {"before": before, "sums": []}
if rank < 3:
    meet(1, first[:3])
    said["sums"].append(total())
    mine = group.get_reconfigure_handle()
    wrong = [first[:3], ["gloo:0:-1:0:", mine], [mine, mine], [mine[:-1], mine]]
    said["wrong"] = [failing(meet, 2, each) for each in wrong] + [failing(meet, 1, [mine])]
    said["sums"].append(total())  # the group has gone on
    cut = group.split_group([0, 2])
    grandchild = cut and cut.split_group([0, 1])
    if rank != 1:
        meet(1, handles("z", [2, 0], beside), of=beside)  # one of its own, with other ranks
        said["pairs"] = [beside.rank(), total(beside), total(cut), total(grandchild)]
    again = handles("b", range(3))
    if rank < 2:  # rank 2 does not come
        said["late"] = failing(meet, 3, again, 1)
        said["unmet"] = failing(total)
    again = handles("c", range(3))
    meet(4, again)
    said["sums"].append(total())
    again = handles("d", range(3))
    part = dist.new_group([0, 2]) if api else None
    if api:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        def average(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        compiled = torch.compile(average, backend="eager")
        said["compiled"] = [compiled(torch.tensor(6.0)).item()]
        model = torch.nn.Linear(6, 6)
        fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
        model(torch.ones(2, 6)).sum().backward()
        store.set("new", again[0])
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said["lost"] = failing(total)
    store.set(f"living/{rank}", again[rank])
living = [store.get(f"living/{each}").decode() for each in (0, 2)] + [first[3]]
if rank < 3:
    said["pairs"].append(total(beside))  # what has happened to the other group is nothing to it
meet(5, living)  # rank 0, rank 2, and the newcomer
said["sums"].append(total())
if rank < 3:
    said["pairs"] += [total(beside), failing(total, cut), failing(total, grandchild)]
meet(2, handles("y", [3, 2, 0], beside), of=beside)
said["beside"] = [beside.rank(), total(beside)]
if api:
    if rank < 3:
        said["over"] = [failing(dist.all_reduce, torch.ones(2), dist.ReduceOp.SUM, part)]
    if rank == 2:  # its rank is another one now, as the newcomer's is
        said["over"].append(failing(lambda: model(torch.ones(2, 6)).sum().backward()))
    pair = dist.new_group([0, 2])
    if group.rank() != 1:
        dist.all_reduce(x := torch.ones(2), group=pair)
        said["sums"].append(x[0].item())
    alone = handles("s", [0, 2, 3])[1:2]
    if rank == 2:
        meet(7, alone)
        said["compiled"].append(compiled(torch.tensor(6.0)).item())  # the size is a number in the program
last = handles("e", [0, 2, 3])
said["uuids"] = failing(meet, 10 + rank, last)
meet(6, handles("f", [0, 2, 3]))
said["sums"].append(total())
say(**said)
if api:
    dist.destroy_process_group()
else:
    group.shutdown()
beside.shutdown()
"""


def test_ranks_meet_again_without_who_was_lost_and_with_newcomers(tmp_path: pathlib.Path) -> None:
    with torch_ranks.job(4, LIFE, tmp_path) as job:
        ends = job.wait(100)
    said = [facts(end) for end in ends]
    assert [end.code for end in ends] == [0, -9, 0, 0], [end.err for end in ends]
    for rank in (0, 2, 3):
        pair = [2.0] if API and rank != 2 else []
        assert said[rank]["sums"] == [6.0] * (1 if rank == 3 else 4) + pair + [6.0], said[rank]
        assert "all of them call dist._reconfigure(uuid, handles) first" in said[rank]["before"]
        assert said[rank]["beside"] == [{3: 0, 2: 1, 0: 2}[rank], 6.0], said[rank]
        assert said[rank]["uuids"].startswith("MismatchError") and "[10, 12, 13]" in said[rank]["uuids"], said[rank]
    for rank in (0, 2):
        assert said[rank]["lost"].startswith("PeerLostError: rank 1"), said[rank]
        assert said[rank]["pairs"][:6] == [int(rank == 0), 3.0, 3.0, 3.0, 3.0, 3.0], said[rank]
        assert all("its group was reconfigured" in error for error in said[rank]["pairs"][6:]), said[rank]
        texts = ("this process's handle is not one of the 3", "'gloo:0:-1:0:' is not a handle", "stands there twice",
                 "is not a handle", "uuid 1 was already used")  # fmt: skip
        for error, text in zip(said[rank]["wrong"], texts, strict=True):
            assert error.startswith("ArgumentError") and text in error, error
        assert all("was reconfigured" in error for error in said[rank].get("over", ["was reconfigured"])), said[rank]
    assert said[2].get("compiled", [6.0, 6.0]) == [6.0, 6.0], "not a sum by the size of before"
    assert said[0]["late"].startswith("TimeoutError") and "2] did not come" in said[0]["late"], said[0]
    assert "all of them call dist._reconfigure" in said[0]["unmet"]


SHRINK = """
from hocket.torch.group import backend
{begin}
part = dist.new_group([0, 1, 2])
if backend.available() and dist.group.WORLD.comm.door is None and rank != 1:
    dist.all_reduce(x := torch.ones(2), group=dist.shrink_group([1], group=part))
    assert x[0] == 2
dist.all_reduce(torch.ones(2))  # the default group goes on
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    while True:
        dist.all_reduce(torch.ones(2))
except hocket.PeerLostError:
    pass
try:
    group = dist.shrink_group([1])
except TypeError as error:
    tell(error)
else:
    dist.all_reduce(x := torch.ones(2))
    generation = group._get_backend(torch.device("cpu")).comm.generation
    say(sum=x[0].item(), rank=dist.get_rank(), size=dist.get_world_size(), generation=generation)
    dist.destroy_process_group()
"""


def test_a_group_shrinks_after_a_loss(tmp_path: pathlib.Path) -> None:
    """Over the group's store, and by the members' agreement where the job is elastic."""
    for place, begin, generation in (
        ("plain", "start()", 0), ("elastic", "hocket.torch.use(hocket.init(elastic=True))", 1)
    ):
        (tmp_path / place).mkdir()
        with torch_ranks.job(3, SHRINK.format(begin=begin), tmp_path / place) as job:
            ends = job.wait(90)
        for now, before in enumerate((0, 2)):
            said = facts(ends[before])
            if backend.available():
                assert said == {"sum": 2.0, "rank": now, "size": 2, "generation": generation}, ends[before]
            else:
                assert "does not support shrinking" in said["text"], ends[before]


@pytest.mark.skipif(not API, reason="torch has enable_reconfigure since 2.14: make test-torch TORCH=torch==2.15.0")
def test_the_example() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    lines = re.findall(r"rank (\d) of (\d) goes on at step (\d+)", run.stdout)
    assert sorted(lines)[:2] == [("0", "2", "7"), ("0", "3", "0")] and len(lines) == 5, run.stdout
