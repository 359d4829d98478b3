"""A rank's facts about itself, as JSON: versions, processor, variables, limits, interfaces."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy

import hocket
from hocket.collectives.base.config import PLACE, VARIABLES
from hocket.kernels.cpu.reduce import features
from hocket.system.cores import processor, usable_cores
from hocket.system.machine import boot_id
from hocket.transports.tcp.long import congestion

Facts = dict[str, Any]
ADDRESS, MTU = 0x8915, 0x8921
"""The requests SIOCGIFADDR and SIOCGIFMTU."""


def collect(environ: Mapping[str, str]) -> Facts:
    """`what` maps each thing that should be the same on all ranks to its value here.

    Call it before `hocket.init`, which removes HOCKET_SECRET from the environment.
    """
    return {
        "node": platform.node(), "kernel": boot_id(), "cores": sorted(os.sched_getaffinity(0)),
        "usable": usable_cores(), "online": os.cpu_count() or 1, "threads": environ.get("OMP_NUM_THREADS", ""),
        "what": {**_versions(), **variables(environ), **_limits()}, "interfaces": interfaces(),
        "tcp": {"wmem": congestion.window("wmem"), "bbr": congestion.missing()},
    }  # fmt: skip


def _versions() -> dict[str, str]:
    return {
        "hocket": hocket.__version__, "Python": platform.python_version(), "NumPy": numpy.__version__,
        "kernels": features(), "CPU": processor(), "usable cores": str(usable_cores()),
    }  # fmt: skip


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """HOCKET_ variables that are set, but for those that differ from rank to rank.

    The secret's value stays here.  So does that of a name that hocket does not know: it may be a misspelt secret.
    """
    shown = {each.name for each in VARIABLES} - {"HOCKET_SECRET"}
    own = [name for name in environ if name.startswith("HOCKET_") and name not in PLACE and environ[name]]
    return {name: environ[name] if name in shown else "set (not shown)" for name in sorted(own)}


def _limits() -> dict[str, str]:
    return {
        "open files (ulimit -n)": _soft(resource.RLIMIT_NOFILE),
        "locked memory (ulimit -l), bytes": _soft(resource.RLIMIT_MEMLOCK),
        "/dev/shm, bytes": _shm(),
    }


def _soft(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _shm() -> str:
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return "absent"
    return str(there.f_blocks * there.f_frsize)


def interfaces() -> dict[str, tuple[str, int]]:
    """By IPv4 address: the interface, and its MTU in bytes."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                asked = struct.pack("256s", os.fsencode(name)[:15])
                address = socket.inet_ntoa(fcntl.ioctl(sock, ADDRESS, asked)[20:24])
                found[address] = name, struct.unpack("i", fcntl.ioctl(sock, MTU, asked)[16:20])[0]
    return found
