"""hocket.keras on the backend that KERAS_BACKEND names, on real ranks (make test-keras: on each of the three)."""

from __future__ import annotations

import os
from pathlib import Path

import cases
import keras
import pytest

from support import jobs

pytestmark = pytest.mark.timeout(400)
BACKEND = keras.backend.backend()
PATH = os.pathsep.join([jobs.SOURCES, jobs.TESTS, str(Path(__file__).parent)])
ENV = {"PYTHONPATH": PATH, "KERAS_BACKEND": BACKEND, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
SOURCE = "import cases\ncases.run({})\n"
GROUPS = {
    "as one process with the whole batch": [
        "whole_batch", "embedding", "shared_and_constant_gradients", "second_fit", "own_loop", "the_parts_alone",
    ],
    "as one process in other ways of fit": ["run_eagerly", "accumulated", "several_steps_in_one_execution"],
    "the same bits on all ranks": [
        "trained_alone_before", "saved_and_loaded", "pure_bfloat16", "no_gradient_on_any_rank", "compressed",
        "numbers_that_keras_made_may_differ", "metrics_and_moving_averages", "shards",
        "one_tensor_for_two_gradients",
    ],
    "mixed precision": ["overflow_on_one_rank"],
    "models that differ": ["swapped_layers", "a_layer_more_swaps_branches", "other_models_and_settings", "refused"],
    "no gradient": ["no_gradient_on_one_rank"],
    "other variables": ["other_variables_in_a_loop"],
    "fewer batches": ["a_rank_with_fewer_batches"],
    "a rank is killed": ["dies_in_fit"],
}
"""By what a program of ranks shows: its cases.  To import TensorFlow takes longer than most of them."""


def ranks(size: int, *names: str) -> None:
    jobs.run(size, SOURCE.format(", ".join(map(repr, names))), 300.0, stay=False, **ENV)


@pytest.mark.parametrize("group", [each for each in GROUPS if each != "a rank is killed"])
def test_two_ranks(group: str) -> None:
    ranks(2, *GROUPS[group])


def test_four_ranks() -> None:
    ranks(4, "whole_batch", "embedding", "shared_and_constant_gradients", "overflow_on_one_rank")


def test_every_case_is_run() -> None:
    assert sorted(cases.CASES) == sorted(name for names in GROUPS.values() for name in names)


def test_a_rank_is_killed_in_fit() -> None:
    with jobs.Job(2, SOURCE.format("'dies_in_fit'"), env=ENV) as job:
        first, second = job.wait(120)
    assert (first.code, second.code) == (0, -9), first.err
    assert "told: rank 1" in first.out and "allreduce" in first.out


def test_other_frameworks_are_not_imported() -> None:
    others = {"tensorflow", "jax", "torch"} - {BACKEND}
    source = "import sys, hocket.keras as hk; hk.cause(ValueError()); print(sorted(set(sys.modules)))"
    said = jobs.run(1, source, **ENV)[0]
    found = {name.strip("' ") for name in said.strip("[]\n").split(",")}
    ours = {name for name in found if name.startswith("hocket.") and name.split(".")[1] in others}
    assert not ours and not [name for name in found if name in {f"hocket.keras.backends.{each}" for each in others}]
