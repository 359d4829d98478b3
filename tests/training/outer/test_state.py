"""Checkpoints of outer loops: a training that was cut off goes on with the same bits, also with other ranks."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import ArgumentError
from hocket.training import DiLoCo, LocalSGD, Momentum, NoLoCo, Outer, PostLocalSGD, SparseLoCo, StreamingDiLoCo
from support import old_states
from support.cases import more
from support.quadratic import F, flat, inner, start
from support.worlds import same, spread

LOOPS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (DiLoCo, {"every": 3}),
    (DiLoCo, {"every": 2, "send": "doublesqueeze:int8", "weight": "count"}),
    (StreamingDiLoCo, {"every": 6, "fragments": 2, "delay": 2}),
    (StreamingDiLoCo, {"every": 6, "fragments": 2, "delay": 2, "send": "topk:0.2"}),
    (SparseLoCo, {"every": 2}),
    (NoLoCo, {"every": 2}),
)


def plain(value: Any) -> None:
    """Texts, numbers, lists, dicts and NumPy arrays, as `torch.save(weights_only=True)` and others keep them."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        [plain(each) for each in value.values()]
    elif type(value) in (list, tuple):
        [plain(each) for each in value]
    else:
        assert value is None or type(value) in (int, float, str, bool, np.ndarray), type(value)


def goes_on_with_the_same_bits(comm: Any) -> None:
    """Saved after each step, also while a round is under way; loaded into a new loop."""
    for make, settings in LOOPS:
        whole = start()
        outer = make(comm, whole, **settings)
        saved = []
        for step in range(12):
            inner(comm.rank, step, whole)
            outer.step(comm.rank + 1)
            saved.append((outer.state_dict(), {name: x.copy() for name, x in whole.items()}))
        outer.finish()
        for at in (1, 3, 6, 7, 8):
            state, theta = saved[at]
            plain(state)
            json.dumps({**state, "arrays": None, "owed": None})
            theta = {name: x.copy() for name, x in theta.items()}
            other = make(comm, theta, **settings)
            put_back(theta, saved[at][1])
            other.load_state_dict(state)
            for step in range(at + 1, 12):
                inner(comm.rank, step, theta)
                other.step(comm.rank + 1)
            other.finish()
            same(flat(theta), flat(whole), f"{make.__name__} {settings} after {at}")


def put_back(theta: dict[str, Any], kept: dict[str, Any]) -> None:
    for name, x in kept.items():
        theta[name][...] = x


@pytest.mark.filterwarnings("ignore:outer momentum")
@pytest.mark.parametrize(("size", "transport"), [*more((2, "shm")), (3, "threads")])
def test_a_training_goes_on(size: int, transport: str) -> None:
    spread(goes_on_with_the_same_bits, size, transport)


def states_of(size: int, make: Any, settings: dict[str, Any], steps: int = 5) -> list[Any]:
    def program(comm: hocket.Communicator) -> Any:
        theta = start()
        outer = make(comm, theta, **settings)
        for step in range(steps):
            inner(comm.rank, step, theta)
            outer.step()
        return outer.state_dict(), theta

    with hocket.local_world(size) as world:
        return world.run(program)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("make", "settings"),
    [(DiLoCo, {"every": 2}), (StreamingDiLoCo, {"every": 4, "fragments": 2, "delay": 1, "send": "topk:0.2"})],
)
def test_one_rank_fewer_and_one_more(make: Any, settings: dict[str, Any], size: int) -> None:
    """The state of 3 ranks goes to another number: all hold the saved phi and momentum, and what is owed to the average
    is what it was."""
    found = states_of(3, make, settings)
    states = [state for state, _ in found]

    def program(comm: hocket.Communicator) -> Any:
        theta = start()
        outer = make(comm, theta, **settings)
        outer.load_state_dict(states)
        for name in start():
            same(outer.state_dict()["arrays"][f"phi/{name}"], states[0]["arrays"][f"phi/{name}"], name)
            same(outer.state_dict()["arrays"][f"momentum/{name}"], states[0]["arrays"][f"momentum/{name}"], name)
        assert outer.steps == 5
        put_back(theta, found[0][1])
        for step in range(5, 12):
            inner(comm.rank, step, theta)
            outer.step()
            owed = outer.state_dict()["owed"]
        every = comm.allgather(outer.phi[None])
        assert (every == every[0]).all()
        return owed

    with hocket.local_world(size) as world:
        world.run(program)
    if states[0]["owed"] is not None:
        with hocket.local_world(size) as world:
            dealt = world.run(lambda comm: begun(comm, make, settings, states))
        for name in states[0]["owed"]["entries"]:
            before = np.mean([each["owed"]["entries"][name]["residual"] for each in states], 0)
            np.testing.assert_allclose(np.mean([each[name] for each in dealt], 0), before, atol=1e-6)


def begun(comm: Any, make: Any, settings: dict[str, Any], states: Any) -> Any:
    """The debts of each rank when it has just begun with these states."""
    outer = make(comm, start(), **settings)
    outer.load_state_dict(states)
    made = outer.sending._begun(comm).state_dict()
    return {name: each["residual"] for name, each in made["entries"].items()}


@pytest.mark.filterwarnings("ignore:outer momentum")
def test_states_that_do_not_fit() -> None:
    """Refused by name, and nothing has changed."""
    state = states_of(2, DiLoCo, {"every": 2})[0][0]
    sparse = states_of(2, SparseLoCo, {"every": 2})[0][0]
    pairs = states_of(2, NoLoCo, {"every": 2})[0][0]
    arrays = {**state["arrays"], "phi/w": np.zeros(3, np.float32)}
    fewer = {name: each for name, each in state["arrays"].items() if name != "momentum/b"}
    wrong = (
        ("version 'diloco/7', which is unknown here; known: diloco/1", DiLoCo, {**state, "kind": "diloco/7"}),
        ("of 'diloco/1', this is 'local_sgd/1'", LocalSGD, state),
        ("array phi/w has shape (3,); this loop's has (40, 20)", DiLoCo, {**state, "arrays": arrays}),
        ("array momentum/b is missing", DiLoCo, {**state, "arrays": fewer}),
        ("is not a state", DiLoCo, {"kind": "diloco/1"}),
        ("is not a state", DiLoCo, []),
        ("not of one job and step", DiLoCo, [state, {**state, "step": 3}]),
        ("3 states were given of 2 ranks", DiLoCo, [state] * 3),
        ("the states are of ranks [0, 0]: give those of all ranks, in their order", DiLoCo, [state] * 2),
        ("array momentum/b is missing", DiLoCo, [state, {**state, "rank": 1, "arrays": fewer}]),
        ("the state's numbers lack counts, flight", DiLoCo, {**state, "numbers": {"since": [0], "steps_at": [0]}}),
        ("give the states of all", SparseLoCo, sparse),
        ("give the states of all ranks", NoLoCo, pairs),
        ("has fragments", DiLoCo, {**state, "numbers": {**state["numbers"], "fragments": [["w"]]}}),
    )

    def program(comm: hocket.Communicator) -> None:
        for what, make, given in wrong:
            outer = make(comm, start(), every=2)
            before = outer.phi.copy()
            with pytest.raises(ArgumentError) as found:
                outer.load_state_dict(given)
            assert what in str(found.value), found.value
            same(outer.phi, before, what)
        outer = DiLoCo(comm, start(), every=2)
        outer.load_state_dict(state)  # of what all hold alike one rank's is enough
        assert outer.rounds == 2 and outer.phi.dtype == F

    hocket.local_world(3).run(program)


def trained(comm: hocket.Communicator, steps: int, state: Any = None, **settings: Any) -> tuple[Any, list[int]]:
    """The state after so many steps of four, and after which of them there was a round."""
    theta, rounds = {"w": np.zeros(3, F)}, []
    outer = LocalSGD(comm, theta, **settings)
    if state is not None:
        outer.load_state_dict(state)
    for step in range(1, steps + 1):
        theta["w"] += comm.rank + 1
        if outer.step(4):
            rounds.append(step)
    return outer.state_dict(), rounds


def test_ranks_of_unlike_paces_and_states_that_are_saved_again() -> None:
    """With weight="count" they have made unlike numbers of steps; other ranks may save again before a round."""
    every = [8, 2]
    with hocket.local_world(2) as world:
        found = world.run(lambda comm: trained(comm, 2 * every[comm.rank], every=every[comm.rank], weight="count"))
        paces = [state for state, _ in found]
        again, turned = (
            world.run(lambda comm, of=of: trained(comm, of[comm.rank], paces, every=of[comm.rank], weight="count")[1])
            for of in (every, every[::-1])
        )
        two = [state for state, _ in world.run(lambda comm: trained(comm, 4, every=2, send="int8"))]
    assert again == [[8], [2]] and turned == [[2], [4]]
    with hocket.local_world(3) as world:
        three = [state for state, _ in world.run(lambda comm: trained(comm, 0, two, every=2, send="int8"))]
        assert world.run(lambda comm: trained(comm, 4, three[comm.rank], every=2, send="int8")[1]) == [[2, 4]] * 3


def test_a_schedule_stays_as_it_was() -> None:
    """Another one is refused by name; `finish` in between moves no round; a round that is dropped changes nothing."""

    def program(comm: hocket.Communicator) -> None:
        state, _ = trained(comm, 20, every=10)
        for name, settings in (("every", {"every": 20}), ("by", {"every": 10, "by": "count"}),
                               ("delay", {"every": 10, "delay": 1})):  # fmt: skip
            with pytest.raises(ArgumentError, match=f"the state was saved with {name}="):
                trained(comm, 0, state, **settings)
        theta, rounds = {"w": np.zeros(3, F)}, []
        outer = LocalSGD(comm, theta, every=10)
        for step in range(1, 41):
            theta["w"] += comm.rank
            rounds += [step] if outer.step() else []
            assert step > 20 or step % 5 or len(outer.finish()) == (step % 10 == 5)
        assert rounds == [10, 20, 30, 40]

    hocket.local_world(2).run(program)


@pytest.mark.parametrize("send", ["int8", "powersgd:1", "ef21:topk:0.3", "dgc:0.3"])
def test_back_to_a_state_while_a_round_is_under_way(send: str) -> None:
    """And the last round has what its method keeps: a training that goes on from a state ends with the same bits."""

    def program(comm: hocket.Communicator, back: bool) -> Any:
        theta = {"w": np.zeros((4, 6), F)}
        outer = StreamingDiLoCo(comm, theta, every=4, fragments=1, delay=2, mix=0, momentum=0.5, send=send)
        draws = np.random.default_rng(comm.rank).normal(size=(11, 4, 6)).astype(F)

        def go(begin: int, end: int) -> None:
            for step in range(begin, end):
                theta["w"] -= draws[step]
                outer.step()

        go(0, 7)
        state, kept = outer.state_dict(), theta["w"].copy()
        if back:
            time.sleep(0.1 * comm.rank)
            go(7, 9)
            theta["w"][...] = kept
            outer.load_state_dict(state)
        go(7, 11)
        outer.finish()
        return theta["w"]

    with hocket.local_world(2) as world:
        for mine, again in zip(*(world.run(lambda comm, back=back: program(comm, back)) for back in (False, True)),
                               strict=True):  # fmt: skip
            same(again, mine, send)


OLD: dict[str, Any] = {
    "local_sgd": lambda comm, theta: LocalSGD(comm, theta, every=2, weight="count"),
    "post_local_sgd": lambda comm, theta: PostLocalSGD(comm, theta, start=2, every=2),
    "diloco": lambda comm, theta: DiLoCo(comm, theta, every=2, momentum=0.5, send="int8"),
    "streaming_diloco": lambda comm, theta: StreamingDiLoCo(comm, theta, every=4, fragments=2, delay=1, momentum=0.5),
    "sparseloco": lambda comm, theta: SparseLoCo(comm, theta, every=2),
    "noloco": lambda comm, theta: NoLoCo(comm, theta, every=2),
    "outer": lambda comm, theta: Outer(comm, theta, rule=Momentum(0.5, 0.5), every=3),
}


@pytest.mark.parametrize("file", sorted(pathlib.Path(__file__).parent.glob("states/*.npz")), ids=lambda file: file.stem)
def test_what_an_earlier_version_saved_is_read(file: pathlib.Path) -> None:
    """On two ranks after 5 steps, with a round under way where there is a delay: 5 more end as they did there."""
    name, saved = file.stem.rsplit("-", 1)[0], old_states.read(file)

    def program(comm: hocket.Communicator) -> None:
        mine = saved[comm.rank]
        theta = mine["theta"]
        outer = OLD[name](comm, theta)
        before = {each: x.copy() for each, x in old_states.read(file)[comm.rank]["theta"].items()}
        put_back(theta, before)
        outer.load_state_dict(mine["state"])
        for step in range(5, 10):
            for x in theta.values():
                x -= np.float32(0.1) * x + np.float32((comm.rank + 1) * (step % 3 - 1) / 8)
            outer.step(*([comm.rank + 1] if outer.weight == "count" else []))
        outer.finish()
        for each, x in theta.items():
            np.testing.assert_allclose(x, mine["end"][each], rtol=1e-6, err_msg=each)
        newer = {**mine["state"], "kind": f"{name}/2"}
        with pytest.raises(ArgumentError, match=f"of version '{name}/2', which is unknown here; known: {name}/1"):
            outer.load_state_dict(newer)

    hocket.local_world(2).run(program)


def test_there_is_a_state_of_each_loop() -> None:
    assert {file.stem for file in pathlib.Path(__file__).parent.glob("states/*-1.npz")} == {f"{name}-1" for name in OLD}
