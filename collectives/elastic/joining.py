"""Where a newcomer finds a job, and with which key: `hocket.init(join=)`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.base.config import Config
from hocket.collectives.elastic.elastic import DOORS, Elastic
from hocket.collectives.job import last_words
from hocket.collectives.job.place import OPEN_KEY, addresses_of, own_address
from hocket.control.elastic.entering import ROUND, notice
from hocket.control.elastic.reaching import Own, address_of
from hocket.control.folder import FolderStore
from hocket.control.handshake import Address
from hocket.control.store import NOTE
from hocket.errors import ArgumentError
from hocket.system.machine import local_end, loopback

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator
    from hocket.collectives.job.start import Start


def newcomer(
    make: Callable[[Start, float, Elastic], Communicator], join: Any, info: Any, settings: Config, auth: str,
    timeout: float,
) -> Communicator:  # fmt: skip
    """The communicator of a process that joins a job."""
    way, began = _way(join, settings, auth), time.monotonic()
    if way.store is not None and way.key is None:  # the key comes with the addresses, and the job may be beginning
        while not way.addresses() and time.monotonic() < began + timeout:
            time.sleep(ROUND)
        way = way._replace(key=noted(way.store))
        timeout = max(0.0, began + timeout - time.monotonic())
    elastic = Elastic(make, settings.encrypt, store=way.store)
    try:
        elastic.open(_host(settings, way.addresses()), settings.ports, "", way.key, info)
        with last_words.seen_to_meet(os.environ):
            return elastic.join(way.addresses, info, timeout)
    except BaseException:
        elastic.close()
        raise


def notice_of(join: Any, settings: Config, auth: str, timeout: float) -> Any:
    """The notice of a job's members to those who may come (`comm.set_notice`)."""
    way = _way(join, settings, auth)
    return notice(Own("", way.key, settings.encrypt, ()), way.addresses(), timeout)


class Entrance(NamedTuple):
    """A process's way to a job."""

    addresses: Callable[[], list[Address]]
    key: bytes | None
    store: Any


def _way(join: Any, settings: Config, auth: str) -> Entrance:
    """`join`: addresses ("tcp:host:port", with commas between), a store in which the members have written theirs, or
    "folder:/path", a FolderStore.
    """
    if isinstance(join, str) and join.startswith("folder:"):
        join = FolderStore(join.removeprefix("folder:"))
    if not isinstance(join, str):
        return Entrance(lambda: written(join), settings.secret or noted(join), join)
    addresses = [address for text in join.split(",") for address in addresses_of(text)]
    return Entrance(lambda: addresses, _key(addresses, settings, auth), None)


def _key(addresses: list[Address], settings: Config, auth: str) -> bytes | None:
    if all(each[0] == "unix" for each in addresses):
        return None
    key = settings.secret or (OPEN_KEY if auth == "none" else None)
    if key is None:
        raise ArgumentError("init(join=): a TCP address needs the job's secret: set HOCKET_SECRET, or pass secret=")
    return key


def written(store: Any) -> list[Address]:
    """Where the members are, by the store; none: nobody has written it yet, or it is not understood."""
    try:
        doors = json.loads(store.get(DOORS) or "[]")
        return [address_of(each) for each in doors]
    except (ValueError, TypeError, IndexError):
        return []


def noted(store: Any) -> bytes | None:
    """The key that rank 0 has drawn, where the ranks were given no secret."""
    try:
        return bytes.fromhex(json.loads(store.get(NOTE) or "{}")["key"] or "") or None
    except (ValueError, TypeError, KeyError):
        return None


def _host(settings: Config, addresses: list[Address]) -> str:
    """This process's own address, on the way to the members."""
    if settings.iface:
        return settings.iface
    other = next((each[1] for each in addresses if each[0] == "tcp"), None)
    return (local_end(other) if other else None) or (own_address() if other else loopback())
