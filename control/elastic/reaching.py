"""A process's proof in an elastic job, and its way to the listeners of other members."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.control import encryption
from hocket.control.addresses import BindAddress
from hocket.control.dial import dial
from hocket.control.handshake import Address, Hello
from hocket.errors import TransportError

log = logging.getLogger("hocket.control")
PEER, LOBBY = "peer", "lobby"
"""Purposes of a connection: between members, or a newcomer's."""
REFUSED = errno.ECONNREFUSED, errno.ENOENT
"""Errors of a host that is there, where nobody listens."""


class NobodyListens(TransportError):
    """Nobody listens any more where it did, so the process has ended."""


class Own(NamedTuple):
    """This process's proof, and the place where it listens."""

    job: str
    key: bytes | None
    encrypt: bool
    places: Sequence[BindAddress]
    most: int = 0
    """Members that the job has room for; 0: no limit."""
    store: Any = None
    """One whose `first` grants one half of a job that it may go on."""


def reach(own: Own, address: Address, purpose: str, seconds: float) -> socket.socket:
    """A proven connection with a listener of the job.  TransportError."""
    secured = own.encrypt and address[0] == "tcp"
    sock = dial(address, own.key, Hello(0, encryption.MARK * secured + purpose, own.job), seconds)
    if not secured:
        return sock
    return encryption.secured_dial(sock, encryption.connection_key(sock.key, PEER, 0, 0), seconds)


def reach_any(own: Own, addresses: Sequence[Sequence[Any]], purpose: str, seconds: float) -> socket.socket:
    """`reach` at the first of these that answers.  NobodyListens: none does, and the host says so of each."""
    refused = 0
    for address in addresses:
        try:
            return reach(own, address_of(address), purpose, seconds)
        except TransportError as why:
            log.debug("hocket: %s", why)
            refused += why.errno in REFUSED
    text = f"no answer at {list(addresses)}"
    raise NobodyListens(text) if refused == len(addresses) else TransportError(text)


def address_of(words: Sequence[Any]) -> Address:
    """The address in JSON's form: ["unix", path] or ["tcp", host, port]."""
    return ("unix", str(words[1])) if words[0] == "unix" else ("tcp", str(words[1]), int(words[2]))
