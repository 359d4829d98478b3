"""The listener and its reactor: strangers disturb nobody, cost nothing for long, and nothing is left behind."""

import contextlib
import logging
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time

import free
import pytest
from holding import descriptors
from worlds import in_threads

from hocket.control.dial import connect
from hocket.control.handshake import AuthError, Client, Hello, where
from hocket.control.listener import ANSWERS, HALF_OPEN, SWEEP, Listener
from hocket.control.places import private_directory
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError

KEY = b"k" * 32
EVERYWHERE = ("0.0.0.0", "0", "::", "::ffff:0.0.0.0", "::ffff:0:0", "0::0")


def until(true, seconds=5.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def reactor():
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def got():
    peers = []
    yield peers
    for sock, _ in peers:
        sock.close()


@pytest.fixture
def tcp(reactor, got):
    listener = Listener(reactor, ("tcp", "127.0.0.1", 0), KEY, lambda sock, hello: got.append((sock, hello)))
    yield listener
    listener.close()


def hello(rank=1):
    return Hello(rank, "data", "job")  # to a hub, as the listeners here are


def test_unix_path_is_private_and_removed(reactor, got, tmp_path):
    path = str(tmp_path / "private" / "hub")
    listener = Listener(reactor, ("unix", path), None, lambda sock, hello: got.append((sock, hello)))
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(os.path.dirname(path)).st_mode) == 0o700
    connect(listener.address, None, hello(), 5).close()
    until(lambda: got)
    assert got[0][1] == hello()
    listener.close()
    assert not os.path.exists(path)


def test_a_dead_jobs_path_is_replaced_a_living_ones_is_not(reactor, tmp_path):
    os.chmod(tmp_path, 0o700)
    path = str(tmp_path / "hub")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    living = Listener(reactor, ("unix", path), None, lambda sock, hello: None)
    with pytest.raises(TransportError, match="EADDRINUSE"):
        Listener(reactor, ("unix", path), None, lambda sock, hello: None)
    living.close()


def test_a_directory_that_others_can_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    private_directory(str(tmp_path / "real"))
    (tmp_path / "file").touch(mode=0o600)
    for name, mend in (("open", f"is a directory of.*mode 0755: `chmod 700 {tmp_path}/open`"),
                       ("link", "is a link of user.*: remove it, or set TMPDIR"),
                       ("file", "is a file of user.*: remove it, or set TMPDIR")):
        with pytest.raises(TransportError, match=f"0700, not a link; it {mend}"):
            private_directory(str(tmp_path / name))
    with pytest.raises(TransportError, match="nowhere/x cannot be made .*: set TMPDIR"):
        private_directory(str(tmp_path / "nowhere" / "x"))


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir(mode=0o700)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(TransportError, match=f"it is a directory of user {uid} .*: remove it, or set TMPDIR"):
        private_directory(str(tmp_path / "theirs"))


def test_an_ipv4_address_in_ipv6s_clothes_is_that_one(reactor, got):
    listener = Listener(reactor, ("tcp", "::ffff:127.0.0.1", 0), KEY, lambda *peer: got.append(peer))
    assert listener.address[1] == "127.0.0.1"
    connect(listener.address, KEY, hello(), 5).close()
    connect(("tcp", "::ffff:127.0.0.1", listener.address[2]), KEY, hello(), 5).close()
    until(lambda: len(got) == 2)
    listener.close()


def test_another_user_is_refused(reactor, tmp_path, monkeypatch, caplog):
    os.chmod(tmp_path, 0o700)
    listener = Listener(reactor, ("unix", str(tmp_path / "s")), None, lambda sock, hello: None)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(tmp_path / "s"))
        assert sock.recv(1) == b""
    assert f"refused user id {uid}" in caplog.text
    with pytest.raises(TransportError, match="served by another user"):
        connect(listener.address, None, hello(), 1)
    listener.close()


def test_what_cannot_be_bound_says_why(reactor, tmp_path):
    for address, key, error, text in [
        *((("tcp", host, 0), KEY, ArgumentError, "never all") for host in EVERYWHERE),
        (("tcp", "127.0.0.1", 0), None, ArgumentError, "HOCKET_SECRET"),
        (("tcp", "198.51.100.7", 0), KEY, TransportError, "EADDRNOTAVAIL.*HOCKET_IFACE"),
        (("unix", str(tmp_path / "d" / ("x" * 120))), None, TransportError, "107 bytes"),
    ]:
        with pytest.raises(error, match=text):
            Listener(reactor, address, key, lambda sock, hello: None)


def test_first_free_port_of_a_range(reactor):
    with socket.socket() as taken:
        first, second = free.ports(2)
        taken.bind(("127.0.0.1", first))
        taken.listen()
        listener = Listener(reactor, ("tcp", "127.0.0.1", range(first, first + 20)), KEY, lambda sock, hello: None)
        assert listener.address[2] == second
        listener.close()


def junk(address):
    for words in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4096), b"hocket", b""):
        sock = socket.create_connection(address[1:])
        sock.sendall(words)
        sock.close()


def test_junk_is_closed_and_a_member_gets_in(tcp, got, caplog):
    connect(tcp.address, KEY, hello(0), 5).close()
    until(lambda: len(got) == 1)
    before = descriptors()
    for _ in range(25):
        junk(tcp.address)
    connect(tcp.address, KEY, hello(9), 5).close()
    until(lambda: len(got) == 2)
    assert got[1][1].rank == 9
    got.pop()[0].close()
    until(lambda: descriptors() <= before)
    assert 1 <= sum("closed a connection" in record.message for record in caplog.records) <= 3


def test_idle_connections_are_limited_and_expire(tcp, got):
    before = descriptors()
    idle = [socket.create_connection(tcp.address[1:]) for _ in range(200)]
    until(lambda: len(tcp._silent) == HALF_OPEN)
    assert len(descriptors() - before) <= 200 + HALF_OPEN + 1  # one may be on its way in, and an older one not yet out
    start = time.monotonic()
    connect(tcp.address, KEY, hello(), 5).close()
    assert time.monotonic() - start < 1.8, "it waited until the idle ones were too old"
    until(lambda: not tcp._silent)
    assert time.monotonic() - start < 5
    for sock in idle:
        sock.settimeout(1)
        assert sock.recv(1) == b""
        sock.close()


def greeting(tcp):
    """A connection that has said its hello and no more."""
    sock = socket.create_connection(tcp.address[1:])
    client = Client(KEY, hello(), where(sock.getpeername()))
    sock.sendall(client.start)
    return sock, client


def test_many_ranks_at_once_are_no_strangers(reactor, tcp, got, caplog):
    """More than may be half open, while the reactor is busy: all get in, and nothing is logged."""
    reactor.soon(lambda: time.sleep(0.3))
    clients = [greeting(tcp) for _ in range(2 * HALF_OPEN + 50)]
    for sock, client in clients:
        sock.sendall(client.feed(sock.recv(client.missing)))
        sock.close()
    until(lambda: len(got) == len(clients))
    assert not caplog.records


def test_who_has_said_a_hello_gives_way_to_no_stranger(tcp, got):
    sock, client = greeting(tcp)
    answer = sock.recv(client.missing)
    idle = [socket.create_connection(tcp.address[1:]) for _ in range(3 * HALF_OPEN)]
    until(lambda: len(tcp._silent) == HALF_OPEN)
    sock.sendall(client.feed(answer))
    until(lambda: got)
    for each in [sock, *idle]:
        each.close()


def test_a_hello_that_was_overheard_takes_no_second_place(tcp, got):
    sock, client = greeting(tcp)
    answer = sock.recv(client.missing)
    for _ in range(20):
        with socket.create_connection(tcp.address[1:]) as again:
            again.settimeout(5)
            again.sendall(client.start)
            assert again.recv(1) == b""
    assert len(tcp._proving) == 1
    sock.sendall(client.feed(answer))
    until(lambda: got)
    sock.close()


def test_refusals_are_told_but_not_to_a_flood(tcp):
    """A rank with another secret learns it; thousands of strangers cost no answer each."""
    told = 0
    for _ in range(3 * ANSWERS):
        with socket.create_connection(tcp.address[1:]) as sock:
            sock.sendall(Client(b"x" * 32, hello(), where(sock.getpeername())).start)
            with contextlib.suppress(ConnectionResetError):
                told += bool(sock.recv(64))
    assert told >= ANSWERS
    time.sleep(2 * SWEEP)
    with pytest.raises(AuthError, match="HOCKET_SECRET differs"):
        connect(tcp.address, b"x" * 32, hello(), 5)


def test_slow_loris_is_cut_after_two_seconds(tcp):
    with socket.create_connection(tcp.address[1:]) as sock:
        start = time.monotonic()
        with pytest.raises(OSError):
            for _ in range(40):
                sock.sendall(b"h")
                time.sleep(0.1)
        assert 1.5 < time.monotonic() - start < 3.9


def test_out_of_descriptors_neither_spins_nor_stops(tcp, got):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        client.connect(tcp.address[1:])
        used = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - used < 0.1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
    connect(tcp.address, KEY, hello(), 5).close()
    until(lambda: got)


def test_as_many_listeners_as_ports_all_find_one(reactor, ports):
    """At once, as the ranks of a host do: two may bind one port, and only one of them listens on it."""
    for _ in range(50):
        gate, made = threading.Barrier(len(ports)), []

        def listen(gate=gate, made=made):
            gate.wait()
            made.append(Listener(reactor, ("tcp", "127.0.0.1", ports), KEY, lambda sock, hello: None))

        in_threads(*[listen] * len(ports))
        assert sorted(listener.address[2] for listener in made) == ports
        for listener in made:
            listener.close()


def test_open_and_close_leave_no_descriptor(got):
    before = descriptors()
    for _ in range(20):
        reactor = Reactor()
        listener = Listener(reactor, ("tcp", "127.0.0.1", 0), KEY, lambda sock, hello: sock.close())
        idle = socket.create_connection(listener.address[1:])
        connect(listener.address, KEY, hello(), 5).close()
        listener.close()
        reactor.close()
        idle.close()
    assert descriptors() <= before


def test_reactor_survives_a_failing_callback_and_keeps_time(reactor, caplog):
    ran = []
    with caplog.at_level(logging.ERROR):
        reactor.soon(lambda: 1 / 0)
        start = time.monotonic()
        reactor.later(0.2, lambda: ran.append(("late", time.monotonic() - start)))
        reactor.later(0.1, lambda: ran.append(("early", time.monotonic() - start)))
        until(lambda: len(ran) == 2)
    assert "ZeroDivisionError" in caplog.text
    assert [name for name, _ in ran] == ["early", "late"] and 0.2 <= ran[1][1] < 0.5


def test_reactor_sleeps(reactor):
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.05


FORK = """
import os, socket, sys, time
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
reactor = Reactor()
listener = Listener(reactor, ("unix", sys.argv[1]), None, lambda sock, hello: None)
mine, theirs = socket.socketpair()
reactor.add(mine, lambda: None)
time.sleep(0.1)
child = os.fork()
if child == 0:
    listener.close(); reactor.close(); reactor.soon(lambda: None)   # inert: nothing happens, nothing is removed
    time.sleep(3)
    os._exit(0)
time.sleep(0.2)
assert os.path.exists(sys.argv[1]), "the child removed the parent's path"
reactor.remove(mine, close=True)
theirs.settimeout(1)
assert theirs.recv(1) == b"", "the child's copy kept the connection open"
os.kill(child, 9); os.waitpid(child, 0)
listener.close()
"""


def test_a_forked_child_holds_nothing_and_removes_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "d" / "hub")], check=True, timeout=20)
