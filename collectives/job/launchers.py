"""Which rank this process is, and of how many: read from what the launcher left behind.

Every launcher is a line of LAUNCHERS; the first one present decides.  Two that contradict each other are an error.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from collections.abc import Mapping

from hocket.collectives.job.pods import Pod, pods
from hocket.errors import ArgumentError, TransportError

Environ = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The variables that one launcher sets.  It is present if `marks` and a size are; `job` tells jobs apart."""

    name: str
    rank: str
    size: tuple[str, ...]  # the first that is set counts
    local_rank: str
    local_size: str = ""
    nodes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    job: tuple[str, ...] = ()


LAUNCHERS = (
    Launcher("hocket run", "HOCKET_RANK", ("HOCKET_SIZE",), "HOCKET_LOCAL_RANK", "HOCKET_LOCAL_SIZE",
             job=("HOCKET_RENDEZVOUS",)),
    Launcher("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE", marks=("TORCHELASTIC_RUN_ID",),
             job=("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", job=("PMIX_NAMESPACE",)),
    Launcher("MPICH or Intel MPI", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # The batch script itself has SLURM_PROCID and SLURM_NTASKS too, but is in no step: it is not one of the ranks.
    Launcher("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID",
             nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), marks=("SLURM_STEP_ID",),
             job=("SLURM_JOB_ID", "SLURM_STEP_ID")),
    Launcher("the environment", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE",
             job=("MASTER_ADDR", "MASTER_PORT")),
)  # fmt: skip
ARGUMENTS = Launcher("the arguments of init()", "rank", ("size",), "LOCAL_RANK", job=("MASTER_ADDR", "MASTER_PORT"))
ALONE = Launcher("no launcher", "", (), "")
PRTERUN = Launcher("prterun", "PMIX_RANK", (), "", job=("PMIX_NAMESPACE",))
NO_SIZE = (
    "PMIX_RANK is {}, and no variable says of how many ranks (a bare prterun or prun), nor is its libpmix found: start "
    "them by mpirun, by prterun --personality ompi, or call init(rank=, size=, address=)"
)
MPI_LAUNCHERS = ("Open MPI", "MPICH or Intel MPI")


@dataclasses.dataclass(frozen=True)
class LauncherClaim:
    """The words of one launcher."""

    by: Launcher
    rank: int
    size: int
    local_rank: int | None
    single_host: bool | None
    per_node: bool  # one process on each node: an agent that starts the ranks proper
    named: str  # the variables, for a text


def mpi_place(environ: Environ) -> tuple[int, int, str] | None:
    """(rank, size, the launcher), if it is an MPI's launcher that decides."""
    first = claims_of(environ)[0]
    return (first.rank, first.size, first.by.name) if first.by.name in MPI_LAUNCHERS else None


def managed_place(environ: Environ) -> tuple[int, int, str] | None:
    """(rank, size, the launcher) where the ranks are on several hosts, and only a process manager can tell where."""
    first, *others = claims_of(environ)
    single = next((each.single_host for each in (first, *others) if each.single_host is not None), None)
    managed = first.by.name in (*MPI_LAUNCHERS, "Slurm", PRTERUN.name)
    if not managed or first.size == 1 or single or environ.get("MASTER_ADDR"):
        return None
    return first.rank, first.size, first.by.name


def claims_of(environ: Environ) -> list[LauncherClaim]:
    """The claims of the launchers, or of the systems that number pods; never empty.  ArgumentError if they disagree."""
    environ = _told_at_a_port(environ)
    return _agreed(environ, _pods(environ) or [claim for each in LAUNCHERS if (claim := _claim(environ, each))])


def _told_at_a_port(environ: Environ) -> Environ:
    """With PMI_RANK and PMI_SIZE where hydra tells them to those alone who ask (mpiexec -pmi-port)."""
    if not (environ.get("PMI_PORT") and environ.get("PMI_ID")) or environ.get("PMI_RANK") or environ.get("HOCKET_RANK"):
        return environ
    from hocket.control.managers import pmi

    wire = pmi.wire(environ)
    return environ if wire is None else {**environ, "PMI_RANK": wire.rank, "PMI_SIZE": wire.size}


def completed(environ: Environ) -> Environ:
    """With RANK, WORLD_SIZE and MASTER_ADDR also where only the system that started the pod says them, in its words."""
    values = {name: value for pod in _present(environ) for name, value in pod.values.items()}
    return {**values, **environ} if values else environ


def _present(environ: Environ) -> list[Pod]:
    """Pods' numbers count only where no launcher has started ranks."""
    return [] if any(_claim(environ, each) for each in LAUNCHERS[:-1]) else [*pods(environ)]


def _pods(environ: Environ) -> list[LauncherClaim]:
    claims = []
    for pod in _present(environ):
        claim = _claim({**environ, **pod.values}, LAUNCHERS[-1])
        assert claim is not None
        by = dataclasses.replace(claim.by, name=pod.system)
        alone = claim.size == 1  # else each is in a pod of its own
        claims.append(dataclasses.replace(claim, by=by, single_host=alone, named=f" ({pod.variables})"))
    return claims


def _claim(environ: Environ, by: Launcher) -> LauncherClaim | None:
    if not all(environ.get(mark) for mark in by.marks):
        return None
    size_name = next((name for name in by.size if environ.get(name)), by.size[-1])
    here = [name for name in (by.rank, size_name) if environ.get(name)]
    if not here:
        return None
    if len(here) == 1:
        other = size_name if here[0] == by.rank else by.rank
        raise ArgumentError(f"{here[0]} is set but {other} is not: set both, or neither")
    rank, size = integer(environ, by.rank), integer(environ, size_name)
    if size < 1 or not 0 <= rank < size:
        raise ArgumentError(f"{by.rank} is {rank} and {size_name} is {size}: ranks are 0 to {size_name} - 1")
    nodes = next((integer(environ, name) for name in by.nodes if environ.get(name)), None)
    local_size = integer(environ, by.local_size) if environ.get(by.local_size) else None
    local_rank = integer(environ, by.local_rank) if environ.get(by.local_rank) else None
    single: bool | None = None
    if local_size is not None or nodes is not None:
        single = local_size == size or nodes == 1
    elif by.name == "the environment":
        single = by_loopback(environ)
    per_node = local_size == 1 or nodes == size
    return LauncherClaim(by, rank, size, local_rank, single, per_node, f" ({by.rank}, {size_name})")


def argued(environ: Environ, rank: int, size: int) -> LauncherClaim:
    if size < 1 or not 0 <= rank < size:
        raise ArgumentError(f"rank is {rank} and size is {size}: ranks are 0 to size - 1")
    local = integer(environ, "LOCAL_RANK") if environ.get("LOCAL_RANK") else None
    return LauncherClaim(ARGUMENTS, rank, size, local, size == 1 or by_loopback(environ), False, "")


def _agreed(environ: Environ, claims: list[LauncherClaim]) -> list[LauncherClaim]:
    """Leave out launchers that only started another launcher; the others must agree."""
    if not claims:
        if environ.get("PMIX_RANK") and environ.get("PMIX_NAMESPACE"):
            return [_by_prterun(environ)]
        return [LauncherClaim(ALONE, 0, 1, 0, True, False, "")]
    if any(claim.size > 1 for claim in claims):
        claims = [claim for claim in claims if claim.size > 1]
    first, *others = claims
    others = [claim for claim in others if not (claim.per_node and claim.size < first.size)]
    for other in others:
        if (other.rank, other.size) != (first.rank, first.size):
            raise ArgumentError(
                f"two launchers contradict each other: {first.by.name} says rank {first.rank} of {first.size}"
                f"{first.named}, {other.by.name} says rank {other.rank} of {other.size}{other.named}: "
                "unset the variables of the one that did not start the ranks, or call init(rank=, size=, address=)"
            )
    return [first, *others]


def _by_prterun(environ: Environ) -> LauncherClaim:
    """A bare prterun tells the rank; PMIx, if its library is here, the number of ranks."""
    from hocket.control.managers.pmix import pmix

    try:
        begun = pmix(environ)
    except TransportError as why:
        raise ArgumentError(f"{NO_SIZE.format(environ['PMIX_RANK'])} ({why})") from None
    if begun is None:
        raise ArgumentError(NO_SIZE.format(environ["PMIX_RANK"]))
    return LauncherClaim(PRTERUN, integer(environ, "PMIX_RANK"), begun.size(), None, None, False, " (PMIX_RANK)")


def integer(environ: Environ, name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ArgumentError(f"{name} is {environ[name]!r}; it must be a whole number") from None


def by_loopback(environ: Environ) -> bool | None:
    """Does MASTER_ADDR say that all ranks are on this machine?  (None: it does not.)"""
    host = environ.get("MASTER_ADDR")
    if not host:
        return True
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    return True if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses) else None
