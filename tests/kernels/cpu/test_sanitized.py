"""The C kernels, compiled alone under AddressSanitizer and UBSan, do nothing undefined."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DTYPES
from hocket.kernels.ops import OPS
from support.compiled import compiled

HERE = Path(__file__).parent
# The default compiler must be there: the extension was built with one.  The other is a bonus.
COMPILERS = ["gcc", *(["clang"] if shutil.which("clang") else [])]
KERNELS = sum(row.kind in op.kinds for row in DTYPES for op in OPS) + sum(
    row.kind in ("int", "uint", "float", "complex") for row in DTYPES
)


@pytest.mark.sanitize
@pytest.mark.parametrize("compiler", COMPILERS)
def test_kernels_run_clean_under_sanitizers(compiler: str, tmp_path: Path) -> None:
    # Without optimisation: it compiles in seconds, and nothing undefined is optimised away before it is seen.
    flags = ["-std=gnu11", "-O0", "-g", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-lm"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = f"-I{HERE.parents[2] / 'src' / 'hocket'}"
    sources = [HERE / "sanitized.c"]
    program = compiled(tmp_path / "sanitized", sources, *flags, *sanitize, include, compiler=compiler)
    # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    levels = len(reduce.levels())
    assert done.stdout == f"{KERNELS * levels} kernels at {levels} levels\n"
