"""Where this process stands in its job: which rank of how many, and where the ranks meet.

Ranks on one machine meet at a unix path that each of them can compute without talking; ranks on several need a secret
and rank 0's address.  Opens no connection.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import socket

from hocket.collectives.base.config import Config
from hocket.collectives.job.launchers import (
    ALONE,
    MPI_LAUNCHERS,
    Environ,
    LauncherClaim,
    argued,
    by_loopback,
    claims_of,
    completed,
    integer,
)  # fmt: skip
from hocket.control.addresses import PATH_LIMIT, is_private
from hocket.control.dial import show
from hocket.control.handshake import Address
from hocket.control.nodes import names
from hocket.control.rendezvous import Meeting
from hocket.control.secret import MAKE_ONE
from hocket.errors import ArgumentError
from hocket.system.machine import local_end, loopback, temporary

log = logging.getLogger("hocket.collectives")
SHOWN = 3  # further places that `why` names
CANDIDATES = 8  # ports that rank 0 may take, when no range is given
OPEN_KEY = b"hocket: authentication is off"  # what auth="none" proves, on purpose, to everybody
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
    also: tuple[Meeting, ...] = ()
    """Further places to meet: for ranks of one host that see other folders (it needs a secret), or other nodes."""
    told: bool = False
    """Did the caller or `hocket run` give the address?"""


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
    claims = claims_of(environ) if rank is None or size is None else [argued(environ, rank, size)]
    environ = completed(environ) if rank is None else environ
    me = claims[0]
    single = next((claim.single_host for claim in claims if claim.single_host is not None), None)
    job = _job(environ, claims, single)
    also: tuple[Meeting, ...] = ()
    given = address or environ.get("HOCKET_RENDEZVOUS") if me.by.name == "hocket run" else address
    if given:
        meeting, job = parse_address(given), given
    elif single:
        meeting = ("unix", meeting_path(environ, job))
    else:
        first, *others = _hosts(environ, claims)
        ports = _ports(environ, config, me, job)
        meeting, also = ("tcp", first, ports), tuple(("tcp", other, ports) for other in others)
    key = config.secret
    if key is not None and not given and single and environ.get("MASTER_ADDR") and by_loopback(environ):
        also = (("tcp", environ["MASTER_ADDR"], _ports(environ, config, me, job)),)
    if key is None and meeting[0] == "tcp":
        key = _no_secret(me, show_meeting(meeting), auth)
    local_rank = me.rank if me.local_rank is None and single else me.local_rank
    where = " or ".join(map(show_meeting, (meeting, *also[:SHOWN]))) + (", ..." if len(also) > SHOWN else "")
    why = f"rank {me.rank} of {me.size} from {me.by.name}{me.named}; rendezvous {where}"
    return Place(me.rank, me.size, local_rank, me.by.name, meeting, job, key, single, why, also, bool(given))


def launched(ranks: int | None) -> int | None:
    """The number of ranks that a launcher has started this program as; None: it was started by hand, or to start
    `ranks`."""
    place = _without_secret()
    return None if place.launcher == ALONE.name or (place.size == 1 and ranks) else place.size


def is_first() -> bool:
    """Is this process rank 0 of its launcher's, or alone?"""
    return _without_secret().rank == 0


def _without_secret() -> Place:
    """Only the place is asked for: whether there is a secret is for init() to find out."""
    return detect(os.environ, Config(secret=b"not a secret: no one is met"))


def _job(environ: Environ, claims: list[LauncherClaim], single: bool | None) -> str:
    """A name that all ranks of this job, and no other job of this machine, compute."""
    me = claims[0].by
    master = environ.get("MASTER_ADDR", "").partition("%")[0]  # behind it: how this host names the interface
    environ = {**environ, "MASTER_ADDR": master}
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
    if not chain:  # /proc is not mounted
        return str(os.getppid() if names else pid)
    named = [entry for entry in chain[1:] if entry[1].startswith(names)] if names else chain
    number, _, started = (named or chain[1:] or chain)[0]
    return f"{number}.{started}"


def meeting_path(environ: Environ, job: str) -> str:
    """A unix path in this user's private directory.  (The listener checks that it is private.)

    XDG_RUNTIME_DIR, where it is the user's own, beats TMPDIR: nobody else can have made a directory in there before.
    What cannot be written is passed over, by all ranks of the host alike.
    """
    name = f"hocket-{os.geteuid()}/{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    bases = [*([runtime] if is_private(runtime) else []), *temporary(environ)]
    paths = [os.path.join(base, name) for base in bases]
    paths = [path for path in paths if len(os.fsencode(path)) <= PATH_LIMIT]
    return next((path for path in paths if _can_be_made(os.path.dirname(path))), paths[0])


def _can_be_made(folder: str) -> bool:
    """Is it there, or can it be made?  (Whose it is shows later, and is told then.)"""
    base = os.path.dirname(folder)
    try:
        if os.statvfs(base).f_flag & os.ST_RDONLY:
            return False
    except OSError:
        return False
    return os.path.lexists(folder) or os.access(base, os.W_OK | os.X_OK, effective_ids=True)


def _hosts(environ: Environ, claims: list[LauncherClaim]) -> list[str]:
    """Where rank 0 is looked for, the likeliest first.  On rank 0 of Slurm's step: its own node."""
    me = claims[0]
    if environ.get("MASTER_ADDR"):
        return [environ["MASTER_ADDR"]]
    if any(claim.by.name == "Slurm" for claim in claims):
        nodes = names(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
        own = environ.get("SLURMD_NODENAME", "")
        if me.rank == 0 and own in nodes:
            return [own]
        # The list is sorted, so it may begin with another node (srun -w n3 a : -w n1 b, --distribution=arbitrary).
        likely = names(environ.get("SLURM_JOB_NODELIST_HET_GROUP_0", ""))[:1]
        if nodes:
            return list(dict.fromkeys([*(name for name in likely if name in nodes), *nodes]))
    raise ArgumentError(
        f"rank {me.rank} of {me.size} from {me.by.name}{me.named}: the ranks are not known to be on one machine, and "
        "rank 0's is not known: set MASTER_ADDR to its name on every rank, or call init(address='tcp:host:port')"
    )


def own_address(peer: str | None = None) -> str:
    """The address from which this host reaches `peer`, a name or an address; else loopback.

    None: from which it reaches MASTER_ADDR; without MASTER_ADDR, the address of its own name.
    """
    return local_end(peer or os.environ.get("MASTER_ADDR") or socket.gethostname()) or loopback()


def _ports(environ: Environ, config: Config, me: LauncherClaim, job: str) -> list[int]:
    if config.ports is not None:
        return list(config.ports)
    if environ.get("MASTER_PORT"):
        # torchrun's own store listens on MASTER_PORT; elsewhere it is free, or torch's, and then the next one is taken.
        first = integer(environ, "MASTER_PORT") + (me.by.name == "torchrun")
    else:
        # Below the ports that systems give to outgoing connections.
        first = 20000 + int(hashlib.sha256(job.encode()).hexdigest(), 16) % 10000
    return [port for port in range(first, first + CANDIDATES) if port < 65536]


def _no_secret(me: LauncherClaim, where: str, auth: str) -> bytes:
    if auth == "none":
        if me.rank == 0:
            log.warning("hocket: auth='none': whoever reaches %s can join this job", where)
        return OPEN_KEY
    raise ArgumentError(
        f"rank {me.rank} of {me.size} from {me.by.name}{me.named}: the ranks meet over TCP ({where}), so they need a "
        f"secret: set HOCKET_SECRET to the same on every rank, made by {MAKE_ONE}, or HOCKET_SECRET_FILE (mode 0600), "
        'or call init(auth="none") if everybody on this network may join'
    )


def parse_address(text: str, least: int = 1) -> Meeting:
    """unix:/path, tcp:host:port or tcp:host:first-last; an IPv6 host stands in [ ].  `least`: the lowest port."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return ("unix", rest)
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d+)(?:-(\d+))?", rest)
    if kind == "tcp" and match:
        first, last = int(match[3]), int(match[4] or match[3])
        if least <= first <= last < 65536:
            return ("tcp", match[1] or match[2], list(range(first, last + 1)))
    raise ArgumentError(f"the address is {text!r}; accepted: unix:/path, tcp:host:port, tcp:host:first-last")


def addresses_of(text: str, least: int = 1) -> list[Address]:
    """All addresses of a text: unix:/path, tcp:host:port, tcp:host:first-last."""
    meeting = parse_address(text.strip(), least)
    if meeting[0] == "unix":
        return [("unix", str(meeting[1]))]
    ports = meeting[2]  # type: ignore[misc]
    return [("tcp", str(meeting[1]), port) for port in ([ports] if isinstance(ports, int) else ports)]


def show_meeting(meeting: Meeting) -> str:
    """The address as parse_address reads it."""
    if meeting[0] == "unix":
        return f"unix:{meeting[1]}"
    ports = meeting[2]  # type: ignore[misc]
    ports = [ports] if isinstance(ports, int) else ports
    return show(("tcp", meeting[1], ports[0])) + (f"-{ports[-1]}" if len(ports) > 1 else "")
