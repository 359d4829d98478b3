"""The kernel's numbers about a connection whose descriptor may be somebody else's by now."""

from __future__ import annotations

import os
import socket

import pytest

from hocket.system.machine import tcp_info


def test_numbers_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as link:
        info = tcp_info(link.fileno(), 104)
        assert len(info) == 104 and info[0] == 1, "ESTABLISHED"
        assert link.fileno() >= 0, "it is still open"


def test_a_number_that_is_a_files_by_now_leaves_no_descriptor() -> None:
    fd = os.memfd_create("reused", os.MFD_CLOEXEC)
    try:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Socket operation on non-socket"):
            tcp_info(fd, 104)
        assert set(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        tcp_info(fd, 104)
