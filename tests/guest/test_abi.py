"""ibverbs.h is laid out as the system's infiniband/verbs.h."""

from __future__ import annotations

import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent


def test_layout(tmp_path: pathlib.Path) -> None:
    said = []
    for flag in (f"-I{HERE.parents[1]}", "-DSYSTEM"):
        program = tmp_path / "abi"
        subprocess.run(["gcc", flag, str(HERE / "abi.c"), "-o", str(program)], check=True)
        said.append(subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines())
    assert said[0] == said[1] and len(said[0]) > 100
