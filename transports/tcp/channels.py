"""The streams of one communicator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.transports.dialled import DialledChannels
from hocket.transports.tcp.long.groups import StreamGroup
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.tls_channels import TlsStreams

if TYPE_CHECKING:
    from hocket.transports.tcp.transport import TcpTransport

Streams = SocketStreams | TlsStreams | StreamGroup


class TcpChannels(DialledChannels):
    """The streams of one communicator."""

    priority = 0
    """The priority of the communicator's lane."""

    def __init__(self, transport: TcpTransport, name: str, members: Sequence[int]) -> None:
        super().__init__(transport, name, members)
        self.transport = transport
        self.streams: list[Streams] = []
        self.opened: set[int] = set()
        """Members, by world rank."""

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        streams = self.transport.open(self.members[peer], self.name, self.look, self.priority)
        self.opened.add(self.members[peer])
        self.streams.append(streams)
        return streams.send, streams.recv

    def unopened(self) -> list[int]:
        """Members whose streams have come, and that this rank has opened none to."""
        return self.transport.arrived(self)

    def close(self) -> None:
        self.transport.forget(self)
        for streams in self.streams:  # which stay: an engine may still know them
            streams.close()
        super().close()

    def __del__(self) -> None:
        """Close a communicator that was dropped: what was sent still arrives, as the system delivers it."""
        if hasattr(self, "opened"):
            self.close()
