"""The environment's settings, read in one place, once.

Every variable that users set is a line of VARIABLES (which `hocket doctor` prints).  A bad value is an ArgumentError
that names the variable, the value and what is accepted.  Knows nothing of launchers (launchers.py reads theirs).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import logging
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from hocket.arguments import LONGEST, choices, kind
from hocket.control import secret
from hocket.errors import ArgumentError

log = logging.getLogger("hocket")
LINK = "20"  # the scope of IPv6 addresses that are valid on their own link only
SHORTEST = 2.0
"""Seconds: a lossy network is silent for longer than one, now and then."""
LEVELS = ("warning", "info", "debug")


@dataclasses.dataclass(frozen=True)
class Variable:
    """One environment variable; `parse` raises ValueError for what `accepted` does not describe."""

    name: str
    parse: Callable[[str], Any]
    accepted: str
    default: str
    description: str


def _words(text: str) -> str:
    if not re.fullmatch(r"[\w=:.+-]+(,[\w=:.+-]+)*", text):
        raise ValueError
    return text


def _seconds(text: str) -> float:
    value = float("inf" if text.lower() == "none" else text)
    if not value > 0:
        raise ValueError
    return min(value, LONGEST)


def _lasting(text: str) -> float:
    if (value := _seconds(text)) < SHORTEST:
        raise ValueError
    return value


def _streams(text: str) -> int:
    if not 0 <= (value := _count(text)) <= 16:
        raise ValueError
    return value


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", text):
        raise ValueError
    return text


def _check(text: str) -> str:
    if text not in ("payload", "payload,shm"):
        raise ValueError
    return text


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text, re.IGNORECASE)
    if not match or (value := int(match[1]) << 10 * " KMG".index(match[2].upper() or " ")) < 4096:
        raise ValueError
    return value


def _level(text: str) -> str:
    if text.lower() not in LEVELS:
        raise ValueError
    return text.lower()


def _tuning(text: str) -> str:
    if text not in ("auto", "off", "measure") and os.sep not in text:
        raise ValueError
    return text


def _ports(text: str) -> range:
    first, dash, last = text.partition("-")
    ports = range(int(first), int(last if dash else first) + 1)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise ValueError
    return ports


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _readable(path: str) -> str:
    try:
        with open(path, "rb"):
            return path
    except OSError as why:
        raise ValueError(f"cannot be opened ({why.strerror})") from None


def _rdma(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+(:[1-9]\d*(:\d+)?)?", text):
        raise ValueError
    return text


def _gpu(text: str) -> str:
    if text not in ("auto", "on", "off"):
        raise ValueError
    return text


def _gpu_sync(text: str) -> str:
    if text not in ("auto", "words", "events"):
        raise ValueError
    return text


def interface_address(name: str) -> str:
    """The address to listen on for HOCKET_IFACE: an IP address as it is, or an interface's: IPv4, if it has one."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, 0x8915, struct.pack("256s", os.fsencode(name)[:15]))  # SIOCGIFADDR
        except OSError:
            if six := _ipv6_address(name):
                return six
            known = [each for _, each in socket.if_nameindex()]
            what = "has no address" if name in known else "is not an interface of this machine"
            raise ValueError(f"{what}; its interfaces: {', '.join(known)}") from None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_address(name: str) -> str:
    """The IPv6 address of an interface, rather one that is known beyond its link; "": it has none."""
    lines: list[list[str]] = []
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        lines = [line.split() for line in file]
    for _, scope, digits in sorted((line[3] == LINK, line[3], line[0]) for line in lines if line[5] == name):
        address = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
        return f"{address}%{name}" if scope == LINK else address
    return ""


VARIABLES = (
    Variable("HOCKET_TRANSPORT", _words, "names, with commas between", "", "transports to use, best first"),
    Variable("HOCKET_ALGORITHM", _words, "a name, or collective=name with commas between", "", "algorithm to use"),
    Variable("HOCKET_TUNING", _tuning, "auto, off, measure, or a file's path with a / in it", "auto",
             "how algorithms are chosen: by what `hocket tune` measured, the built-in table, or a second at the start"),
    Variable("HOCKET_SHARED_ARRAYS", _bytes, "bytes, from 4K on, as 64K or 1M; nothing: off", "",
             "NumPy's arrays from so many bytes on lie in memory that ranks of the host share (hocket.shared_arrays)"),
    Variable("HOCKET_TIMEOUT", _seconds, "seconds, more than 0; inf or none: no limit", "300",
             "how long a call may wait for other ranks"),
    Variable("HOCKET_LOST_AFTER", _lasting, f"seconds, from {SHORTEST:g}; inf or none: no limit", "5",
             "how long another host may be silent until its ranks are lost; the same on every rank"),
    Variable("HOCKET_ABSENT_AFTER", _seconds, "seconds, more than 0; inf or none: HOCKET_TIMEOUT alone counts", "60",
             "how long a process outside JAX may hold up a group of JAX's own collectives (docs/jax.md)"),
    Variable("HOCKET_CHECK", _check, "payload; payload,shm; or nothing", "",
             "check all bytes that travel over TCP: what is damaged on its way is sent again; with shm those of "
             "messages through shared memory, too: an error; the same on every rank"),
    Variable("HOCKET_CONGESTION", _word, "auto, system, or a name of net.ipv4.tcp_available_congestion_control", "auto",
             "congestion control of TCP between hosts; auto: bbr, where a round trip is long and the system allows it"),
    Variable("HOCKET_STREAMS", _streams, "a number up to 16; 0: as many as pay, found while calls run", "0",
             "TCP connections that carry the long messages from a rank to one on another host"),
    Variable("HOCKET_PATHS", _words, "interfaces' names or addresses, with commas between, on all hosts in one order",
             "", "interfaces whose cables TCP uses side by side; the first is HOCKET_IFACE's, if that is not set"),
    Variable("HOCKET_LOG", _level, "warning, info or debug", "warning", "how much is logged"),
    Variable("HOCKET_SECRET", secret.read_text, "at least 16 bytes that are not easily guessed", "",
             "the job's secret, the same on every rank"),
    Variable("HOCKET_SECRET_FILE", secret.read_file,
             "a file of your own with mode 0600, not a link, or one of a read-only volume of root's; at least 16 bytes",
             "", "file that holds the job's secret"),
    Variable("HOCKET_ELASTIC", _switch, "0 or 1", "0",
             "the job outlives its ranks, by comm.renew(); the same on every rank (docs/survive.md)"),
    Variable("HOCKET_JOIN", str, "addresses, with commas between, folder:/path, or auto", "",
             "join an elastic job that runs: addresses of some of its ranks (comm.door), or the folder where they note "
             "these; auto: join if ranks have noted one in HOCKET_LOBBY"),
    Variable("HOCKET_MOST", _count, "a number; 0: no limit", "0", "members that an elastic job has room for"),
    Variable("HOCKET_ENCRYPT", _switch, "0 or 1", "0",
             "encrypt what leaves the host; the same on every rank (docs/encryption.md)"),
    Variable("HOCKET_TLS_CERT", _readable, "a PEM file", "",
             "this process's certificate: ranks show certificates of one CA (and encrypt); with the two below"),
    Variable("HOCKET_TLS_KEY", _readable, "a PEM file", "", "the certificate's key, without a passphrase"),
    Variable("HOCKET_TLS_CA", _readable, "a PEM file", "", "the CA (or several) that all ranks' certificates are of"),
    Variable("HOCKET_PLAIN", _words, "names of transports, with commas between", "",
             "transports that may leave the host without encryption all the same, as their network is encrypted"),
    Variable("HOCKET_IFACE", interface_address, "an interface's name (eth0) or address",
             "", "interface that TCP listens on"),
    Variable("HOCKET_PORTS", _ports, "a range like 40000-40050", "", "ports that TCP listens on, for firewalls"),
    Variable("HOCKET_RDMA", _rdma, "device, device:port or device:port:GID index", "",
             "RDMA port to use, instead of the first that is active"),
    Variable("HOCKET_OBJECTS", _switch, "0 or 1", "1",
             "whether calls on Python objects are allowed: who unpickles runs what the sender wrote"),
    Variable("HOCKET_RECORDER", _switch, "0 or 1", "1",
             "whether what calls did last is kept in memory, for errors, `hocket top` and debugging"),
    Variable("HOCKET_TRACE", str, "a folder's path; it is made if need be", "",
             "record everything: calls, steps, messages, kernels, in a file of each process there"),
    Variable("HOCKET_GPU", _gpu, "auto, on or off", "auto",
             "whether this rank may have arrays on a GPU; if not, other ranks' go through host memory"),
    Variable("HOCKET_GPU_SYNC", _gpu_sync, "auto, words or events", "auto",
             "how GPUs of ranks meet. auto: in kernels, else by words in memory, else by events, as far as trials "
             "prove; words: not in kernels; events: only by events"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of this process.  `secret`: the key made of it (secret.key), never shown."""

    transport: str | None = None
    algorithm: str | None = None
    tuning: str = "auto"
    timeout: float = 300.0
    log: str = "warning"
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    iface: str | None = None  # the address that HOCKET_IFACE stands for
    ports: range | None = None
    rdma: str = ""
    objects: bool = True
    recorder: bool = True
    trace: str = ""
    gpu: str = "auto"
    gpu_sync: str = "auto"
    encrypt: bool = False
    elastic: bool = False
    join: str = ""
    most: int = 0
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    plain: str = ""
    """Transports that need not encrypt, with commas between."""
    lost_after: float = 5.0
    absent_after: float = 60.0
    check: str = ""
    shared_arrays: int = 0
    """0: off."""
    congestion: str = "auto"
    streams: int = 0
    paths: tuple[str, ...] = ()
    """Addresses of further interfaces; "" for one that this host has not got."""

    @classmethod
    def from_env(cls, environ: MutableMapping[str, str] | None = None) -> Config:
        """Read VARIABLES (empty means unset).

        Removes HOCKET_SECRET, so that this process's children and /proc lack it.
        """
        env = os.environ if environ is None else environ
        _warn_of_unknown(env)
        values = {each.name: _value(each, env[each.name]) for each in VARIABLES if env.get(each.name)}
        if env.pop("HOCKET_SECRET", None) and env is os.environ:
            secret.forget("HOCKET_SECRET")
        given = values.pop("HOCKET_SECRET", None)
        from_file = values.pop("HOCKET_SECRET_FILE", None)
        settings = {name.removeprefix("HOCKET_").lower(): value for name, value in values.items()}
        _agree_on_certificates(settings)
        _find_paths(settings)
        return cls(secret=given or from_file, **settings)


def given(settings: Config, phrase: str | bytes | None, iface: str | None, encrypt: bool | None) -> Config:
    """The settings of one `init`: what it was given (the job's secret is `phrase`) comes before the environment's."""
    changes: dict[str, Any] = {} if encrypt is None else {"encrypt": bool(encrypt)}
    if phrase is not None:
        if not isinstance(phrase, (str, bytes)):
            raise ArgumentError(f"init(secret=): {kind(phrase)} is not a secret; accepted: a string or bytes")
        try:
            changes["secret"] = secret.read_text(phrase)
        except ValueError as why:
            raise ArgumentError(f"init(secret=): it {why}") from None
    if iface is not None:
        try:
            changes["iface"] = interface_address(iface)
        except ValueError as why:
            raise ArgumentError(f"init(iface=): {iface!r} {why}; accepted: an interface's name or address") from None
    return dataclasses.replace(settings, **changes) if changes else settings


def _agree_on_certificates(settings: dict[str, Any]) -> None:
    """All three files or none; they turn encryption on."""
    names = ("tls_cert", "tls_key", "tls_ca")
    lacking = [f"HOCKET_{name.upper()}" for name in names if name not in settings]
    if len(lacking) == len(names):
        return
    if lacking:
        unset = ", ".join(lacking)
        raise ArgumentError(f"HOCKET_TLS_CERT, HOCKET_TLS_KEY and HOCKET_TLS_CA go together; not set: {unset}")
    if not settings.setdefault("encrypt", True):
        raise ArgumentError("HOCKET_TLS_CERT is set and HOCKET_ENCRYPT is 0: unset one of them")


def _find_paths(settings: dict[str, Any]) -> None:
    """The interfaces of HOCKET_PATHS: the first is the job's, if HOCKET_IFACE names no other.

    One that is not there is not used.
    """
    found = []
    for name in settings.pop("paths", "").split(",") if settings.get("paths") else ():
        try:
            found.append(interface_address(name))
        except ValueError as why:
            log.warning("HOCKET_PATHS: %r %s; the job goes on without it", name, why)
            found.append("")
    if found and found[0]:
        settings.setdefault("iface", found[0])
    if found:
        own = settings.get("iface")
        further = found[1:] if found[0] in ("", own) else found
        settings["paths"] = tuple("" if each == own else each for each in further)


PLACE = ("HOCKET_LOBBY", "HOCKET_RANK", "HOCKET_SIZE", "HOCKET_LOCAL_RANK", "HOCKET_LOCAL_SIZE", "HOCKET_RENDEZVOUS",
         "HOCKET_LAST_WORDS", "HOCKET_RECORDER_FD", "HOCKET_PYTHON")  # fmt: skip
"""`hocket run` leaves these for its ranks: launchers.py, last_words.py, memory.py and c_programs.h read them."""
ELSEWHERE = ("HOCKET_FUSION_THRESHOLD", "HOCKET_CFLAGS")
"""Other files read these: by frameworks/horovod/settings.py; by setup.py."""


def _warn_of_unknown(environ: Iterable[str]) -> None:
    known = [*(each.name for each in VARIABLES), *PLACE, *ELSEWHERE]
    for name in sorted(environ):
        if name.startswith("HOCKET_") and name not in known:
            log.warning("the environment has %s, which hocket does not know; %s", name, choices(name, known))


def _value(variable: Variable, text: str) -> Any:
    try:
        return variable.parse(text)
    except ValueError as why:
        if variable.name == "HOCKET_SECRET":  # which is not shown
            raise ArgumentError(f"HOCKET_SECRET {why}; accepted: {variable.accepted}") from None
        # Python's own complaints about numbers add nothing.
        detail = f", which {why}" if variable.parse in (secret.read_file, interface_address, _readable) else ""
        raise ArgumentError(f"{variable.name} is {text!r}{detail}; accepted: {variable.accepted}") from None
