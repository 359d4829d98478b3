"""An optimizer in shards has the bits of one that is whole; it sends what its law says, and another group loads it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.training import SGD, Adagrad, Adam, Lamb, Lars, Mesh, Sharded
from hocket.training.norm import norm
from support import old_states
from support.cases import more
from support.quadratic import gradient, start
from support.worlds import same, spread

Array = np.ndarray[Any, Any]
STEPS = 5
CLIP = 20.0
OPTIMIZERS = (Adam(lr=0.1, decay=0.01), SGD(lr=0.1, momentum=0.9, nesterov=True, decay=0.01), Adagrad(lr=0.1))
LAYERED = (Lars(lr=10.0, trust=0.01), Lamb(lr=0.1), Lamb(lr=0.1, vectors=True))


def whole(comm: Any, optimizer: Any, steps: int, clip: float | None = None, kind: Any = np.float32) -> dict[str, Array]:
    """The parameters that every rank would have alone, with averages that are added in the order of ranks."""
    theta = start(kind)
    x = np.concatenate([each.ravel() for each in theta.values()])
    slots = {name: np.zeros_like(x) for name in optimizer.slots}
    for step in range(1, steps + 1):
        g = np.concatenate([each.ravel() for each in gradient(comm.rank, step, theta).values()])
        comm.allreduce(g, "avg", order="rank")
        if clip is not None and (length := norm(g)) > clip:
            g *= g.dtype.type(clip / length)
        optimizer.apply(x, g, slots, step)
        at = 0
        for each in theta.values():
            each[...] = x[at : at + each.size].reshape(each.shape)
            at += each.size
    return theta


def trained(sharded: Any, theta: dict[str, Array], rank: int, steps: range) -> None:
    for step in steps:
        grads = gradient(rank, step, parameters(sharded, theta))
        if sharded.stage == 1:
            sharded.step(grads)
            continue
        for name in np.random.default_rng([rank, step]).permutation([*theta]):  # each rank in an order of its own
            sharded.add(name, grads[name])
        sharded.step()


def parameters(sharded: Any, theta: dict[str, Array]) -> dict[str, Array]:
    if sharded.stage < 3:
        return theta
    found = {}
    for unit in sharded.units:
        with sharded.gathered(unit.names[0]) as some:
            found.update({name: np.array(some[name]) for name in unit.names})
    return {name: found[name] for name in theta}


def bits_of_the_whole(comm: Any) -> None:
    for optimizer in OPTIMIZERS:
        for clip in (None, CLIP):
            wanted = whole(comm, optimizer, STEPS, clip)
            for stage, units in ((1, None), (1, [["v", "b"], ["w"], ["c"]]), (2, [["w"], ["b", "v"], ["c"]]),
                                 (3, [["b", "w"], ["c", "v"]])):  # fmt: skip
                theta = start()
                sharded = Sharded(optimizer, comm, theta, stage=stage, units=units, clip=clip)
                trained(sharded, theta, comm.rank, range(1, STEPS + 1))
                for name, each in parameters(sharded, theta).items():
                    same(each, wanted[name], f"{optimizer}, stage {stage}, clip {clip}, {name}")


def layers_too(comm: Any) -> None:
    """LARS and LAMB have the bits of one rank that has all, whose norms are of whole vectors."""
    alone = comm.split(comm.rank)
    for optimizer in LAYERED:
        for clip in (None, CLIP):
            wanted = start()
            one = Sharded(optimizer, alone, wanted, clip=clip)
            for step in range(1, STEPS + 1):
                grads = gradient(comm.rank, step, wanted)
                one.step({name: comm.allreduce(np.array(each), "avg", order="rank") for name, each in grads.items()})
            for stage in (1, 2, 3):
                theta = start()
                sharded = Sharded(optimizer, comm, theta, stage=stage, clip=clip)
                trained(sharded, theta, comm.rank, range(1, STEPS + 1))
                for name, each in parameters(sharded, theta).items():
                    same(each, wanted[name], f"{optimizer}, stage {stage}, clip {clip}, {name}")


def shards_inside_replicas_outside(comm: Any) -> None:
    """Two axes: a rank sends 1/L of the gradients along the outer one, and nothing else; bits of averages in two steps.
    """
    if comm.size % 2:
        return
    mesh = Mesh(comm, {"host": 2, "device": comm.size // 2})
    inner, outer, n = mesh["device"], mesh["host"], sum(each.size for each in start().values())
    for optimizer in (OPTIMIZERS[0], *LAYERED[:2]):
        wanted = start()
        one = Sharded(optimizer, comm.split(comm.rank), wanted, clip=CLIP)
        for step in range(1, STEPS + 1):
            grads = gradient(comm.rank, step, wanted)
            one.step({
                name: outer.allreduce(inner.allreduce(np.array(each), "avg", order="rank"), "avg", order="rank")
                for name, each in grads.items()
            })  # fmt: skip
        for stage in (1, 2, 3):
            theta = {name: np.array(x + np.float32(comm.rank)) for name, x in start().items()}  # begin as rank 0's
            sharded = Sharded(optimizer, mesh.along("host", "device"), theta, stage=stage, clip=CLIP, shards="device")
            assert abs(sharded.w.size - n / inner.size) <= 1 + len(sharded.units)
            before = sum(row.bytes for row in outer.comm.stats())
            trained(sharded, theta, comm.rank, range(1, STEPS + 1))
            sent = sum(row.bytes for row in outer.comm.stats()) - before
            assert sent == STEPS * 4 * sharded.w.size, (sent, outer.comm.stats())
            for name, each in parameters(sharded, theta).items():
                same(each, wanted[name], f"{optimizer}, stage {stage}, {name}")
        state = sharded.state_dict()
        assert (state["size"], state["rank"]) == (inner.size, inner.rank)
        sharded.load_state_dict(state)
    with pytest.raises(ArgumentError, match="shards='host' is not among the axes of these ranks: give mesh.along"):
        Sharded(Adam(), inner, start(), shards="host")


def doubles_too(comm: Any) -> None:
    wanted, theta = whole(comm, OPTIMIZERS[0], STEPS, CLIP, np.float64), start(np.float64)
    trained(Sharded(OPTIMIZERS[0], comm, theta, clip=CLIP), theta, comm.rank, range(1, STEPS + 1))
    for name, each in theta.items():
        same(each, wanted[name], name)


def memory_is_cut(comm: Any) -> None:
    """Optimizer memory is 1/p of the whole, but for one element of each unit."""
    n = sum(each.size for each in start().values())
    for stage in (1, 2, 3):
        sharded = Sharded(Adam(), comm, start(), stage=stage)
        held = sum(each.size for each in sharded.slots.values())
        assert abs(held - 2 * n / comm.size) <= 2 * len(sharded.units)
        assert comm.allreduce(held) == 2 * n


def bytes_are_those_of_the_law(comm: Any) -> None:
    """2, 2 and 3 (p-1)/p n, by what the calls count: vectors of n, of which a rank sends (p-1)/p."""
    n = 4 * sum(each.size for each in start().values())
    for stage, times in ((1, 2), (2, 2), (3, 3)):
        apart = comm.dup()
        sharded = Sharded(Adam(), apart, theta := start(), stage=stage)
        before = moved(apart)
        if stage == 3:
            for _ in ("forward", "backward"):
                with sharded.gathered(*theta):
                    pass
        sharded.step(gradient(comm.rank, 1, theta))
        assert moved(apart) - before == times * n, (stage, apart.stats())


class Watched:
    """A communicator that keeps which allgathers were issued."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.calls = comm, list[tuple[int, bool]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def allgatherv(self, *args: Any, **how: Any) -> Any:
        self.calls.append((sum(args[1]), how.get("async_op", False)))
        return self.comm.allgatherv(*args, **how)


def a_unit_comes_while_another_is_in_use(comm: Any) -> None:
    """Units come in the order of the last step; in another order, or in fewer units, it is right, too."""
    theta, watched = start(), Watched(comm)
    wanted = {name: each.copy() for name, each in theta.items()}
    other = Sharded(Adam(lr=0.1), comm, wanted)
    sharded = Sharded(Adam(lr=0.1), watched, theta, stage=3, units=[[name] for name in theta])
    names = [*theta]
    whole = names + names[::-1]
    for step, order in enumerate((whole, whole, names[::-1], names[:2], names[:1], names[1:2]), 1):
        watched.calls.clear()
        for name in order:
            with sharded.gathered(name) as arrays:
                same(arrays[name], wanted[name], f"{name} in step {step}")
        sizes = [wanted[name].size for name in order]
        if step == 1:
            assert watched.calls == [(size, False) for size in sizes]
        if step == 2:
            assert watched.calls == [(size, i > 0) for i, size in enumerate(sizes)]
        grads = gradient(comm.rank, step, wanted)
        other.step(grads)
        sharded.step(grads)


def moved(comm: Any) -> int:
    return sum(row.bytes for row in comm.stats() if row.collective in ("reduce_scatter", "allgather"))


def goes_on_from_a_checkpoint(comm: Any) -> None:
    """Stage 2 saves; a group of half the ranks, in stage 1 and with other units, goes on; so does stage 3."""
    theta = start()
    sharded = Sharded(Adam(lr=0.1), comm, theta, stage=2, units=[["w"], ["b", "v", "c"]])
    trained(sharded, theta, comm.rank, range(1, 4))
    saved = comm.allgather_object(sharded.state_dict())
    assert {one["kind"] for one in saved} == {"sharded/1"}
    trained(sharded, theta, 0, range(4, STEPS + 1))
    half = comm.split(comm.rank % 2)
    for stage in (1, 3):
        other = {name: np.zeros_like(each) for name, each in theta.items()}
        again = Sharded(Adam(lr=0.1), half, other, stage=stage)
        again.load_state_dict(saved)
        assert again.steps == 3
        trained(again, other, 0, range(4, STEPS + 1))
        for name, each in parameters(again, other).items():
            np.testing.assert_allclose(each, theta[name], atol=0 if comm.size != 3 else 1e-6)  # a third of g + g + g
    before = sharded.w.copy()
    sharded.load_state_dict(saved[comm.rank])
    assert sharded.steps == 3 and (comm.size == 1 or (sharded.w != before).any())


def on_a_mesh(comm: Any) -> None:
    """Two tensor-parallel parts, each with its own replicas."""
    if comm.size % 2:
        return
    mesh = Mesh(comm, {"data": comm.size // 2, "tensor": 2})
    theta = start()
    sharded = Sharded(Adam(lr=0.1), mesh["data"], theta)
    trained(sharded, theta, comm.rank, range(1, STEPS + 1))
    ends = comm.allgather(theta["w"][None])
    for rank, end in enumerate(ends):
        there = mesh.place(rank)["tensor"] == mesh.at["tensor"]
        assert (end == theta["w"]).all() == there, rank


def wrong(comm: Any) -> None:
    """Every rank hears of what is wrong on one."""
    last = comm.rank == comm.size - 1

    def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
        with pytest.raises(kind, match=text):
            call()

    refused(ArgumentError, "clip=-1 must be a number above 0", lambda: Sharded(Adam(), comm, start(), clip=-1))
    refused(ArgumentError, "stage=4 is unknown", lambda: Sharded(Adam(), comm, start(), stage=4))
    refused(ArgumentError, "look at 'c'", lambda: Sharded(Adam(), comm, start(), units=[["w", "b", "v"]]))
    if comm.size > 1:
        refused(ArgumentError, rf"stage=4 is unknown.* \(on rank {comm.size - 1}\)",
                lambda: Sharded(Adam(), comm, start(), stage=4 if last else 2))  # fmt: skip
        refused(MismatchError, f"different stage: 2 on rank 0, 1 on rank {comm.size - 1}",
                lambda: Sharded(Adam(), comm, start(), stage=1 if last else 2))  # fmt: skip
        refused(ArgumentError, rf"clip=0 .* \(on rank {comm.size - 1}\)",
                lambda: Sharded(Adam(), comm, start(), clip=0 if last else 1))  # fmt: skip
        refused(MismatchError, f"different optimizer: .* on rank {comm.size - 1}",
                lambda: Sharded(Adam(lr=0.5 if last else 0.1), comm, start()))  # fmt: skip
        more = {"x": np.zeros(2, np.float32)} if last else {}
        refused(MismatchError, "different ", lambda: Sharded(Adam(), comm, {**start(), **more}))
    sharded = Sharded(Adam(), comm, start(), stage=2, clip=1.0)
    good = gradient(comm.rank, 1, start())
    refused(ArgumentError, "there is no parameter 'x'", lambda: sharded.add("x", good["w"]))
    refused(ArgumentError, r"gradient of 'w' has shape \(2,\), the parameter \(40, 20\)",
            lambda: sharded.step({**good, "w": np.zeros(2, np.float32)}))  # fmt: skip
    sharded = Sharded(Adam(), comm, start(), stage=2, clip=1.0)
    refused(ArgumentError, r"step 1 lacks the gradients of \['w'", lambda: sharded.step({"c": good["c"]}))
    sharded.add("c", good["c"])  # the step's gradients were forgotten, on all ranks
    refused(ArgumentError, "'c' has come twice", lambda: sharded.add("c", good["c"]))
    refused(ArgumentError, "'c' has come twice", lambda: sharded.step(good))
    sharded = Sharded(Adam(), comm, start(), clip=1.0)
    bad = {**good, "b": np.full(5, np.nan if last else 1, np.float32)}
    before = sharded.w.copy()
    refused(ArgumentError, "step 1: the gradient's norm is nan; nothing changed", lambda: sharded.step(bad))
    assert (sharded.w == before).all()
    sharded.step(good)
    state = sharded.state_dict()
    other = {**state, "kind": "other/1"}
    refused(ArgumentError, "'other/1', which is unknown here", lambda: sharded.load_state_dict(other))
    torn = {**state, "arrays": {}} if last else state
    refused(ArgumentError, rf"the state has 0 of \d+ elements .* \(on rank {comm.size - 1}\)",
            lambda: sharded.load_state_dict(torn))  # fmt: skip
    sharded.step(good)  # all go on
    if comm.size > 1:
        alone = Sharded(Adam(), comm.split(comm.rank), start())
        refused(ArgumentError, "give the states of all ranks", lambda: alone.load_state_dict(state))
        one = {"w": np.zeros(4 * comm.size, np.float32)}  # equal pieces: one rank's, in the place of each, look whole
        twice = [Sharded(Adam(), comm, one).state_dict()] * comm.size
        alone = Sharded(Adam(), comm.split(comm.rank), one)
        refused(ArgumentError, "4 of .* give the states of all ranks", lambda: alone.load_state_dict(twice))


PROGRAMS = (
    bits_of_the_whole, layers_too, shards_inside_replicas_outside, doubles_too, memory_is_cut,
    bytes_are_those_of_the_law, a_unit_comes_while_another_is_in_use,
    goes_on_from_a_checkpoint, on_a_mesh, wrong,
)  # fmt: skip


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "tcp"), *more((2, "shm"), (4, "shm"))])
def test_laws(size: int, transport: str) -> None:
    spread(PROGRAMS, size, transport)


def test_ranks_begin_as_rank_0() -> None:
    def program(comm: hocket.Communicator) -> list[float]:
        theta = {"w": np.full(3, comm.rank, np.float32)}
        Sharded(SGD(lr=1.0), comm, theta)
        return theta["w"].tolist()  # type: ignore[no-any-return]

    assert hocket.local_world(3).run(program) == [[0.0] * 3] * 3


def test_a_new_array_in_anothers_place() -> None:
    """The optimizer's new parameters would go to the old array."""

    def program(comm: hocket.Communicator) -> None:
        theta = {"w": np.ones(3, np.float32)}
        sharded = Sharded(SGD(lr=1.0), comm, theta)
        theta["w"] = theta["w"].copy()
        with pytest.raises(ArgumentError, match="'w' is another array than at the beginning: change it in place"):
            sharded.step({"w": np.ones(3, np.float32)})

    hocket.local_world(1).run(program)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_norm_does_not_depend_on_the_cut(kind: Any) -> None:
    dice = np.random.default_rng(5)
    x = (dice.normal(size=100_003) * 10.0 ** dice.integers(-6, 6, 100_003)).astype(kind)
    found = norm(x)
    assert found == pytest.approx(float(np.linalg.norm(x.astype(np.float64))), rel=1e-9)
    assert {norm(dice.permutation(x)) for _ in range(20)} == {found}
    small = np.full(1 << 20, 2e-5, kind)  # whose squares are below the unit of the first sum
    small[7] = 1
    assert norm(small) == pytest.approx((1 + ((1 << 20) - 1) * float(small[0]) ** 2) ** 0.5, rel=1e-9)

    def program(comm: hocket.Communicator) -> float:
        return norm(x[comm.rank * x.size // comm.size : (comm.rank + 1) * x.size // comm.size], comm)

    for size in (2, 5):
        assert set(hocket.local_world(size).run(program)) == {found}
    assert norm(x[:0]) == 0 == norm(np.zeros(3, kind))
    assert norm(np.full(7, 1e-30, kind)) == pytest.approx(7**0.5 * float(kind(1e-30)), rel=1e-6)
    assert np.isnan(norm(np.array([1, np.nan, np.inf], kind))) and norm(np.array([1, -np.inf], kind)) == np.inf


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_an_earlier_version_saved_is_read(stage: int) -> None:
    """Stage 2 on two ranks, after 3 steps: 3 more end as they did there, in each stage."""
    file = pathlib.Path(__file__).parent / "states" / "sharded-1.npz"

    def program(comm: hocket.Communicator) -> None:
        saved = old_states.read(file)
        theta = {name: np.zeros_like(x) for name, x in saved[0]["end"].items()}
        sharded = Sharded(Adam(lr=0.1, decay=0.01), comm, theta, stage=stage, clip=0.5)
        sharded.load_state_dict([each["state"] for each in saved])
        for step in range(3, 6):
            moved = np.float32((comm.rank + 1) * (step % 3 - 1) / 8)
            sharded.step({name: np.float32(0.1) * x + moved for name, x in parameters(sharded, theta).items()})
        for name, x in parameters(sharded, theta).items():
            np.testing.assert_allclose(x, saved[0]["end"][name], rtol=1e-6)
        with pytest.raises(ArgumentError, match="of 'sharded/2', which is unknown here; known: sharded/1"):
            sharded.load_state_dict({**saved[0]["state"], "kind": "sharded/2"})

    hocket.local_world(2).run(program)
