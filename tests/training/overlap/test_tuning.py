"""The search of settings: all ranks have the same, few steps are enough, and what was found is kept."""

from __future__ import annotations

import json
import pathlib
import random
import sys

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from hocket.training import Setting, Tuned, tune
from hocket.training.overlap.tuning import SEARCHES, searched
from hocket.training.overlap.tuning import SPACE as ALL
from support.gradients import raised


@pytest.mark.parametrize(("search", "over"), [("gaussian", 1.05), ("random", 1.2)])
def test_fifteen_steps_come_near_the_best(search: str, over: float) -> None:
    """A valley whose floor is 4 lanes, 1 MiB, 64 KiB and credit 2: scikit-learn's model finds it, chance nearly."""

    def cost(setting: Setting) -> float:
        places = np.log2([setting.lanes / 4, setting.slice / (1 << 20), max(setting.fuse, 4096) / 65536,
                          setting.credit / 2])  # fmt: skip
        return float(1.0 + (0.02 * places**2).sum())

    for seed in range(3):
        dice = random.Random(seed)
        tried = searched(cost, lambda tried, dice=dice: SEARCHES[search](ALL, tried, dice), 15)  # type: ignore[misc]
        assert min(seconds for _, seconds in tried) <= over, (seed, tried)


def measured(setting: Setting) -> float:
    """The best: 4 lanes, 1 MiB, 64 KiB."""
    return 1.0 + abs(setting.lanes - 4) + abs(setting.slice - (1 << 20)) / (1 << 20) + abs(setting.fuse - 65536) / 1e6


def with_the_slowest(comm: Communicator, path: str) -> list[Tuned]:
    """Rank 0 measures the inverse of what the slowest rank does."""
    def here(setting: Setting) -> float:
        return measured(setting) if comm.rank else 0.5

    found = [tune(comm, here, job="model", path=path, steps=300, search="random")]
    found.append(tune(comm, here, job="model", path=path))
    found.append(tune(comm, here, job="other", path=path, steps=3, search="random", seed=1))
    return found


def test_all_ranks_find_the_same_and_it_is_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "kept.json"
    with hocket.local_world(2) as world:
        mine, others = world.run(lambda comm: with_the_slowest(comm, str(path)))
    assert mine == others
    first, again, other = mine
    assert len(first.tried) == len(set(first.tried)) == 300 and {s for s, _ in first.tried} <= set(ALL)
    assert first.setting.lanes in (2, 4, 8) and first.seconds == measured(first.setting), first
    assert again == Tuned(first.setting, first.seconds, []), "nothing is measured"
    assert len(other.tried) == 3
    assert set(json.loads(path.read_text())) == {f"{job}: 2 ranks on 1 hosts" for job in ("model", "other")}


@pytest.mark.parametrize(
    "text", ["[", "[]", *('{"KEY": ' + row + "}" for row in ("[1]", '"x"', "[1, 2, 3.5, 1]", "[1, 2, 3, 1, 1, 1]"))]
)
def test_a_file_of_another_kind_is_refused_on_all_ranks(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text.replace("KEY", "model: 1 ranks on 1 hosts"))
    with hocket.local_world(1) as world:
        told = world.run(lambda comm: raised(lambda: tune(comm, measured, job="model", path=str(path)), ArgumentError))
    assert "kept.json" in told[0] and "give another path=" in told[0]


@pytest.mark.parametrize(
    ("options", "words"), [({"search": "gausian"}, "did you mean 'gaussian'"), ({"steps": 0}, "steps=0 must be 1")]
)
def test_bad_arguments(options: dict[str, object], words: str) -> None:
    with hocket.local_world(1) as world:
        told = world.run(lambda comm: raised(lambda: tune(comm, measured, job="x", **options), ArgumentError))  # type: ignore[arg-type]
    assert words in told[0]


def test_without_the_library_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On all ranks, before anything is measured."""
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with hocket.local_world(2) as world:
        texts = world.run(lambda comm: raised(lambda: tune(comm, lambda setting: 1 / 0, job="x"), ArgumentError))
    assert all("pip install 'hocket[tune]', or search=\"random\"" in text for text in texts)


def test_what_one_rank_gives_wrong_is_told_on_all(tmp_path: pathlib.Path) -> None:
    """Before it is measured, or with the first step that took no time."""
    def wrong(comm: Communicator) -> list[str]:
        def nan(setting: Setting) -> float:
            return float("nan") if comm.rank else 1.0

        path = str(tmp_path / "nowhere" / "kept.json") if comm.rank == 0 else None
        by_chance = {"job": "x", "search": "random"}
        return [
            raised(lambda: tune(comm, nan, **by_chance), ArgumentError),  # type: ignore[arg-type]
            raised(lambda: tune(comm, measured, steps=1 + comm.rank, **by_chance), MismatchError),  # type: ignore[arg-type]
            raised(lambda: tune(comm, measured, path=path, **by_chance), ArgumentError),  # type: ignore[arg-type]
        ]

    words = ("must return seconds above 0 on all ranks", "ranks try [1, 2] settings", "cannot be written")
    for told in hocket.local_world(2).run(wrong):
        assert all(some in text for some, text in zip(words, told, strict=True)), told


def test_a_space_may_hold_a_setting_twice_and_numbers_of_numpy() -> None:
    space = [Setting(*np.array([lanes, 1 << 20, 0])) for lanes in (1, 2, 1)]
    with hocket.local_world(2) as world:
        found = world.run(lambda comm: tune(comm, measured, job="x", search="random", space=space))[1]
    assert len(found.tried) == 2 and found.setting == Setting(2, 1 << 20, 0)
