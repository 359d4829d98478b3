"""Copies of many bytes: what memcpy copies, no byte more, at each length and offset."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "copy_rules.c"


def test_copies_are_whole_and_stay_inside(tmp_path: Path) -> None:
    program = tmp_path / "copy_rules"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{ROOT}"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(program)], check=True, timeout=60)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
