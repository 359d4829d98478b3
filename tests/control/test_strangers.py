"""A listener's strangers disturb nobody and cost nothing for long."""

import contextlib
import os
import resource
import socket
import threading
import time

import pytest

from hocket.control import listener
from hocket.control.dial import connect
from hocket.control.handshake import AuthError, ClientSide, where
from hocket.control.listener import ANSWERS, HALF_OPEN
from support.faulty import wait_for
from support.hello import KEY, hello
from support.leftovers import descriptors


def junk(address):
    for words in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4096), b"hocket", b""):
        sock = socket.create_connection(address[1:])
        sock.sendall(words)
        sock.close()


@pytest.fixture
def patient(monkeypatch):
    """A busy machine may take longer than a handshake may."""
    monkeypatch.setattr(listener, "ATTEMPT", 60.0)


def test_junk_is_closed_and_a_member_gets_in(tcp, got, caplog):
    begun = time.monotonic()
    connect(tcp.address, KEY, hello(0), 5).close()
    wait_for(lambda: len(got) == 1)
    before = descriptors()
    for _ in range(25):
        junk(tcp.address)
    connect(tcp.address, KEY, hello(9), 5).close()
    wait_for(lambda: len(got) == 2)
    assert got[1][1].rank == 9
    got.pop()[0].close()
    wait_for(lambda: descriptors() <= before)
    seconds = time.monotonic() - begun  # one line in each, of the 100
    assert 1 <= sum("closed a connection" in record.message for record in caplog.records) <= 3 + min(seconds, 60)


def test_idle_connections_are_limited_and_expire(patient, tcp, got, monkeypatch):
    before = descriptors()
    idle = [socket.create_connection(tcp.address[1:]) for _ in range(200)]
    wait_for(lambda: len(tcp._silent) == HALF_OPEN)
    assert len(descriptors() - before) <= 200 + HALF_OPEN + 1  # one may be on its way in, and an older one not yet out
    connect(tcp.address, KEY, hello(), 5).close()  # none of them is too old so far
    monkeypatch.setattr(listener, "ATTEMPT", 0.0)
    wait_for(lambda: not tcp._silent)
    for sock in idle:
        sock.settimeout(30)
        assert sock.recv(1) == b""
        sock.close()


def greeting(tcp):
    """A connection that has said its hello and no more."""
    sock = socket.create_connection(tcp.address[1:])
    client = ClientSide(KEY, hello(), where(sock.getpeername()))
    sock.sendall(client.start)
    return sock, client


def test_many_ranks_at_once_are_no_strangers(patient, reactor, tcp, got, caplog):
    """More than may be half open, while the reactor is busy: all get in, and nothing is logged."""
    all_here = threading.Event()
    reactor.soon(lambda: all_here.wait(60))
    clients = [greeting(tcp) for _ in range(2 * HALF_OPEN + 50)]
    all_here.set()
    for sock, client in clients:
        sock.sendall(client.feed(sock.recv(client.missing)))
        sock.close()
    wait_for(lambda: len(got) == len(clients))
    assert not caplog.records


def test_who_has_said_a_hello_gives_way_to_no_stranger(patient, tcp, got):
    sock, client = greeting(tcp)
    answer = sock.recv(client.missing)
    idle = [socket.create_connection(tcp.address[1:]) for _ in range(3 * HALF_OPEN)]
    wait_for(lambda: len(tcp._silent) == HALF_OPEN)
    sock.sendall(client.feed(answer))
    wait_for(lambda: got)
    for each in [sock, *idle]:
        each.close()


def test_a_hello_that_was_overheard_takes_no_second_place(patient, tcp, got):
    sock, client = greeting(tcp)
    answer = sock.recv(client.missing)
    for _ in range(20):
        with socket.create_connection(tcp.address[1:]) as again:
            again.settimeout(30)
            again.sendall(client.start)
            assert again.recv(1) == b""
    assert len(tcp._proving) == 1
    sock.sendall(client.feed(answer))
    wait_for(lambda: got)
    sock.close()


def test_refusals_are_told_but_not_to_a_flood(tcp):
    """A rank with another secret learns it; thousands of strangers cost no answer each."""
    told = 0
    for _ in range(3 * ANSWERS):
        with socket.create_connection(tcp.address[1:]) as sock:
            sock.sendall(ClientSide(b"x" * 32, hello(), where(sock.getpeername())).start)
            with contextlib.suppress(ConnectionResetError):
                told += bool(sock.recv(64))
    assert told >= ANSWERS
    wait_for(lambda: tcp._answers == ANSWERS)
    with pytest.raises(AuthError, match="HOCKET_SECRET differs"):
        connect(tcp.address, b"x" * 32, hello(), 5)


def test_slow_loris_is_cut_when_its_time_is_over(tcp, monkeypatch, caplog):
    """However often it says a byte."""
    monkeypatch.setattr(listener, "ATTEMPT", 0.4)
    with socket.create_connection(tcp.address[1:]) as sock, pytest.raises(OSError):
        for _ in range(1000):
            sock.sendall(b"h")
            time.sleep(0.05)
    assert "no proof within 0.4 s" in caplog.text


def test_out_of_descriptors_neither_spins_nor_stops(tcp, got):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        client.connect(tcp.address[1:])
        before = time.process_time()
        time.sleep(0.3)
        used = time.process_time() - before
        assert used < 0.1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
    connect(tcp.address, KEY, hello(), 5).close()
    wait_for(lambda: got)
