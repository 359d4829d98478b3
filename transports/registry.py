"""The transports there are, best first, and why one is absent.  Data, and the entry points of other packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from hocket.system.packages import declared

BUILT_IN = {
    "shm": "hocket.transports.shm.transport:ShmTransport",
    "verbs": "hocket.transports.verbs.transport:VerbsTransport",
    "tcp": "hocket.transports.tcp.transport:TcpTransport",
    "mpi": "hocket.transports.mpi.transport:MpiTransport",
}
"""In order of preference.  Loaded by name, so that an unused one costs nothing.

cuda_ipc and pinned are no choice of a job's: the GPUs of a host use them where they can (collectives/gpu/context.py).
"""

GROUP = "hocket.transports"
"""The group of entry points."""

Loader = Callable[[], Any]


def known() -> dict[str, Loader]:
    """Name -> how to load its class; built in first, then what other packages declare."""
    loaders: dict[str, Loader] = {name: partial(_load, path) for name, path in BUILT_IN.items()}
    for entry in declared(GROUP):
        loaders.setdefault(entry.name, entry.load)
    return loaders


def load(names: list[str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The classes that can work here, and for each other one the reason."""
    present: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, loader in known().items():
        if names is not None and name not in names:
            continue
        kind = find(loader)
        if isinstance(kind, str):
            absent[name] = kind
        else:
            present[name] = kind
    return present, absent


def find(loader: Loader) -> Any:
    """The class, or the reason why it cannot work here."""
    try:
        kind = loader()
    except Exception as error:  # someone else's package: its failure to load is a reason, not our crash
        return f"cannot be loaded: {error}"
    return kind.available() or kind


def _load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
