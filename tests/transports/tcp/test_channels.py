"""A communicator that was dropped: its streams are open until the reactor closes them."""

from __future__ import annotations

import gc
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.transports.tcp.channels import TcpChannels
from hocket.transports.tcp.stream import SocketStreams


def dialled(asked: list[Any], forgotten: list[str]) -> Any:
    """The channels of a communicator named "a": what the reactor is asked to do, and which names are forgotten."""
    context = SimpleNamespace(reactor=SimpleNamespace(soon=asked.append))
    transport: Any = SimpleNamespace(context=context, held=set(), forget=lambda held: forgotten.append(held.name))
    return TcpChannels(transport, "a", [0, 1])


def test_a_collection_closes_no_stream() -> None:
    """It may begin where any lock is held, and closes in any order, though streams have last words to say."""
    asked: list[Any] = []
    forgotten: list[str] = []
    channels = dialled(asked, forgotten)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channels.held.streams.append(SocketStreams(ours))
    channels.itself, kept = channels, channels.transport.held  # garbage of a cycle, which names the socket, too
    del ours, channels
    gc.collect()
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    assert forgotten == [] and len(kept) == 1
    asked.pop()()
    assert theirs.recv(1) == b"" and forgotten == ["a"] and not asked and not kept
    theirs.close()


def test_what_was_closed_is_not_closed_again() -> None:
    asked: list[Any] = []
    forgotten: list[str] = []
    dialled(asked, forgotten).close()
    assert forgotten == ["a"] and not asked
