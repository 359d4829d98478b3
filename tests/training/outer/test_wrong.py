"""Wrong settings, wrong parameters, ranks that differ: every rank is told who, where and what."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.torch.training import parameters
from hocket.training import DiLoCo, LocalSGD, Momentum, NoLoCo, Outer, PostLocalSGD, StreamingDiLoCo
from support.worlds import spread


def theta(**more: Any) -> dict[str, Any]:
    return {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32), **more}


def refused(what: str, call: Callable[[], object], kind: type[Exception] = ArgumentError) -> None:
    with pytest.raises(kind) as found:
        call()
    assert what in str(found.value), found.value


ALONE: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("every=0 must be at least 1", lambda c: LocalSGD(c, theta(), every=0)),
    ("every=2.5 must be a whole number", lambda c: LocalSGD(c, theta(), every=2.5)),  # type: ignore[arg-type]
    ("every=5 must be a multiple of the 2 fragments", lambda c: DiLoCo(c, theta(), every=5, fragments=2)),
    ("delay=3 must be at least 0 and below every / fragments = 3",
     lambda c: StreamingDiLoCo(c, theta(), every=6, fragments=2, delay=3)),
    ("delay=-1", lambda c: DiLoCo(c, theta(), every=6, delay=-1)),
    ("mix=1 must", lambda c: DiLoCo(c, theta(), every=6, mix=1)),
    ("fragments=3 must be 1 to 2", lambda c: DiLoCo(c, theta(), every=6, fragments=3)),
    ("look at 'w'", lambda c: DiLoCo(c, theta(), every=6, fragments=[["b"]])),
    ("look at 'x'", lambda c: DiLoCo(c, theta(), every=6, fragments=[["b", "w"], ["x"]])),
    ("look at 'b'", lambda c: DiLoCo(c, theta(), every=6, fragments=[["b", "w"], ["b"]])),
    ("weight='tokens'", lambda c: DiLoCo(c, theta(), weight="tokens")),
    ("did you mean 'count'", lambda c: DiLoCo(c, theta(), by="counts")),
    ("lr=0 must", lambda c: DiLoCo(c, theta(), lr=0)),
    ("momentum=1 must", lambda c: DiLoCo(c, theta(), momentum=1)),
    ("start=-1", lambda c: PostLocalSGD(c, theta(), start=-1, every=2)),
    ("at once", lambda c: PostLocalSGD(c, theta(), start=1, every=2, fragments=2)),
    ('by="steps"', lambda c: PostLocalSGD(c, theta(), start=1, every=2, by="count")),
    ("step(32) counts more than every=10", lambda c: DiLoCo(c, theta(), every=10, by="count").step(32)),
    ("sends floats", lambda c: NoLoCo(c, theta(), send="int8")),
    ("'topq:0.1' is not a method", lambda c: DiLoCo(c, theta(), send="topq:0.1")),
    ("parameter 'i' must be a writable array of float16, 32 or 64; got int64(3,)",
     lambda c: DiLoCo(c, theta(i=np.arange(3)))),
    ("'t' must be of a dtype of NumPy's; got torch.bfloat16",
     lambda c: DiLoCo(c, theta(t=torch.zeros(2, dtype=torch.bfloat16)))),
    ("parameter 'd' is float64 and 'w' is not", lambda c: DiLoCo(c, theta(d=np.ones(3)))),
    ("parameters must be arrays by name", lambda c: DiLoCo(c, {})),
    ("got a list", lambda c: DiLoCo(c, [np.ones(3)])),
    ("these are float64: pass send=None", lambda c: DiLoCo(c, {"w": np.ones(3)}, send="int8")),
    ("must be a communicator or a crew", lambda c: DiLoCo(theta(), c)),
    ("count=0.5 must be a whole number", lambda c: DiLoCo(c, theta()).step(0.5)),  # type: ignore[arg-type]
)


def test_settings_that_make_no_sense() -> None:
    """Refused where they are, before anything is sent."""

    def program(comm: hocket.Communicator) -> None:
        for what, call in ALONE:
            refused(what, lambda call=call: call(comm))  # type: ignore[misc]
        fixed = np.ones(3, np.float32)
        fixed.flags.writeable = False
        refused("writable", lambda: DiLoCo(comm, {"w": fixed}))

    hocket.local_world(1).run(program)


@pytest.mark.parametrize("array", [np.zeros(2, np.float32), torch.zeros(2)], ids=["numpy", "torch"])
def test_a_new_array_in_anothers_place(array: Any) -> None:
    """Nothing of it would be averaged, without a word: at each round and at the end."""

    def program(comm: hocket.Communicator) -> None:
        mine = {"w": array}
        outer = LocalSGD(comm, mine, every=2)
        for _ in range(2):
            mine["w"] -= 1
            outer.step()
        assert outer.phi.tolist() == [-2, -2]
        mine["w"] = mine["w"] - 1
        outer.step()
        for call in (outer.step, outer.finish):
            refused("'w' is another array than at the beginning: change it in place, ['w'][...] = x", call)
        mine["w"] = array
        outer.finish()

    hocket.local_world(1).run(program)


@pytest.mark.parametrize("change", ["another", "elsewhere", "assigned", "gone"])
def test_a_module_whose_parameters_are_replaced(change: str) -> None:
    def program(comm: hocket.Communicator) -> None:
        model = torch.nn.Linear(3, 2)
        outer = LocalSGD(comm, parameters(model), every=1)
        model.load_state_dict(torch.nn.Linear(3, 2).state_dict())
        outer.step()
        if change == "another":
            model.weight = torch.nn.Parameter(torch.zeros(2, 3))
        elif change == "elsewhere":
            model.double()
        elif change == "gone":
            del model.weight
        else:
            model.load_state_dict(torch.nn.Linear(3, 2).state_dict(), assign=True)
        refused("'weight' is another array than at the beginning", outer.step)

    hocket.local_world(1).run(program)


@pytest.mark.parametrize("where", ["everywhere", "last rank"])
@pytest.mark.parametrize("loop", [
    lambda comm, p: LocalSGD(comm, p, every=2), lambda comm, p: DiLoCo(comm, p, every=2, send="int8", momentum=0.5),
    lambda comm, p: StreamingDiLoCo(comm, p, every=2, fragments=1, delay=1), lambda comm, p: NoLoCo(comm, p, every=2),
], ids=["local", "diloco", "delay", "noloco"])  # fmt: skip
@pytest.mark.parametrize("change", ["thawed", "added", "a new name"])
def test_what_is_trained_later_would_never_be_averaged(change: str, loop: Any, where: str) -> None:
    """So it is an error at the next round, on all ranks, and at the end."""

    def program(comm: hocket.Communicator) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        model[0].requires_grad_(False)
        mine: dict[str, Any] = {"w": np.zeros(2, np.float32)}
        outer = loop(comm, mine if change == "a new name" else parameters(model))
        for _ in range(4):
            outer.step()
        model[1].requires_grad_(False)  # that stays averaged
        for _ in range(2):
            outer.step()
        if where == "everywhere" or comm.rank == 1:
            mine["later"] = np.zeros(2, np.float32)
            model[0].requires_grad_(True) if change == "thawed" else model.append(torch.nn.Linear(1, 1))
        name = {"thawed": "0.weight", "added": "2.weight", "a new name": "later"}[change]
        ranks = [0, 1] if where == "everywhere" else [1]
        own = f" ({name!r} was not there, or frozen" if comm.rank in ranks else ""

        def until_told() -> None:
            for _ in range(4):
                outer.step()

        refused(f"the parameters of ranks {ranks} are not those of the beginning{own}", until_told)
        refused("", outer.finish)

    hocket.local_world(2).run(program)


def loops_that_differ(comm: Any) -> None:
    """Each is named on all ranks, and the next loop works."""
    odd = comm.rank == comm.size - 1
    last = f"on rank {comm.size - 1}"
    for what, settings in (
        ("every: 4 on rank", {"every": 6 if odd else 4}),
        ("delay: 0 on rank", {"every": 4, "delay": 1 if odd else 0}),
        ("rule: 'nesterov 0.9, lr", {"every": 4, "lr": 0.5 if odd else 0.7}),
        ("send: 'float' on rank", {"every": 4, "send": "int8" if odd else None}),
        ("fragments: [['w'], ['b']] on rank", {"every": 4, "fragments": [["w", "b"]] if odd else 2}),
    ):
        refused(last, lambda settings=settings: DiLoCo(comm, theta(), **settings), MismatchError)  # type: ignore[misc]
        refused(what, lambda settings=settings: DiLoCo(comm, theta(), **settings), MismatchError)  # type: ignore[misc]
    longer = theta(x=np.ones(1, np.float32)) if odd else theta()
    refused(f"parameter 2 is none on rank 0 and ('x', [1]) {last}", lambda: DiLoCo(comm, longer), MismatchError)
    other = {"w": np.ones((3, 2), np.float32), "b": np.zeros(3, np.float32)} if odd else theta()
    refused("parameter 0 is ('w', [2, 3]) on rank 0", lambda: DiLoCo(comm, other), MismatchError)
    kinds = LocalSGD if odd else DiLoCo
    refused("method: 'diloco/1' on rank", lambda: kinds(comm, theta(), every=2), MismatchError)


def nan_in_one_replica(comm: Any) -> None:
    """Named on all ranks; nothing was averaged, and with the number repaired the round is made."""
    for delay in (0, 1):
        mine = theta()
        outer = DiLoCo(comm, mine, every=2, fragments=1, delay=delay, momentum=0.5)
        phi = outer.phi.copy()
        outer.step()
        if comm.rank == comm.size - 1:
            mine["b"][1] = np.inf
        for _ in range(delay):
            outer.step()
        refused(f"round 1: NaN or infinity in parameter 'b' of rank {comm.size - 1}", outer.step)
        assert (outer.phi == phi).all() and (mine["w"] == 1).all()
        mine["b"][1] = 3.0
        report = outer.step()
        assert report is not None
        np.testing.assert_allclose(mine["b"][1], 0.7 * 1.5 * 3, rtol=1e-6)


def empty_and_wrong_weights(comm: Any) -> None:
    outer = DiLoCo(comm, theta(), every=1, weight="count")
    refused("round 1: all ranks have weight 0", lambda: outer.step(0))
    outer = DiLoCo(comm, theta(), every=1, weight="count")
    refused("counts of ranks [0] are negative", lambda: outer.step(-1 if comm.rank == 0 else 4))
    outer = DiLoCo(comm, theta(), every=1, weight="count")
    report = outer.step(0 if comm.rank == 0 else 4)
    assert report is not None and report.weights == (0.0, *[1 / (comm.size - 1)] * (comm.size - 1))


def outer_parameters_that_differ(comm: Any) -> None:
    """Parameters differ like after a checkpoint of another step on one rank."""
    outer = DiLoCo(comm, theta(), every=1)
    if comm.rank == 1:
        outer.phi[0] += 1
    refused("outer parameters differ, by digest", outer.step, MismatchError)


def steps_that_are_not_as_many(comm: Any) -> None:
    outer = LocalSGD(comm, theta(), every=2)
    if comm.rank == 0:
        outer.rounds = 1
        outer.steps = 2
    refused("different rounds: 2 on rank 0; 1 on rank", lambda: [outer.step(), outer.step()], MismatchError)


def settings_of_a_newcomer(comm: Any) -> None:
    """They are compared in its first round, as the others train when its loop is made."""
    outer = LocalSGD(comm, theta(), every=1)
    if comm.rank == 0:
        outer._settings = 7
    refused("settings differ, by digest: 00000007 on rank 0; ", outer.step, MismatchError)


def after_an_error_the_next_loop_works(comm: Any) -> None:
    mine = theta()
    outer = LocalSGD(comm, mine, every=1)
    mine["w"] += comm.rank
    outer.step()
    assert (mine["w"] == 1 + (comm.size - 1) / 2).all()


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "threads")])
def test_ranks_that_differ(size: int, transport: str) -> None:
    programs = (
        loops_that_differ, nan_in_one_replica, empty_and_wrong_weights, outer_parameters_that_differ,
        steps_that_are_not_as_many, settings_of_a_newcomer, after_an_error_the_next_loop_works,
    )  # fmt: skip
    spread(programs, size, transport)


def test_a_rank_that_dies_ends_the_round() -> None:
    """Also one that is sent in a thread: `step` raises PeerLostError, within the time that calls need for it."""
    from support import jobs

    source = """
        import os, time, numpy as np, hocket
        from hocket.training import StreamingDiLoCo
        comm = hocket.init(transport="shm")
        outer = StreamingDiLoCo(comm, {"w": np.ones(9, np.float32)}, every=2, fragments=1, delay=1)
        for step in range(9):
            if comm.rank == 1 and step == 3:
                while not all(os.path.exists(f"{__file__}.{rank}") for rank in (0, 2)):  # in the round before
                    time.sleep(0.005)
                os.kill(os.getpid(), 9)
            try:
                outer.step()
                if step == 2:
                    open(f"{__file__}.{comm.rank}", "w").close()
            except hocket.PeerLostError as lost:
                print("lost", lost.ranks, step)
                os._exit(0)
    """
    with jobs.Job(3, source) as job:
        ends = job.wait(90)
    assert [ends[r].out for r in (0, 2)] == ["lost (1,) 4\n"] * 2, ends


def test_momentum_that_is_too_much() -> None:
    """0.9 for fewer than 100 rounds: told at once if the length is planned, else at the end."""

    def program(comm: hocket.Communicator) -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            DiLoCo(comm, theta(), every=10, planned=900)
            DiLoCo(comm, theta(), every=10, planned=1000, fragments=2)
            DiLoCo(comm, theta(), every=10, planned=900, momentum=0.5)
            Outer(comm, theta(), every=10, planned=900, rule=Momentum(1.0))
            outer = DiLoCo(comm, theta(), every=1)
            outer.step()
            outer.finish()
        return [str(each.message) for each in told]

    found = hocket.local_world(1).run(program)[0]
    assert [each[:52] for each in found] == [
        "outer momentum 0.9 in a training of 90 rounds: below", "outer momentum 0.9 in a training of 1 rounds: below "
    ]
