"""C programs that hold rules: silent and 0 if all hold, under AddressSanitizer and UBSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.compiled import compiled

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{ROOT}"]


def hold(source: Path, place: Path) -> None:
    """Compile `source` in the folder `place`, and run it."""
    program = compiled(place / source.stem, [source], *FLAGS)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
