"""Which rank this process is, of how many, and where the ranks meet: read from what the launcher left behind.

Every launcher is a line of LAUNCHERS; the first one present decides.  Two that contradict each other are an error.
Ranks on one machine meet at a unix path that each of them can compute without talking; ranks on several need a secret
and rank 0's address.  Opens no connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Mapping

from hocket.collectives.job.config import Config
from hocket.control.dial import show
from hocket.control.places import PATH_LIMIT, is_private
from hocket.control.rendezvous import Meeting
from hocket.control.secret import MAKE_ONE
from hocket.errors import ArgumentError

log = logging.getLogger("hocket.collectives")
Environ = Mapping[str, str]
CANDIDATES = 8  # ports that rank 0 may take, when no range is given
OPEN_KEY = b"hocket: authentication is off"  # what auth="none" proves, on purpose, to everybody


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
MPI_LAUNCHERS = ("Open MPI", "MPICH or Intel MPI")
PROXIES = ("hydra", "pmi_proxy", "mpiexec", "mpirun", "slurmstepd")  # the one process above all ranks of a machine


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process stands in its job."""

    rank: int
    size: int
    local_rank: int | None  # None: several hosts, and the launcher does not say
    launcher: str
    address: Meeting
    job: str
    key: bytes | None = dataclasses.field(repr=False)
    single_host: bool | None  # None: not known
    why: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """What one launcher says."""

    by: Launcher
    rank: int
    size: int
    local_rank: int | None
    single_host: bool | None
    per_node: bool  # one process on each node: an agent that starts the ranks proper
    named: str  # the variables, for a text


def detect(
    environ: Environ,
    config: Config | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    auth: str = "secret",
) -> Place:
    """This process's place.  rank and size go together and beat every launcher; address beats the launcher's."""
    config = config or Config()
    if auth not in ("secret", "none"):
        raise ArgumentError(f'auth is {auth!r}; accepted: "secret" (the default) or "none"')
    if (rank is None) != (size is None):
        raise ArgumentError("rank and size go together: give both, or neither to take them from the launcher")
    argued = [_argued(environ, rank, size)] if rank is not None and size is not None else None
    claims = argued or _claims(environ)
    me = claims[0]
    single = next((claim.single_host for claim in claims if claim.single_host is not None), None)
    job = _job(environ, claims, single)
    given = address or environ.get("HOCKET_RENDEZVOUS") if me.by.name == "hocket run" else address
    if given:
        meeting, job = parse_address(given), given
    elif single:
        meeting = ("unix", meeting_path(environ, job))
    else:
        meeting = ("tcp", _master(environ, me), _ports(environ, config, me, job))
    key = config.secret
    if key is None and meeting[0] == "tcp":
        key = _no_secret(me, show_meeting(meeting), auth)
    local_rank = me.rank if me.local_rank is None and single else me.local_rank
    why = f"rank {me.rank} of {me.size} from {me.by.name}{me.named}; rendezvous {show_meeting(meeting)}"
    return Place(me.rank, me.size, local_rank, me.by.name, meeting, job, key, single, why)


def mpi_place(environ: Environ) -> tuple[int, int, str] | None:
    """(rank, size, the launcher), if it is an MPI's launcher that decides."""
    first = _claims(environ)[0]
    return (first.rank, first.size, first.by.name) if first.by.name in MPI_LAUNCHERS else None


# --- who: rank and size ---


def _claims(environ: Environ) -> list[Claim]:
    """What the launchers say, who agree; never empty."""
    return _agreed([claim for each in LAUNCHERS if (claim := _claim(environ, each))])


def _claim(environ: Environ, by: Launcher) -> Claim | None:
    if not all(environ.get(mark) for mark in by.marks):
        return None
    size_name = next((name for name in by.size if environ.get(name)), by.size[-1])
    here = [name for name in (by.rank, size_name) if environ.get(name)]
    if not here:
        return None
    if len(here) == 1:
        other = size_name if here[0] == by.rank else by.rank
        raise ArgumentError(f"{here[0]} is set but {other} is not: set both, or neither")
    rank, size = _integer(environ, by.rank), _integer(environ, size_name)
    if size < 1 or not 0 <= rank < size:
        raise ArgumentError(f"{by.rank} is {rank} and {size_name} is {size}: ranks are 0 to {size_name} - 1")
    nodes = next((_integer(environ, name) for name in by.nodes if environ.get(name)), None)
    local_size = _integer(environ, by.local_size) if environ.get(by.local_size) else None
    local_rank = _integer(environ, by.local_rank) if environ.get(by.local_rank) else None
    single: bool | None = None
    if local_size is not None or nodes is not None:
        single = local_size == size or nodes == 1
    elif by.name == "the environment":
        single = _loopback(environ)
    per_node = local_size == 1 or nodes == size
    return Claim(by, rank, size, local_rank, single, per_node, f" ({by.rank}, {size_name})")


def _argued(environ: Environ, rank: int, size: int) -> Claim:
    if size < 1 or not 0 <= rank < size:
        raise ArgumentError(f"rank is {rank} and size is {size}: ranks are 0 to size - 1")
    local = _integer(environ, "LOCAL_RANK") if environ.get("LOCAL_RANK") else None
    return Claim(ARGUMENTS, rank, size, local, size == 1 or _loopback(environ), False, "")


def _agreed(claims: list[Claim]) -> list[Claim]:
    """Leave out launchers that only started another launcher; the others must agree."""
    if not claims:
        return [Claim(ALONE, 0, 1, 0, True, False, "")]
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


def _integer(environ: Environ, name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ArgumentError(f"{name} is {environ[name]!r}: a whole number is needed") from None


# --- where: job and address ---


def _loopback(environ: Environ) -> bool | None:
    """Does MASTER_ADDR say that all ranks are on this machine?  (None: it does not.)"""
    host = environ.get("MASTER_ADDR")
    if not host:
        return True
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    return True if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found) else None


def _job(environ: Environ, claims: list[Claim], single: bool | None) -> str:
    """A name that all ranks of this job, and no other job of this machine, compute."""
    me = claims[0].by
    if me is ALONE:
        return f"alone:{ancestor((), os.getpid())}"
    for by in (claim.by for claim in claims):
        words = [environ.get(name, "") for name in by.job]
        if any(words):
            return ":".join([by.name, str(os.geteuid()), *words])
    if me.name in MPI_LAUNCHERS and single:
        return f"{me.name}:{ancestor(PROXIES, os.getpid())}"
    return f"{me.name}:{os.geteuid()}:{environ.get('MASTER_ADDR', '')}"


def ancestor(names: tuple[str, ...], pid: int) -> str:
    """pid and start time of the nearest process above `pid` with such a name, else of its parent (no names: itself)."""
    chain: list[tuple[int, str, str]] = []
    while pid > 0:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")
        except OSError:
            break
        fields = tail.split()
        chain.append((pid, head.partition("(")[2], fields[19]))
        pid = int(fields[1])
    found = [entry for entry in chain[1:] if entry[1].startswith(names)] if names else chain
    number, _, started = (found or chain[1:] or chain)[0]
    return f"{number}.{started}"


def meeting_path(environ: Environ, job: str) -> str:
    """A unix path in this user's private directory.  (The listener checks that it is private.)

    XDG_RUNTIME_DIR, where it is the user's own, beats TMPDIR: nobody else can have made a directory in there before.
    """
    name = f"hocket-{os.geteuid()}/{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if is_private(runtime):
        path = os.path.join(runtime, name)
        if len(os.fsencode(path)) <= PATH_LIMIT:
            return path
    path = os.path.join(environ.get("TMPDIR") or "/tmp", name)
    return path if len(os.fsencode(path)) <= PATH_LIMIT else f"/tmp/{name}"


def _master(environ: Environ, me: Claim) -> str:
    """The host of rank 0."""
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    if me.by.name == "Slurm" and (found := re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)):
        return found[1] + (found[2] or "")  # node[03-07,12] begins with node03
    raise ArgumentError(
        f"rank {me.rank} of {me.size} from {me.by.name}{me.named}: the ranks are not known to be on one machine, and "
        "rank 0's is not known: set MASTER_ADDR to its name on every rank, or call init(address='tcp:host:port')"
    )


def own_address(environ: Environ) -> str:
    """The address of this host from which it reaches MASTER_ADDR; without one, that of its own name; else loopback."""
    try:
        found = socket.getaddrinfo(environ.get("MASTER_ADDR") or socket.gethostname(), 9, type=socket.SOCK_DGRAM)
    except OSError:
        return "127.0.0.1"
    for family, kind, _, _, place in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as sock:
            sock.connect(place)  # sends nothing, but chooses a way
            return str(sock.getsockname()[0])
    return "127.0.0.1"


def _ports(environ: Environ, config: Config, me: Claim, job: str) -> list[int]:
    if config.ports is not None:
        return list(config.ports)
    if environ.get("MASTER_PORT"):
        # torchrun's own store listens on MASTER_PORT; elsewhere it is free, or torch's, and then the next one is taken.
        first = _integer(environ, "MASTER_PORT") + (me.by.name == "torchrun")
    else:
        # Below the ports that systems give to outgoing connections.
        first = 20000 + int(hashlib.sha256(job.encode()).hexdigest(), 16) % 10000
    return [port for port in range(first, first + CANDIDATES) if port < 65536]


def _no_secret(me: Claim, where: str, auth: str) -> bytes:
    if auth == "none":
        if me.rank == 0:
            log.warning("hocket: auth='none': whoever reaches %s can join this job", where)
        return OPEN_KEY
    raise ArgumentError(
        f"rank {me.rank} of {me.size} from {me.by.name}{me.named}: the ranks meet over TCP ({where}), so they need a "
        f"secret: set HOCKET_SECRET to the same on every rank, made by {MAKE_ONE}, or HOCKET_SECRET_FILE (mode 0600), "
        'or call init(auth="none") if everybody on this network may join'
    )


def parse_address(text: str) -> Meeting:
    """unix:/path, tcp:host:port or tcp:host:first-last; an IPv6 host stands in [ ]."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return ("unix", rest)
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d+)(?:-(\d+))?", rest)
    if kind == "tcp" and found:
        first, last = int(found[3]), int(found[4] or found[3])
        if 0 < first <= last < 65536:
            return ("tcp", found[1] or found[2], list(range(first, last + 1)))
    raise ArgumentError(f"the address is {text!r}; accepted: unix:/path, tcp:host:port, tcp:host:first-last")


def show_meeting(meeting: Meeting) -> str:
    """The address as parse_address reads it."""
    if meeting[0] == "unix":
        return f"unix:{meeting[1]}"
    ports = meeting[2]  # type: ignore[misc]
    ports = [ports] if isinstance(ports, int) else ports
    return show(("tcp", meeting[1], ports[0])) + (f"-{ports[-1]}" if len(ports) > 1 else "")
