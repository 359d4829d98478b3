"""Horovod's names for TensorFlow, with Keras 3 and with Keras 2, on real ranks (make test-keras)."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import pytest

from support import jobs

if keras.backend.backend() != "tensorflow":
    pytest.skip("Horovod's names are for TensorFlow", allow_module_level=True)

pytestmark = pytest.mark.timeout(400)
PATH = os.pathsep.join([jobs.SOURCES, jobs.TESTS, str(Path(__file__).parent)])
CASES = (
    "values", "moved_rows", "gradients_as_in_horovod", "a_graph_of_tensorflow_1", "tape_and_variables",
    "optimizer_and_callbacks", "rates", "loaded", "wrong",
)  # fmt: skip


@pytest.mark.parametrize("legacy", ["0", "1"], ids=["keras 3", "keras 2"])
def test_two_ranks(legacy: str) -> None:
    source = f"import horovod_cases\nhorovod_cases.run(*{CASES})\n"
    env = {"PYTHONPATH": PATH, "TF_USE_LEGACY_KERAS": legacy, "KERAS_BACKEND": "tensorflow"}
    jobs.run(2, source, 300.0, stay=False, TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", **env)


def test_three_ranks_and_a_process_set_of_two() -> None:
    source = "import horovod_cases\nhorovod_cases.run('moved_rows', 'process_sets')\n"
    jobs.run(3, source, 300.0, stay=False, TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", PYTHONPATH=PATH)


def test_run_starts_ranks_and_returns_what_they_did(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import hocket.horovod as horovod, hocket.horovod.tensorflow as hvd\n"
        "def main(n):\n    hvd.init()\n    return n + hvd.rank(), hvd.size()\n"
        "if __name__ == '__main__':\n    print(horovod.run(main, (10,), np=2, hosts='localhost:2', use_gloo=True))\n"
    )
    with jobs.Job(1, argv=[os.sys.executable, str(program)], env={"PYTHONPATH": PATH}) as job:
        (end,) = job.wait(100)
    assert end.out.strip().endswith("[(10, 2), (11, 2)]"), end.err
