"""Cables with a rate and a delay: what the switch does with frames, without I/O; then real hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.errors import ArgumentError
from hocket.system.namespaces import cables as module
from hocket.system.namespaces.cables import ACK, Ports, cables
from hocket.system.namespaces.hosts import PREFIX, ip, refusal

WHY_NOT = refusal()
HOSTS = [bytes([2, 0, 0, 0, 0, i]) for i in range(3)]


def frame(source: int, target: int | None, nbytes: int = 1000) -> bytes:
    """target: None: to all."""
    to = b"\xff" * 6 if target is None else HOSTS[target]
    return (to + HOSTS[source]).ljust(nbytes, b"\0")


def came(ports: Ports) -> list[tuple[float, int]]:
    """When what is under way is there, and where."""
    found = []
    while ports.next is not None:
        at = ports.next
        found += [(round(at, 6), target) for target, _ in ports.due(at)]
    return found


@pytest.fixture
def ports() -> Ports:
    """1,000 bytes a second, 5 s; all hosts are known."""
    made = Ports(3, 1000.0, 5.0)
    for host in range(3):
        made.take(-100.0, host, frame(host, None, 12))
    came(made)
    return made


def test_a_frame_takes_the_delay_and_its_bytes(ports: Ports) -> None:
    ports.take(0.0, 0, frame(0, 1))
    assert came(ports) == [(6.0, 1)]


def test_a_host_sends_one_frame_after_the_other(ports: Ports) -> None:
    ports.take(0.0, 0, frame(0, 1))
    ports.take(0.0, 0, frame(0, 2))
    assert came(ports) == [(6.0, 1), (7.0, 2)]


def test_what_goes_to_one_host_shares_its_port(ports: Ports) -> None:
    ports.take(0.0, 1, frame(1, 0))
    ports.take(0.5, 2, frame(2, 0))
    ports.take(0.5, 0, frame(0, 1))  # each way has a rate of its own
    assert came(ports) == [(6.0, 0), (6.5, 1), (7.0, 0)]


def test_frames_that_wait_for_their_own_port_leave_the_target_free(ports: Ports) -> None:
    ports.take(0.0, 1, frame(1, 2, 5000))
    ports.take(0.0, 1, frame(1, 0))
    ports.take(0.0, 2, frame(2, 0))
    assert came(ports) == [(6.0, 0), (10.0, 2), (11.0, 0)]


def test_all_get_what_is_for_all_or_for_an_unknown_host(ports: Ports) -> None:
    ports.take(0.0, 0, frame(0, None))
    ports.take(10.0, 0, b"\2\0\0\0\0\7" + frame(0, 1)[6:])
    assert came(ports) == [(6.0, 1), (6.0, 2), (16.0, 1), (16.0, 2)]


def segment(source: int, target: int, flags: int, data: int) -> bytes:
    """A segment of TCP: 20 bytes of IPv4, and 32 with a time stamp."""
    ip = bytes([0x45, 0, 0, 52 + data, 0, 0, 0x40, 0, 64, 6]) + bytes(10)
    tcp = bytes(12) + bytes([0x80, flags]) + bytes(18 + data)
    return HOSTS[target] + HOSTS[source] + b"\x08\x00" + ip + tcp


def test_an_acknowledgement_passes_what_waits(ports: Ports) -> None:
    ports.take(0.0, 0, frame(0, 1))
    ports.take(0.0, 0, segment(0, 1, ACK, 0))
    assert came(ports) == [(5.0, 1), (6.0, 1)]


@pytest.mark.parametrize(("flags", "data"), [(ACK, 1), (ACK | 1, 0), (ACK | 2, 0)], ids=["data", "fin", "syn"])
def test_other_segments_wait(ports: Ports, flags: int, data: int) -> None:
    ports.take(0.0, 0, frame(0, 1))
    ports.take(0.0, 0, segment(0, 1, flags, data))
    assert came(ports) == [(6.0, 1), (round(6.0 + (66 + data) / 1000, 6), 1)]


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_ping_takes_the_delay_both_ways() -> None:
    with cables(2, 1e6, 0.03) as names:
        asks, answers = (
            ["ip", "netns", "exec", name, sys.executable, "-c", program]
            for name, program in zip(names, (ASKER, ANSWERER), strict=True)
        )
        with subprocess.Popen(answers, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
            said = subprocess.run(asks, capture_output=True, check=True).stdout
    small, large = map(float, said.split())
    assert small >= 0.06
    assert large >= 0.06 + 0.2, "200 kB one way, at 1 MB/s"


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_system_without_tun_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TUN", str(tmp_path / "tun"))
    before = ip("netns", "list").split()
    with pytest.raises(ArgumentError, match="cables need .*/tun: No such file or directory"), cables(2, 1e6, 0.0):
        pass
    own = f"{PREFIX}{os.getpid()}"
    assert not [name for name in ip("netns", "list").split() if name.startswith(own) and name not in before]


ANSWERER = """if True:
    import socket
    with socket.create_server(("10.79.0.2", 4000)) as listener:
        print("ready", flush=True)
        with listener.accept()[0] as link:
            for nbytes in (1, 200_000):
                link.recv(nbytes, socket.MSG_WAITALL)
                link.sendall(b"x")
"""
ASKER = """if True:
    import socket, time
    with socket.create_connection(("10.79.0.2", 4000)) as link:
        for nbytes in (1, 200_000):
            began = time.monotonic()
            link.sendall(bytes(nbytes))
            link.recv(1)
            print(time.monotonic() - began)
"""
