"""torch's own suite on hocket: what Gloo or MPI pass there passes.  All of it, at 2, 3 and 4 ranks: `make
test-torch-suite`; its all_to_all alone: `make test-more`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from support.worlds import PATH

DRIVER = pathlib.Path(__file__).parent / "torch_suite" / "driver.py"
SIZES = [int(n) for n in os.environ.get("TORCH_SUITE_SIZES", "").split(",") if n]
RUNS = [("mpi", 2)] if not SIZES else [(name, size) for size in SIZES for name in ("gloo", "mpi")]
PASSED = {("gloo", 2): 88, ("gloo", 3): 107, ("gloo", 4): 110, ("mpi", 2): 9, ("mpi", 3): 12, ("mpi", 4): 12}
"""The number of the 122 tests in names.txt that pass: as Gloo 110, of which 3 need 4 ranks and 19 others 3; as MPI
those of all_to_all."""


@pytest.mark.more
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "size"), RUNS)
def test_everything_passes(name: str, size: int) -> None:
    line = [sys.executable, str(DRIVER), "--as", name, "--world-size", str(size)]
    line += ["-k", "all_to_all"] if name == "mpi" else []
    done = subprocess.run(line, capture_output=True, text=True, timeout=380, env={**os.environ, "PYTHONPATH": PATH})
    counts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-8000:]
    assert counts["passed"] == PASSED[name, size], counts
