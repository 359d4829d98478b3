"""An optimizer in shards is the one of the whole model: whatever cuts that, and whatever happens between two steps."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError
from hocket.torch.training import Parameters, parameters
from hocket.torch.training import tensor as of_torch
from hocket.training import SGD, Adam, ColumnParallel, Experts, Lamb, Lars, Mesh, Pipeline, RowParallel, Sharded
from hocket.training.large import told
from hocket.training.large.told import asked, tell
from hocket.training.norm import norm
from support.cases import more
from support.worlds import same

Arrays = dict[str, Any]
STEPS = 3
MESHES: list[Any] = [
    {"data": 1}, {"data": 3}, {"data": 2, "tensor": 2}, {"data": 2, "pipe": 2}, {"pipe": 2, "tensor": 2, "data": 1},
    {"site": 2, "data": 2},
    *more({"data": 2}, {"data": 4}, {"data": 1, "tensor": 2}, {"data": 1, "tensor": 3}, {"data": 1, "pipe": 2},
          {"data": 1, "pipe": 4}),
]  # fmt: skip
KINDS = ("nothing", "loaded", "clamped", "masked", "swapped", "none", "none on one")


def dice(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def whole_model(stages: int, parts: int) -> Arrays:
    """By name and stage: what is cut by columns, what is alike on tensor ranks, and on all stages."""
    made: Arrays = {"tied": dice(9).normal(size=3)}
    for stage in range(stages):
        made |= {f"w{stage}": dice(stage).normal(size=(3, 2 * parts)), f"b{stage}": np.full(2, 0.1)}
    return {name: array.astype(np.float32) for name, array in made.items()}


def noise(model: Arrays, rank: int, step: int, kind: str) -> Arrays:
    """One data rank's gradient is this and a tenth of the parameters; None: it has none."""
    found: Arrays = {
        name: dice(rank, step, *map(ord, name)).normal(size=array.shape).astype(np.float32)
        for name, array in model.items()
    }
    if step == 2 and (kind == "none" or (kind == "none on one" and rank == 0)):
        found["b0"] = found["tied"] = None
    return found


def gradient(x: Any, noise: Any) -> Any:
    return None if noise is None else np.float32(0.1) * x + noise


def changed(arrays: Arrays, step: int, kind: str, mask: Callable[[str], Any]) -> None:
    """Between two steps, in place."""
    for name, array in arrays.items():
        if kind == "loaded" and step == 2:
            array[...] = 0.25
        elif kind == "clamped":
            np.clip(array, -0.5, 0.5, out=array)
        elif kind == "masked":
            array *= mask(name)
        elif kind == "swapped":
            kept = array.copy()
            array[...] = 7
            array[...] = kept


def alone(comm: Any, model: Arrays, optimizer: Any, clip: float | None, kind: str) -> Arrays:
    """The optimizer of one process, whose gradient is the average of the data ranks' in their order."""
    slots = {name: np.zeros(sum(a.size for a in model.values()), np.float32) for name in optimizer.slots}
    masks = {name: dice(len(name)).random(array.shape) > 0.3 for name, array in model.items()}
    for step in range(1, STEPS + 1):
        found = noise(model, comm.rank, step, kind)
        each = {name: gradient(array, found[name]) for name, array in model.items()}
        g = np.concatenate([(0 * model[name] if each[name] is None else each[name]).ravel() for name in model])
        comm.allreduce(g, "avg", order="rank")
        if clip is not None and (length := norm(g)) > clip:
            g *= g.dtype.type(clip / length)
        x = np.concatenate([array.ravel() for array in model.values()])
        optimizer.apply(x, g, slots, step)
        at = 0
        for array in model.values():
            array[...] = x[at : at + array.size].reshape(array.shape)
            at += array.size
        changed(model, step, kind, masks.__getitem__)
    return model


def mine(mesh: Mesh, model: Arrays) -> Arrays:
    """This rank's part, by names that do not tell the stage."""
    stage, t = mesh.at.get("pipe", 0), mesh.at.get("tensor", 0)
    w = model[f"w{stage}"]
    return {"w": None if w is None else w[:, 2 * t : 2 * t + 2], "b": model[f"b{stage}"], "tied": model["tied"]}


ALIKE = {"tensor": ["b", "tied"], "pipe": ["tied"], "site": "all"}


def law(comm: Any, axes: dict[str, int]) -> None:
    mesh = Mesh(comm, axes)
    data, stages, parts = mesh["data"], axes.get("pipe", 1), axes.get("tensor", 1)
    masks = {name: dice(len(name)).random(each.shape) > 0.3 for name, each in whole_model(stages, parts).items()}
    alike = {axis: names for axis, names in ALIKE.items() if axis in axes}
    for kind in KINDS:
        for clip in (None, 0.5):
            optimizers = (Adam(lr=0.1, decay=0.01), SGD(lr=0.1, momentum=0.9))
            for optimizer in optimizers if kind.startswith("none") else optimizers[:1]:
                wanted = mine(mesh, alone(data, whole_model(stages, parts), optimizer, clip, kind))
                for stage in (1, 2, 3):
                    model = whole_model(stages, parts)
                    theta = {name: each.copy() for name, each in mine(mesh, model).items()}
                    units = [["b"], ["tied", "w"]] if stage == 3 else None
                    own = Sharded(optimizer, data, theta, stage=stage, clip=clip, alike=alike, units=units)
                    trained(mesh, own, theta, kind, masks, stages, parts)
                    for name, each in read(own, theta).items():
                        same(each, np.ascontiguousarray(wanted[name]), f"{kind}, clip {clip}, stage {stage}, {name}")


def read(sharded: Any, theta: Arrays) -> Arrays:
    if sharded.stage < 3:
        return theta
    with sharded.gathered(*theta) as arrays:
        return {name: arrays[name].copy() for name in theta}


def trained(mesh: Mesh, sharded: Any, theta: Arrays, kind: str, masks: Arrays, stages: int, parts: int) -> None:
    own_masks, like = mine(mesh, masks), whole_model(stages, parts)
    for step in range(1, STEPS + 1):
        x, part = read(sharded, theta), mine(mesh, noise(like, mesh.at["data"], step, kind))
        sharded.step({name: gradient(x[name], each) for name, each in part.items()})
        if sharded.stage < 3:
            changed(theta, step, kind, own_masks.__getitem__)
            continue
        with sharded.gathered(*theta) as arrays:
            changed(arrays, step, kind, own_masks.__getitem__)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_law(axes: dict[str, int]) -> None:
    hocket.local_world(int(np.prod([*axes.values()]))).run(lambda comm: law(comm, axes))


def a_layer_has_one_norm_whatever_cuts_it(comm: hocket.Communicator) -> None:
    """LARS and LAMB of a model that is cut along two axes: the whole's bits."""
    mesh, alike = Mesh(comm, {"data": 2, "tensor": 2}), {"tensor": ALIKE["tensor"]}
    for optimizer in (Lars(10.0, trust=0.01), Lamb(0.1)):
        for clip in (None, 0.5):
            whole = whole_model(1, 2)
            one = Sharded(optimizer, comm.split(comm.rank), whole, clip=clip)
            for step in range(1, STEPS + 1):
                found = noise(whole, mesh.at["data"], step, "nothing")
                each = {name: gradient(x, found[name]) for name, x in whole.items()}
                one.step({name: mesh["data"].comm.allreduce(g, "avg", order="rank") for name, g in each.items()})
            for stage in (1, 2, 3):
                theta = {name: each.copy() for name, each in mine(mesh, whole_model(1, 2)).items()}
                sharded = Sharded(optimizer, mesh["data"], theta, stage=stage, clip=clip, alike=alike)
                trained(mesh, sharded, theta, "nothing", whole, 1, 2)
                for name, end in read(sharded, theta).items():
                    same(end, np.ascontiguousarray(mine(mesh, whole)[name]), f"{optimizer} {clip} {stage} {name}")
    with pytest.raises(ArgumentError, match="Lamb needs the norm of the whole layer: is 'b', 'tied', 'w' alike"):
        Sharded(Lamb(), mesh["data"], mine(mesh, whole_model(1, 2)))


def a_module_has_layers_too(comm: hocket.Communicator) -> None:
    """torch's parameters, of which one is bfloat16, by names that begin with their modules'."""
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2, dtype=torch.bfloat16))
    for name, p in module.named_parameters():
        p.data.copy_(torch.from_numpy(dice(len(name)).normal(size=p.shape)))
    given = {name: np.array(p.detach().float()) for name, p in module.named_parameters()}
    for optimizer in (Lars(10.0, trust=0.01), Lamb(0.1)):
        whole = {name: each.copy() for name, each in given.items()}
        one, many = Sharded(optimizer, comm.split(comm.rank), whole), Sharded(optimizer, comm, parameters(module))
        for step in range(STEPS):
            g = {name: dice(step, len(name)).normal(size=x.shape).astype(np.float32) for name, x in given.items()}
            one.step(g)
            many.step({name: torch.from_numpy(each) for name, each in g.items()})
        for name, p in module.named_parameters():
            assert torch.equal(p.detach(), torch.from_numpy(whole[name]).to(p.dtype)), (optimizer, name)
        for name, p in module.named_parameters():
            p.data.copy_(torch.from_numpy(given[name]))


def experts_are_layers_of_their_own(comm: hocket.Communicator) -> None:
    """Whatever their names: each steps as if it were alone; so do the stages of a pipeline."""
    mesh = Mesh(comm, {"data": 2, "expert": 2})
    gave = {"w": dice(mesh.at["expert"]).normal(size=(3, 2))}
    for made in ("experts", "pipeline"):
        alone, held = ({name: each.copy() for name, each in gave.items()} for _ in "ah")
        expert = SimpleNamespace(parameters=held, forward=None, backward=None)
        if made == "experts":
            Experts(mesh["expert"], [expert])
        else:
            mesh = Mesh(comm, {"data": 2, "expert": 2})
            Pipeline(expert, mesh["expert"], np.zeros((2, 3)), micro=1)
        one, many = Sharded(Lamb(0.1), comm.split(comm.rank), alone), Sharded(Lamb(0.1), mesh["data"], held)
        for step in range(STEPS):
            g = {"w": dice(step, mesh.at["expert"]).normal(size=(3, 2))}
            one.step(g)
            many.step(g)
        same(held["w"], alone["w"], made)


def layers_tell(comm: hocket.Communicator) -> None:
    """A bias that all tensor ranks have counts once, and stays alike; without a word of the caller's."""
    mesh = Mesh(comm, {"data": 2, "tensor": 2})
    w1, w2, x = dice(1).normal(size=(4, 4)), dice(2).normal(size=(4, 4)), dice(3, mesh.at["data"]).normal(size=(6, 4))

    def norm_of(first: Any, second: Any, axis: Any, stage: int) -> tuple[float, Any]:
        layers = {"1": first, "2": second}
        arrays = {f"{n}.{name}": a for n, layer in layers.items() for name, a in layer.parameters.items()}
        sharded = Sharded(SGD(lr=0.5), axis, arrays, stage=stage, clip=0.1)
        a, kept = first.forward(x)
        y, kept_too = second.forward(np.maximum(a, 0))
        first.backward(second.backward(y, kept_too) * (a > 0), kept)
        length = sharded.step({f"{n}.{name}": g for n, layer in layers.items() for name, g in layer.gradients.items()})
        return length, read(sharded, arrays)["2.bias"]

    alone = comm.split(comm.rank)
    for stage in (1, 2, 3):
        (found, bias), (wanted, whole) = (
            norm_of(ColumnParallel(w1, np.ones(4), axis), RowParallel(w2, np.ones(4), axis), data, stage)
            for axis, data in ((mesh["tensor"], mesh["data"]), (alone, mesh["data"].comm))
        )
        assert found == pytest.approx(wanted, rel=1e-9)
        np.testing.assert_allclose(bias, whole, rtol=1e-9)
        assert mesh["tensor"].check_equal(bias) == {}


def modules_tell(comm: hocket.Communicator) -> None:
    mesh = Mesh(comm, {"data": 2, "tensor": 2})

    def model(axis: Any) -> torch.nn.Sequential:
        one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        with torch.no_grad():
            for i, p in enumerate([*one.parameters(), *two.parameters()]):
                p.copy_(torch.from_numpy(dice(i).normal(size=p.shape)))
        return torch.nn.Sequential(
            of_torch.ColumnParallel(one, axis), torch.nn.ReLU(inplace=True), of_torch.RowParallel(two, axis))

    lengths = []
    for axis, data in ((mesh["tensor"], mesh["data"]), (comm.split(comm.rank), mesh["data"].comm)):
        module = model(axis)
        sharded = Sharded(SGD(lr=0.5), data, parameters(module), clip=0.1)
        x = torch.from_numpy(dice(7, mesh.at["data"]).normal(size=(5, 4)).astype(np.float32))
        module(x).square().sum().backward()
        lengths.append(sharded.step({name: p.grad for name, p in module.named_parameters()}))
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-6)
    with pytest.raises(ArgumentError, match=r"is 'weight' alike on the ranks of axis 'tensor', or cut along it\? Say"):
        Sharded(SGD(lr=1), mesh["data"], parameters(torch.nn.Linear(2, 2, bias=False)), clip=1.0)


class Scale:
    """A stage."""

    def __init__(self, first: float) -> None:
        self.parameters = {"scale": np.array([first, 1.0]), "zero": np.zeros(3)}

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x, None

    def backward(self, dy: Any, kept: Any) -> Any:
        return dy


def pipelines_and_experts_tell(comm: hocket.Communicator) -> None:
    mesh = Mesh(comm, {"data": 2, "pipe": 2})
    d, k = mesh.at["data"], mesh.at["pipe"]
    stage = Scale(3.0 + k)
    own = {"scale": np.full(2, 1.0 + k), "zero": np.zeros(3)}
    with pytest.raises(ArgumentError, match="is 'scale', 'zero' alike on the ranks of axis 'pipe'"):
        Sharded(SGD(lr=1), mesh["data"], stage.parameters, clip=1.0)
    Pipeline(stage, mesh["pipe"], np.zeros((1, 2)), micro=1)
    assert Sharded(SGD(lr=1), mesh["data"], stage.parameters, clip=1.0).step(own) == pytest.approx(10**0.5)
    tied = {"w": np.array([1.0, 2.0])}
    with pytest.raises(ArgumentError, match=r"'w' has the same numbers on ranks \[0, 1\] of axis 'pipe': is it tied\?"):
        Sharded(SGD(lr=1), mesh["data"], tied, clip=1.0)
    for alike, length in ((["w"], 1.0), ([], 2**0.5), ("all", 1.0)):
        sharded = Sharded(SGD(lr=1), mesh["data"], {"w": tied["w"].copy()}, clip=9.0, alike={"pipe": alike})
        assert sharded.step({"w": np.array([0.0, 1.0])}) == pytest.approx(length)
    apart = comm.split(k, d)  # the data ranks, of which nothing is known but by the stage
    sharded = Sharded(SGD(lr=1), apart, Scale(1).parameters, clip=9.0)
    assert sharded.step(own) == pytest.approx(2**0.5 * (1 + k))
    other = Scale(3.0 + k)
    Pipeline(other, comm.split(d, k), np.zeros((1, 2)), micro=1)
    assert Sharded(SGD(lr=1), apart, other.parameters, clip=9.0).step(own) == pytest.approx(10**0.5)
    expert = Scale(1.0 + d)
    Experts(mesh["data"], [expert])
    with pytest.raises(ArgumentError, match="'scale' is cut among the ranks that average"):
        Sharded(SGD(lr=1), mesh["data"], expert.parameters)
    for axis, wanted in (("tensor", "the axis 'tensor' of no mesh"), ("pipe", "names 'u', which is not a parameter")):
        with pytest.raises(ArgumentError, match=wanted):
            Sharded(SGD(lr=1), mesh["data"], own, clip=1.0, alike={axis: ["u"]})
    with pytest.raises(ArgumentError, match=r"'w' is not alike on ranks \[0, 1\] of axis 'pipe'"):
        Sharded(SGD(lr=1), mesh["data"], {"w": np.ones(2) + k}, clip=1.0, alike={"pipe": ["w"]})


def stages_that_step_at_other_times_have_no_common_norm(comm: hocket.Communicator) -> None:
    """Whichever is made first; a stage that clips by its own norm may."""

    class Stage(SimpleNamespace):
        def forward(self, x: Any) -> Any:
            return x * self.parameters["w"], x

        def backward(self, dy: Any, kept: Any) -> Any:
            self.gradient = {"w": (dy * kept).sum(0)}
            return dy * self.parameters["w"]

    for alike, first in ((None, True), (None, False), ({"pipe": "all"}, True)):
        mesh = Mesh(comm, {"data": 1, "pipe": comm.size})
        stage = Stage(parameters={"w": np.ones(2, np.float32)})

        def sharded(mesh: Any = mesh, stage: Any = stage, alike: Any = alike) -> Any:
            return Sharded(SGD(0.1), mesh["data"], stage.parameters, clip=1.0, alike=alike or {"pipe": []})

        def loss(y: Any, number: int) -> Any:
            return float(y.sum()), np.ones_like(y)

        made = [] if first else [sharded()]


        def update(made: list[Any] = made, stage: Any = stage) -> None:
            made[-1].step(stage.gradient)

        like = np.zeros((1, 2), np.float32)
        pipe = Pipeline(stage, mesh["pipe"], like, micro=2, schedule="pipedream", update=update)
        if alike is not None:
            made.append(sharded())
            pipe.step(np.ones((2, 2), np.float32) if pipe.first else None, loss if pipe.last else None)
            continue
        with pytest.raises(ArgumentError, match='a "pipedream" Pipeline updates its stages'):
            sharded() if first else made[0].step({"w": np.ones(2, np.float32)})


def what_one_rank_gives_wrongly_all_hear(comm: hocket.Communicator) -> None:
    """Also ranks that share no data axis with it; then they go on."""
    mesh = Mesh(comm, {"data": 2, "tensor": 2})
    good = {"w": np.ones(3), "b": np.ones(2)}
    wrong: Arrays = {
        "there is no parameter 'x'; if it was frozen": {**good, "x": np.ones(1)},
        "step 1 lacks the gradients of ['b']": {"w": good["w"]},
        "the gradient of 'w' has shape (2,), the parameter (3,)": {**good, "w": np.ones(2)},
        "the gradient of 'w' is an int, the parameter (3,)": {**good, "w": 1},
    }  # fmt: skip
    for stage in (1, 2, 3):
        theta = {"w": np.zeros(3), "b": np.zeros(2)}
        alike = {"tensor": []}
        sharded = Sharded(SGD(lr=1.0), mesh["data"], theta, stage=stage, clip=100.0, alike=alike)
        for text, gradients in wrong.items():
            if stage > 1 and comm.rank < 2:
                sharded.add("b", good["b"])
            left = {"w": good["w"]} if stage > 1 and comm.rank < 2 else good
            with pytest.raises(ArgumentError) as found:
                sharded.step(gradients if comm.rank == 3 else left)
            assert text in str(found.value) and "(on rank 3)" in str(found.value), found.value
        sharded.step({**good, "x": None})  # it is frozen, and has none
        sharded.step({**good, "b": None if comm.rank == 3 else good["b"]})
        now = read(sharded, theta)
        assert now["w"].tolist() == [-2.0] * 3, now
        half = mesh.at["tensor"] == 1  # with rank 3
        assert now["b"].tolist() == [-1.5 if half else -2.0] * 2, now


@pytest.mark.parametrize(
    "program", [a_layer_has_one_norm_whatever_cuts_it, a_module_has_layers_too, experts_are_layers_of_their_own,
                layers_tell, modules_tell, pipelines_and_experts_tell, what_one_rank_gives_wrongly_all_hear,
                stages_that_step_at_other_times_have_no_common_norm])
def test_four_ranks(program: Callable[[Any], None]) -> None:
    hocket.local_world(4).run(program)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("codec", [None, "bf16", "of the axis"])
def test_halves_keep_what_they_do_not_show(size: int, codec: Any) -> None:
    """Updates below a half's last bit add up; an array that is changed, or an element of one, is taken as it is."""
    if size == 1 and codec:
        return

    def program(comm: hocket.Communicator) -> Any:
        made = [torch.ones(5, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.float32)]
        theta = Parameters({str(i): each for i, each in enumerate(made)})
        on: Any = Mesh(comm, {"data": comm.size}, codec={"data": "bf16"})["data"] if codec == "of the axis" else comm
        how = codec if codec == "bf16" else None
        sharded = Sharded(SGD(lr=1.0), on, theta, stage=1 + comm.size % 2, codec=how)
        g = {str(i): torch.full((5,), 2.0**-13) for i in range(3)}
        for step in range(23):
            sharded.step(g)
            kept = [each.clone() for each in made]
            [each.fill_(step) for each in made]  # swapped for others, and back
            [each.copy_(back) for each, back in zip(made, kept, strict=True)]
            if step == 20:
                [each[1:3].fill_(0.5) for each in made]
        sharded.step(g)
        return [each.float().tolist() for each in made]

    for half, brain, single in hocket.local_world(size).run(program):
        untouched, touched = 1 - 24 * 2.0**-13, 0.5 - 3 * 2.0**-13
        for kind, found in ((torch.float16, half), (torch.bfloat16, brain), (torch.float32, single)):
            wanted = torch.tensor([untouched, touched, touched, untouched, untouched])
            if codec:
                wanted = wanted.to(torch.bfloat16)
            assert found == wanted.to(kind).float().tolist(), (kind, found)


def test_what_was_told_ends_with_the_array_and_with_the_ranks() -> None:
    array, lost = np.zeros((2, 2)), SimpleNamespace(lost=(1,))
    tell(array, lost)
    assert asked(array) == []
    tell(array, living := SimpleNamespace(lost=()), alike=True)
    assert asked(array) == asked(array.T[0]) == [(living, True, False)] and asked(array.copy()) == []
    known = len(told._told)
    del array
    assert len(told._told) == known - 1
