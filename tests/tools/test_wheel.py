"""The wheel and the source of `make wheel`: installed where there is no compiler, they do what README says."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import numpy as np
import hocket
with hocket.init() as comm:
    x = comm.allreduce(np.full(1 << 20, comm.rank + 1.0, np.float32))
    y = comm.allreduce(np.ones(1000, np.float32), codec="int8")
    print(x[0], round(float(y[0]), 3), comm.broadcast_object({"from": comm.rank}))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    (found,) = (ROOT / "build" / "wheels").glob("hocket-*.whl")
    return found


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and NumPy, and nothing else."""
    place = tmp_path_factory.mktemp("bare") / "env"
    venv.create(place, with_pip=True)
    _done([place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel], place)
    return place


def _done(command: list[str | Path], place: Path, **env: str) -> str:
    """Its output.  It finds its own environment's programs only: no compiler."""
    only = {"PATH": str(place / "bin"), "HOME": str(place), **env}
    done = subprocess.run(command, env=only, cwd=place, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tag(wheel: Path) -> None:
    """Which Python it is for, and which Linux at least."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-manylinux_2_" in wheel.name


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_of_an_installed_wheel(place: Path, transport: str) -> None:
    (place / "program.py").write_text(PROGRAM)
    said = _done(["hocket", "run", "-n", "3", "--", "python", "program.py"], place, HOCKET_TRANSPORT=transport)
    assert said.count("6.0 3.0 {'from': 0}") == 3, said


def test_what_has_no_torch_says_so(place: Path) -> None:
    command: list[str | Path] = ["python", "-c", "import hocket.torch"]
    done = subprocess.run(
        command, env={"PATH": str(place / "bin")}, cwd=place, capture_output=True, text=True, timeout=100
    )
    assert "No module named 'torch'" in done.stderr
    assert "NumPy" in _done(["hocket", "doctor"], place)


def test_what_is_in_them(wheel: Path) -> None:
    """The source has what the wheel is made of, once, and its licence; the wheel has headers for third parties."""
    (source,) = (ROOT / "build" / "dist").glob("hocket-*.tar.gz")
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    code = [name for name in names if name.endswith((".py", ".pyx", ".pxd", ".h", ".cuh"))]
    assert {name.split("/")[0] for name in code} == {"setup.py", "src"}
    assert "LICENSE" in names and "src/hocket/kernels/cpu/reduce.h" in names
    inside = zipfile.ZipFile(wheel).namelist()
    assert "hocket/transports/channel.h" in inside
    assert not [name for name in inside if name.endswith((".c", ".o")) or {"tests", "lab"} & {*name.split("/")}]
