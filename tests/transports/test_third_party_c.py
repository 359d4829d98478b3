"""A transport in C of another package, built against an installed wheel: its header, its capsule, its entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hocket.conformance import GROUP_LAWS, LAWS
from support import jobs

pytestmark = pytest.mark.more
ROOT = Path(__file__).parents[2]
WHEEL = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
"""The call that pip makes; pip itself takes longer."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hocket from its wheel, and with the plug-in that was built against that."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    sources = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, sources.split("\0")):
        if not name.startswith(("tests/", "docs/", "bench/results/")) and os.path.lexists(ROOT / name):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "source" / name, follow_symlinks=False)
    _hand_over(ROOT, folder / "source")
    install(folder / "source", folder / "site")
    shutil.copytree(ROOT / "tests" / "plugins" / "hocket_fifos", folder / "plugin")
    install(folder / "plugin", folder / "site")
    return folder / "site"


def install(source: Path, site: Path) -> None:
    """Make a wheel of `source`, beside it, and unpack it in `site`."""
    made = source.with_suffix(".wheel")
    made.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", WHEEL, str(made)]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = made.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)


def _hand_over(tree: Path, copy: Path) -> None:
    """Copy what is compiled already: else the build would do it again, which takes a minute."""
    for made in ("cython", "cache"):
        there = copy / "build" / made
        shutil.copytree(tree / "build" / made, there, copy_function=shutil.copy2, dirs_exist_ok=True)


def conformance(site: Path) -> str:
    command = [sys.executable, "-m", "hocket.conformance", "hocket_fifos:FifosTransport"]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=site, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_it_keeps_the_laws(site: Path) -> None:
    words = [line.split() for line in conformance(site).splitlines()]
    assert [law.rstrip(":") for _, law, *_ in words] == [law.__name__ for law in (*LAWS, *GROUP_LAWS)]
    assert [law for what, law, *_ in words if what != "kept"] == ["a_multicast_reaches_every_reader:"]


@pytest.mark.timeout(600)
def test_a_job_of_two_processes(site: Path) -> None:
    source = """
        import hocket, numpy as np
        comm = hocket.init()
        for n in (1, 5000, 300000):
            x = np.arange(n, dtype=np.float64) * (comm.rank + 1)
            assert np.array_equal(comm.allreduce(x), np.arange(n) * 3.0)
        print("fifos" in comm.explain(), hocket.__file__)
        comm.close()
    """
    ends = jobs.run(2, source, HOCKET_TRANSPORT="fifos", PYTHONPATH=str(site))
    assert ends == [f"True {site}/hocket/__init__.py\n"] * 2


@pytest.mark.timeout(600)
def test_what_is_in_the_wheel(site: Path) -> None:
    """Every room, with the headers and kernels that are compiled elsewhere; no tests, and nothing else."""
    (wheel,) = site.parent.glob("source.wheel/*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("hocket-")]
    assert all(name.startswith("hocket/") for name in names)
    ends = {name.rpartition(".")[2] for name in names}
    known = {"py", "pyi", "pyx", "pxd", "h", "cuh", "so", "typed", "js", "css", "json"}
    assert ends == known | {"c", "txt", "1"}, ends  # the last three are hocket/xla's, which JAX loads
    rooms = {os.path.dirname(name) for name in names if name.endswith("__init__.py")}
    here = {"hocket"} | {
        str(init.parent.relative_to(ROOT / "src"))
        for top in (ROOT / "src" / "hocket").iterdir()
        if top.is_dir() and top.name != "lab"  # which runs in a checkout
        for init in top.glob("**/__init__.py")
    }  # fmt: skip
    assert rooms == here
