"""torch's own tests of a backend, out of the installed torch, on hocket.

    python tests/frameworks/torch/torch_suite/driver.py --as gloo --world-size 3
    python tests/frameworks/torch/torch_suite/driver.py --as mpi --world-size 3 -k all_to_all

The suite (`DistributedTest`) decides by a backend's name which tests are for it, when it is imported; so it is imported
under the name of `--as`, and then told to make groups of `--backend`.  names.txt lists the tests for CPU tensors that
Gloo or MPI pass.  Ranks are forked from this process, which has torch loaded.  Prints a line for each test, JSON last.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import pathlib
import sys
import tempfile
import time
import unittest
import warnings
from typing import Any

NAMES = pathlib.Path(__file__).parent / "names.txt"


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--backend", default="hocket", help="what groups are made of")
    made.add_argument("--as", dest="name", default="gloo", help="whose tests to run: gloo, or mpi (all_to_all)")
    made.add_argument("--world-size", type=int, default=3)
    made.add_argument("--timeout", type=int, default=60, help="seconds a test may take")
    made.add_argument("-k", default="", help="only tests with this in their name")
    return made.parse_args()


OPTIONS = arguments()
PLACE = tempfile.TemporaryDirectory(prefix="hocket-suite-")
os.environ.update({
    "BACKEND": OPTIONS.name, "WORLD_SIZE": str(OPTIONS.world_size), "INIT_METHOD": f"file://{PLACE.name}/store",
    "TEMP_DIR": PLACE.name,
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(OPTIONS.timeout), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
})  # fmt: skip
warnings.simplefilter("ignore")

from torch import multiprocessing  # noqa: E402
from torch.testing._internal import common_distributed as common  # noqa: E402

if OPTIONS.backend == "hocket":
    import hocket.torch  # noqa: F401  # makes the name known where hocket is not installed

for feature in ("ddp", "subgroup", "plugin"):
    common.DistTestCases.backend_feature[feature] |= {OPTIONS.name, OPTIONS.backend}
for name in common.TIMEOUT_OVERRIDE:
    common.TIMEOUT_OVERRIDE[name] = 200
# Some tests ask for 8 ranks, to be left out of torch's own runs; their groups are of ranks 1 and 2.
if OPTIONS.world_size > 2:
    common.skip_if_small_worldsize = lambda function: function
logging.getLogger(common.__name__).setLevel(logging.ERROR)

from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

suite.BACKEND = os.environ["BACKEND"] = OPTIONS.backend


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)

    def run_test(self, test_name: str, pipe: Any) -> None:
        if "accumulate_gradients_no_sync" in test_name:
            suite.BACKEND = OPTIONS.name  # their bodies build a model for backends that they know
        super().run_test(test_name, pipe)


class Lines(unittest.TextTestResult):
    """A line for each test, and the reason of each failure."""

    def startTest(self, test: unittest.TestCase) -> None:
        self.began = time.monotonic()
        self.counts: collections.Counter[str] = getattr(self, "counts", collections.Counter())
        super().startTest(test)

    def say(self, test: unittest.TestCase, end: str, why: str = "") -> None:
        self.counts[end] += 1
        print(f"{end:7} {time.monotonic() - self.began:6.2f}s {test.id().rpartition('.')[2]} {why}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.say(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.say(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.say(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure


def main() -> int:
    names = [name for name in NAMES.read_text().split() if OPTIONS.k in name]
    tests = unittest.TestSuite(Suite(name) for name in names)
    with open(os.devnull, "w") as nowhere:
        result = unittest.TextTestRunner(stream=nowhere, resultclass=Lines, verbosity=0).run(tests)
    print(json.dumps(dict(result.counts)))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
