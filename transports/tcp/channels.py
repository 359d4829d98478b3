"""The streams of one communicator."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.transports.dialled import DialledChannels
from hocket.transports.tcp.long.groups import StreamGroup
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.tls_channels import TlsStreams

if TYPE_CHECKING:
    from hocket.transports.tcp.transport import TcpTransport

Streams = SocketStreams | TlsStreams | StreamGroup


class Held:
    """The streams of one communicator, which the transport holds until they are closed.

    A collection closes the sockets that it finds before anybody else looks at them, and others get their numbers: a
    stream that is closed behind that tells those how many bytes it has.  So the transport keeps a dropped
    communicator's streams from the collection, and its reactor closes them.
    """

    def __init__(self, transport: TcpTransport, name: str, members: Sequence[int]) -> None:
        self.name, self.members = name, members
        self.streams: list[Streams] = []
        self.opened: set[int] = set()
        """Members, by world rank."""
        self._transport = transport
        transport.held.add(self)

    def close(self) -> None:
        """Close them; what was sent still arrives, as the system delivers it.  May come twice."""
        self._transport.forget(self)
        for streams in self.streams:  # which stay: an engine may still know them
            streams.close()
        self._transport.held.discard(self)


class TcpChannels(DialledChannels):
    """The streams of one communicator."""

    priority = 0
    """The priority of the communicator's lane."""

    def __init__(self, transport: TcpTransport, name: str, members: Sequence[int]) -> None:
        super().__init__(name, members)
        self.transport = transport
        self.held = Held(transport, name, members)
        # A collection may begin where any lock is held: `soon` takes none.  In a forked child it does nothing.
        self._dropped = weakref.finalize(self, transport.context.reactor.soon, self.held.close)
        self._dropped.atexit = False

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        streams = self.transport.open(self.members[peer], self.name, self.look, self.priority)
        self.held.opened.add(self.members[peer])
        self.held.streams.append(streams)
        return streams.send, streams.recv

    def unopened(self) -> list[int]:
        """Members whose streams have come, and that this rank has opened none to."""
        return self.transport.arrived(self)

    def close(self) -> None:
        self._dropped.detach()
        self.held.close()
