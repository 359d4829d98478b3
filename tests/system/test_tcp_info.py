"""The kernel's numbers about a connection whose descriptor may be somebody else's by now."""

from __future__ import annotations

import os
import socket

import pytest

from hocket.system.machine import TCP_INFO, tcp_info


def test_numbers_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as link:
        info = tcp_info(link.fileno())
        assert info.keys() == TCP_INFO.keys() and 0 < info["min_rtt"] <= 8 * info["rtt"] < 10**7, info
        assert link.fileno() >= 0, "it is still open"


@pytest.mark.parametrize("info", [b"", b"\1\0\0\0"])
def test_a_system_that_tells_little(info: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU's user mode gives four bytes; a link that breaks there is mended as elsewhere."""
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *which: info)
    with socket.socket() as link:
        assert tcp_info(link.fileno()) == ({"retransmits": 0, "probes": 0} if info else {})


def test_what_is_no_connection_has_none_and_leaves_no_descriptor() -> None:
    fd = os.memfd_create("reused", os.MFD_CLOEXEC)
    try:
        before = set(os.listdir("/proc/self/fd"))
        assert tcp_info(fd) == {} and set(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(fd)
    assert tcp_info(fd) == {}
