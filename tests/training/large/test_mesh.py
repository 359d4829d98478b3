"""Ranks with places on named axes: who is next to whom, by which link, and what a loss means."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.system.namespaces import hosts as namespaces
from hocket.torch.training import tensor as of_torch
from hocket.training import ColumnParallel, Experts, LocalSGD, Mesh, Scheduler
from hocket.training.large.mesh.placing import placed
from support.elastic_ranks import BEGIN, said
from support.faulty import facts
from support.jobs import Job
from support.two_hosts import job_on
from support.worlds import spread

WHY_NOT = namespaces.refusal()


@pytest.mark.parametrize(
    ("host_of", "lengths", "wanted"),
    [
        ([0] * 8, [2, 2, 2], [*range(8)]),
        ([0, 1] * 4, [2, 4], [0, 2, 4, 6, 1, 3, 5, 7]),
        ([0, 1] * 4, [2, 2, 2], [0, 2, 4, 6, 1, 3, 5, 7]),
        ([0, 0, 1, 1, 2, 2], [3, 2], [*range(6)]),
        ([0, 1, 2, 0, 1, 2], [3, 2], [0, 3, 1, 4, 2, 5]),
        ([0, 0, 0, 1, 1, 1], [3, 2], [0, 1, 2, 5, 3, 4]),  # one pair has to be between the hosts
        ([0, 1, 1, 1, 1, 0], [1, 3, 2], [0, 5, 1, 2, 3, 4]),
        ([0, 1, 2, 3], [2, 2], [0, 1, 2, 3]),
    ],
)
def test_the_last_axis_stays_inside_hosts(host_of: list[int], lengths: list[int], wanted: list[int]) -> None:
    assert placed(host_of, lengths) == wanted


def test_as_many_rows_inside_hosts_as_there_can_be() -> None:
    dice = np.random.default_rng(3)
    for _ in range(200):
        lengths = dice.integers(1, 5, 3).tolist()
        host_of = dice.integers(0, 3, np.prod(lengths)).tolist()
        found = placed(host_of, lengths)
        assert sorted(found) == [*range(len(found))]
        rows = np.array([host_of[rank] for rank in found]).reshape(-1, lengths[2])
        inside = sum(len(set(row)) == 1 for row in rows.tolist())
        assert inside >= sum(host_of.count(host) // lengths[2] for host in range(3))


def axes_are_communicators(comm: Any) -> None:
    mesh = Mesh(comm, {"data": 2, "pipe": 1, "tensor": comm.size // 2})
    ranks = comm.share(mesh.at)
    for name in mesh.axes:
        mine = [r for r, at in enumerate(ranks) if all(at[n] == mesh.at[n] for n in mesh.axes if n != name)]
        axis = mesh[name]
        assert (axis.rank, axis.size) == (mesh.at[name], mesh.axes[name])
        assert axis.allgather(np.array([comm.rank])).tolist() == mine
        assert axis.allreduce(float(comm.rank)) == sum(mine)
    both = mesh.along("data", "tensor")
    assert both is mesh.along("data", "tensor") and both.size == comm.size
    assert both.allgather(np.array([comm.rank])).tolist() == mesh.places
    assert mesh.comm.rank == mesh.places.index(comm.rank) and mesh.place(comm.rank) == mesh.at


def what_stands_on_an_axis_has_its_codec(comm: Any) -> None:
    """Its lanes and copies, and a scheduler, whose own numbers are exact; a compressor's are its own affair."""
    mesh = Mesh(comm, {"data": comm.size}, codec={"data": "fp16"})
    axis, x = mesh["data"], np.full(5, 1 + 2**-20, np.float32)
    for made in (axis.dup(), axis.lane("one"), *axis.lanes({"two": 1, "three": 0})):
        assert (made.allreduce(x.copy(), "avg") == 1).all() and (made.plain.allreduce(x.copy(), "avg") == x).all()
    for options, wanted in (({}, np.ones(5)), ({"compressor": "topk:1.0"}, x)):
        s = Scheduler(axis, **options)
        s.declare("x", x)
        s.ready("x", x.copy())
        assert s.step() == [] and (s.wait("x") == wanted).all() and s.report()[0].ranks in (comm.size, None)
        s.close()


def an_axis_has_a_transport_and_a_codec(comm: Any) -> None:
    mesh = Mesh(comm, {"data": comm.size}, transport={"data": "tcp"}, codec={"data": "fp16"})
    x = np.full(1000, 1 / 3, np.float32)
    found = mesh["data"].allreduce(x.copy(), "avg")
    assert (found == np.float32(np.float16(1 / 3))).all()
    assert (mesh["data"].allreduce(x.copy(), "max") == x).all()
    for op in (hocket.premul_sum(1 / comm.size), np.maximum, lambda a, b: a):  # which have no codec
        for call in (mesh["data"].allreduce, mesh["data"].reduce_scatter):
            assert (call(x.copy(), op) == x[0]).all() and (call(x.copy(), op=op) == x[0]).all()
        assert (mesh["data"].reduce_scatterv(x.copy(), [600, 400], op) == x[0]).all()
    assert (mesh["data"].allreduce(x.astype(float), "avg") == x).all()
    assert (mesh["data"].allreduce(x.copy(), "avg", codec="bf16") != found).all()
    assert {row.transport for row in mesh["data"].stats() if row.collective == "allreduce"} == {"tcp"}
    line = mesh.explain().splitlines()[2]
    assert "data: ranks 0, 1" in line and "inside host 0; tcp, codec fp16" in line
    before = mesh["data"].sent()
    mesh["data"].allreduce(x)
    mesh["data"].allgather(x)
    sent = mesh["data"].sent() - before
    assert sent == (2 * 2080 + 4000) / 2, sent  # as fp16; in sums with a scale for each 128


def wrong(comm: Any) -> None:
    last = comm.rank == comm.size - 1

    def refused(kind: type[Exception], text: str, axes: Any, **more: Any) -> None:
        with pytest.raises(kind, match=text):
            Mesh(comm, axes, **more)

    refused(ArgumentError, rf"axes data 5 x tensor 2 have 10 places, and there are {comm.size} ranks \(on ranks 0,",
            {"data": 5, "tensor": 2})  # fmt: skip
    refused(ArgumentError, rf"have {comm.size + 1} places, .* \(on rank {comm.size - 1}\)", {"data": comm.size + last})
    refused(ArgumentError, "axes must be lengths by name, got a list", [2, 2])
    refused(ArgumentError, r"axes\['data'\]='two' must be a whole number", {"data": "two"})
    refused(ArgumentError, "transport names the axis 'tensr'; the mesh has tensor", {"tensor": comm.size},
            transport={"tensr": "tcp"})  # fmt: skip
    refused(MismatchError, f"different axes: .* on rank 0, .* on rank {comm.size - 1}",
            {"other" if last else "data": comm.size})  # fmt: skip
    refused(MismatchError, "different codec", {"data": comm.size}, codec={"data": "int8" if last else "fp16"})
    mesh = Mesh(comm, {"data": comm.size})
    for call in (lambda: mesh["tensor"], lambda: mesh.along("data", "tensor"), mesh.along):
        with pytest.raises(ArgumentError, match="the mesh has no axis"):
            call()
    assert comm.allreduce(1) == comm.size


@pytest.mark.parametrize(("size", "transport"), [(2, "threads"), (4, "shm"), (6, "threads")])
def test_axes(size: int, transport: str) -> None:
    spread([axes_are_communicators, wrong], size, transport)


def test_transport_and_codec() -> None:
    spread([an_axis_has_a_transport_and_a_codec, what_stands_on_an_axis_has_its_codec], 2, "shm,tcp")


HOSTS = """
from hocket.training import Mesh
comm = hocket.init()
mesh = Mesh(comm, {"data": 2, "tensor": 2})
for name in mesh.axes:
    assert mesh[name].allreduce(np.ones(1000))[0] == 2
used = {name: sorted({row.transport for row in mesh[name].stats()}) for name in mesh.axes}
say(at=mesh.at, used=used, explain=mesh.explain())
comm.close()
"""


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_on_two_hosts_the_chatty_axis_uses_shared_memory(tmp_path: pathlib.Path) -> None:
    """Though the ranks of a host are not neighbours."""
    with namespaces.hosts() as names, job_on(names, HOSTS, tmp_path, on=(0, 1, 0, 1)) as job:
        ends = [facts(end) for end in job.wait(100)]
    assert [end["at"]["data"] for end in ends] == [0, 1, 0, 1]
    for rank, end in enumerate(ends):
        assert end["used"] == {"data": ["tcp"], "tensor": ["shm"]}
        assert f"tensor: ranks {rank % 2}, {rank % 2 + 2}; inside host {rank % 2}; shm" in end["explain"]
        assert "between hosts 0, 1; tcp" in end["explain"]
        assert end["explain"].endswith("\n  links: 7.81 KiB over shm, 7.81 KiB over tcp"), end["explain"]


LOST = """
from hocket.training import Mesh
axes, victims = {axes}, {victims}
mesh = Mesh(comm, axes)
comm.barrier()
after_all(me in victims)
if me in victims:
    os.kill(os.getpid(), signal.SIGKILL)
notes = []
try:
    while True:
        mesh[{name!r}].allreduce(np.ones(100000))
        comm.barrier()
except hocket.PeerLostError as error:
    notes = getattr(error, "__notes__", [])
made = comm.renew()
loss = mesh.loss(made)
row = {{"notes": notes, "words": loss.words, "whole": loss.whole, "spare": loss.spare, "rank": made.rank}}
try:
    again = mesh.renewed(made)
    row.update(axes=again.axes, at=again.at)
    if again.at:
        row["sum"] = again.comm.allreduce(1)
    else:
        try:
            again["data"]
        except hocket.ArgumentError as error:
            row["refused"] = str(error)
except hocket.ArgumentError as error:
    row["refused"] = str(error)
print(json.dumps(row), flush=True)
made.close()
"""


def lost(axes: dict[str, int], victims: list[int], name: str) -> list[dict[str, Any]]:
    with Job(4, BEGIN + LOST.format(axes=axes, victims=victims, name=name)) as job:
        ends = job.wait(100)
    assert all(ends[rank].code == -signal.SIGKILL for rank in victims)
    return said(ends, *(rank for rank in range(4) if rank not in victims))


def test_a_lost_replica_leaves_the_other_ones() -> None:
    rows = lost({"data": 2, "tensor": 2}, [2], "data")
    for row in rows:
        assert (row["whole"], row["spare"], row["axes"]) == ([0], [2], {"data": 1, "tensor": 2})
        assert "lost are data 1, tensor 0" in row["words"] and "whole at data 0" in row["words"]
        assert "spare ranks: 1" in row["words"]
    assert [row["at"] for row in rows] == [{"data": 0, "tensor": 0}, {"data": 0, "tensor": 1}, {}]
    assert [row.get("sum") for row in rows] == [2, 2, None]
    assert rows[2]["refused"] == "rank 2 is spare: it has no place in the mesh"
    assert any("data 1, tensor 0" in note for row in rows for note in row["notes"])


def test_a_lost_part_is_in_checkpoints_alone() -> None:
    for row in lost({"data": 1, "pipe": 4}, [3], "pipe"):
        assert "no other rank holds these parts of the model: go on from a checkpoint" in row["refused"]
        assert row["refused"] == row["words"]
    for row in lost({"data": 2, "tensor": 2}, [1, 2], "data"):
        assert "each part is on some rank, but no place of 'data' is whole" in row["refused"], json.dumps(row)


STAGES = """
from hocket.training import Pipeline
class Stage:
    def forward(self, x):
        return x * 2, None
    def backward(self, dy, kept):
        return dy * 2
mesh = Mesh(comm, {"data": 2, "pipe": 2})
def made(mesh):
    return Pipeline(Stage(), mesh["pipe"], np.ones((1, 4)), micro=4)
def step(pipe):
    return pipe.step(np.ones((4, 4)) if pipe.first else None, lambda y, m: (y.sum(), y))
pipe = made(mesh)
step(pipe)
comm.barrier()
after_all(me == 3)
if me == 3:
    os.kill(os.getpid(), signal.SIGKILL)
row = {"notes": []}
try:
    while True:
        step(pipe)
        comm.barrier()
except hocket.PeerLostError as error:
    row.update(error=str(error), notes=getattr(error, "__notes__", []))
again = mesh.renewed(comm.renew())
row.update(at=again.at, loss=step(made(again)) if again.at else None)
print(json.dumps(row), flush=True)
"""


def test_a_rank_lost_in_a_pipeline_is_named_and_its_replica_is_out() -> None:
    source = LOST.partition("axes, victims")[0] + STAGES
    with Job(4, BEGIN + source) as job:
        rows = said(job.wait(100), 0, 1, 2)
    assert all("rank" in row["error"] for row in rows)
    notes = [note for row in rows for note in row["notes"]]
    assert not hasattr(Exception, "add_note") or any("lost are data 1, pipe 1" in note for note in notes)
    assert [row["at"] for row in rows] == [{"data": 0, "pipe": 0}, {"data": 0, "pipe": 1}, {}]
    assert [row["loss"] for row in rows] == [None, 64.0, None]


def test_what_holds_a_communicator_says_that_it_cannot_be_copied() -> None:
    """A shallow copy has the same one; what a loop keeps beside it can be copied."""

    def program(comm: hocket.Communicator) -> None:
        mesh, w = Mesh(comm, {"data": 1, "tensor": 2}), np.ones((2, 2))
        layer = ColumnParallel(w, None, mesh["tensor"])
        module = of_torch.RowParallel(torch.nn.Linear(2, 2), mesh["tensor"])
        held = (comm, mesh, mesh["tensor"], layer, module, Experts(comm, [layer]), LocalSGD(comm, {"w": w}, every=2))
        for each in held:
            for call in (copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=r"neither pickled nor deep-copied: keep its state_dict\(\)"):
                    call(each)
        for each in (mesh["tensor"], copy.copy(mesh["tensor"]), copy.copy(mesh)["tensor"]):
            assert each.allreduce(1) == 2 and each.name == "tensor"
        assert copy.deepcopy(layer.parameters)["weight"].shape == (2, 1)
        assert copy.deepcopy(module.state_dict()).keys() == {"weight", "bias"}

    hocket.local_world(2).run(program)


RECIPE = """
from hocket.training import Mesh, SGD, Sharded
AXES, VICTIMS = {axes}, {victims}        # at which moment of which generation a rank dies
def at(moment, comm):
    if VICTIMS.get(me) == f"{{comm.generation}} {{moment}}":
        os.kill(os.getpid(), signal.SIGKILL)
def along(self, *names, of=Mesh.along):
    at("in a mesh that is made", self.job)
    return of(self, *names)
Mesh.along = along
def steps(mesh, comm, count):
    sharded = Sharded(SGD(0.1), mesh["data"], {{"w": np.ones(8, np.float32)}})
    for step in range(count):
        at("in a step" if step == 2 else "", comm)
        mesh["pipe"].allreduce(np.ones(10))
        at("between axes" if step == 2 else "", comm)
        work = mesh["data"].allreduce(np.ones(10), async_op=True)
        at("while a call is under way", comm)
        work.wait()
        if mesh.at["pipe"]:
            time.sleep(0.002)
        sharded.step({{"w": np.ones(8, np.float32)}})
        at("after a step", comm)
        mesh.comm.allreduce(1)
    return mesh.comm.allreduce(1)
mesh, made, many = None, comm, 10**6
while True:
    try:
        if mesh is None:
            mesh = Mesh(made, AXES)
        elif made is not mesh.job:
            at("before renewed", made)
            mesh, many = mesh.renewed(made), 5
            at("after renewed", made)
        row = {{"at": mesh.at, "sum": steps(mesh, made, many) if mesh.at else at("in a step", made)}}
        made.barrier()
        break
    except hocket.PeerLostError as error:
        at("in an error", made)
        made = made.renew(mesh is not None, admit=False)
        at("after renew", made)
        if not all(made.infos):     # somebody's was not made
            row = {{"refused": "from a checkpoint"}}
            break
    except hocket.ArgumentError as error:   # no replica is whole: from a checkpoint
        row = {{"refused": str(error)}}
        break
print(json.dumps({{"rank": made.rank, "size": made.size, **row}}), flush=True)
made.close()
"""
ONE = ("0 in a step", "0 between axes", "0 while a call is under way", "0 after a step", "0 in a mesh that is made")
TWO = ("0 in an error", "1 after renew", "1 before renewed", "1 after renewed", "1 in a step")
"""Moments of a loss, and of a second one, after a loss between axes."""


def recipe(axes: dict[str, int], victims: dict[int, str]) -> None:
    size = axes["data"] * axes["pipe"]
    with Job(size, BEGIN + RECIPE.format(axes=axes, victims=victims)) as job:
        ends = job.wait(100)
    living = [rank for rank in range(size) if ends[rank].code == 0]
    assert [ends[rank].code for rank in victims] == [-signal.SIGKILL] * len(victims), ends
    rows = said(ends, *(rank for rank in range(size) if rank not in victims))
    assert {row["size"] for row in rows} == {len(living)} and [row["rank"] for row in rows] == [*range(len(living))]
    whole = [at for at in range(axes["data"]) if not {at * axes["pipe"] + i for i in range(axes["pipe"])} & {*victims}]
    if "0 in a mesh that is made" not in victims.values() and whole:
        sums = [row["sum"] for row in rows if row["at"]]
        assert sums == [len(whole) * axes["pipe"]] * len(sums) and len(sums) == sums[0]
    else:
        assert all("refused" in row for row in rows)


def few(cases: Sequence[str], kept: str) -> list[Any]:
    return [pytest.param(case, marks=[] if case == kept else pytest.mark.more) for case in cases]


@pytest.mark.parametrize("moment", few(ONE, "0 between axes"))
@pytest.mark.parametrize("axes", [{"data": 2, "pipe": 2}, pytest.param({"data": 3, "pipe": 2}, marks=pytest.mark.more)])
def test_a_mesh_goes_on_after_a_loss_at_any_moment(axes: dict[str, int], moment: str) -> None:
    """Also ranks that share no axis with the lost one hear of it: from those that are in renew."""
    recipe(axes, {axes["data"] * 2 - 1: moment})


@pytest.mark.parametrize("moment", few(TWO, "1 after renewed"))
@pytest.mark.parametrize(
    ("axes", "second"),
    [({"data": 2, "pipe": 2}, 2), *(pytest.param({"data": n, "pipe": 2}, 1, marks=pytest.mark.more) for n in (2, 3))],
)
def test_a_mesh_goes_on_after_a_second_loss(axes: dict[str, int], second: int, moment: str) -> None:
    recipe(axes, {axes["data"] * 2 - 1: "0 between axes", second: moment})
