"""Unmodified user code on the hocket backend, in real processes: training/, on 2 to 4 ranks.

All cases share four processes, as importing torch takes longer than most of them.
"""

from __future__ import annotations

import json

import pytest
from torch_training import cases

from support import jobs
from support.worlds import path_to

LIMIT = 400.0
"""Seconds for all cases.  They take 30 alone on two cores, and five times that beside other tests on slow ones."""
pytestmark = pytest.mark.timeout(LIMIT)
CASES = {name: cases.CASES[name][0] for name in cases.order()}
"""Each case's number of ranks."""
ALIKE = [
    name for name, size in CASES.items()
    if name.replace(f"-{size}", f"-{size - 1 if name.startswith('compile') else size + 1}") in CASES
]  # fmt: skip
"""Cases that run on another number of ranks, too: on one more, or on one less where each compiles for seconds."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """By case: what went wrong on which rank.  A case that a rank did not come to the end of tells the rank's end."""
    place = tmp_path_factory.mktemp("training")
    chosen = [item.callspec.params["name"] for item in request.session.items if item.function is test_case]
    env = {"PYTHONPATH": path_to(__file__), "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor")}
    arguments = ["torch_training", str(place), *chosen]
    source = f"import sys, torch._dynamo; sys.argv = {arguments!r}; import torch_training.__main__"
    with jobs.Job(max(CASES[name] for name in chosen), source, env=env) as job:
        ends = job.wait(LIMIT)
    found: dict[str, list[str]] = {name: [] for name in chosen}
    for rank, end in enumerate(ends):
        told = {name: wrong for name, wrong, _ in map(json.loads, end.out.splitlines())}
        mine = [name for name in chosen if rank < CASES[name]]
        for name in mine:
            if wrong := told.get(name, f"the process ended with {end.code} before:\n{end.err[-3000:]}"):
                found[name].append(f"rank {rank}: {wrong}")
        if end.code and len(told) == len(mine):
            found[mine[-1]].append(f"rank {rank} ended with {end.code} after this:\n{end.err[-3000:]}")
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.more) if name in ALIKE else name for name in CASES]
)
def test_case(name: str, results: dict[str, list[str]]) -> None:
    assert not results[name], "\n".join(results[name])


def test_lightning_counts_all_batches_of_a_step() -> None:
    """Batches whose gradients accumulate, with Lightning's classes stood in for; a restart begins at 0."""
    source = """
import sys, types, torch, hocket, hocket.torch
lightning, inside = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
inside.Callback = object
lightning.pytorch = inside
sys.modules.update({"lightning": lightning, "lightning.pytorch": inside})
from hocket.torch.training.lightning import OuterCallback
from hocket.training import LocalSGD
comm, model, trainer = hocket.init(), torch.nn.Linear(1, 1, bias=False), types.SimpleNamespace(global_step=0)
callback = OuterCallback(lambda p: LocalSGD(comm, p, every=1, weight="count"), count=len)
for start in (0, 7):
    trainer.global_step = start
    callback.on_train_start(trainer, model)
    for step in range(3):
        for i, samples in enumerate([[30, 10], [10, 10]][comm.rank]):
            trainer.global_step += i
            model.weight.data.fill_(float(comm.rank))
            callback.on_train_batch_end(trainer, model, None, [0] * samples, i)
        assert abs(model.weight.item() - 1 / 3) < 1e-6, (step, model.weight)
    callback.on_train_batch_end(trainer, model, None, [0] * 99, 0)      # it ends within a step
assert all(report.weights == (2 / 3, 1 / 3) for report in callback.reports) and len(callback.reports) == 6
"""
    jobs.run(2, source)
