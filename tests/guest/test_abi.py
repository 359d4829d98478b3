"""ibverbs.h is laid out as the system's infiniband/verbs.h."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
HEADER = pathlib.Path("/usr/include/infiniband/verbs.h")


@pytest.mark.skipif(not HEADER.exists(), reason="needs libibverbs-dev")
def test_layout(tmp_path: pathlib.Path) -> None:
    said = []
    for flag in (f"-I{HERE.parents[1]}", "-DSYSTEM"):
        program = tmp_path / "abi"
        subprocess.run(["gcc", flag, str(HERE / "abi.c"), "-o", str(program)], check=True)
        said.append(subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines())
    assert said[0] == said[1] and len(said[0]) > 100
