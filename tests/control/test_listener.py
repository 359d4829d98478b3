"""The listener: where it can listen, whom it lets in there, and that it leaves nothing behind."""

import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from hocket.control.addresses import private_directory
from hocket.control.dial import connect
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError
from support import ports
from support.faulty import wait_for
from support.hello import KEY, hello
from support.leftovers import descriptors
from support.worlds import in_threads

EVERYWHERE = ("0.0.0.0", "0", "::", "::ffff:0.0.0.0", "::ffff:0:0", "0::0")


def test_unix_path_is_private_and_removed(reactor, got, tmp_path):
    path = str(tmp_path / "private" / "meet")
    listener = Listener(reactor, ("unix", path), None, lambda sock, hello: got.append((sock, hello)))
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.lstat(os.path.dirname(path)).st_mode) == 0o700
    connect(listener.address, None, hello(), 5).close()
    wait_for(lambda: got)
    assert got[0][1] == hello()
    listener.close()
    assert not os.path.exists(path)


def test_a_dead_jobs_path_is_replaced_a_living_ones_is_not(reactor, tmp_path):
    os.chmod(tmp_path, 0o700)
    path = str(tmp_path / "meet")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    living = Listener(reactor, ("unix", path), None, lambda sock, hello: None)
    with pytest.raises(TransportError, match="EADDRINUSE"):
        Listener(reactor, ("unix", path), None, lambda sock, hello: None)
    living.close()
    with open(path, "w") as file:
        file.write("a file of the user's")
    with pytest.raises(TransportError, match="EADDRINUSE"):
        Listener(reactor, ("unix", path), None, lambda sock, hello: None)
    assert os.path.getsize(path) > 0


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
    wait_for(lambda: len(got) == 2)
    listener.close()


def test_another_user_is_refused(reactor, tmp_path, monkeypatch, caplog):
    os.chmod(tmp_path, 0o700)
    listener = Listener(reactor, ("unix", str(tmp_path / "s")), None, lambda sock, hello: None)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(tmp_path / "s"))
        assert sock.recv(1) == b""
    assert f"refused user id {uid}" in caplog.text
    with pytest.raises(TransportError, match="served by another user"):
        connect(listener.address, None, hello(), 30)
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
        first, second = ports.free(2)
        taken.bind(("127.0.0.1", first))
        taken.listen()
        listener = Listener(reactor, ("tcp", "127.0.0.1", range(first, first + 20)), KEY, lambda sock, hello: None)
        assert listener.address[2] == second
        listener.close()


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


FORK = """
import os, socket, sys, threading
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
reactor = Reactor()
listener = Listener(reactor, ("unix", sys.argv[1]), None, lambda sock, hello: None)
mine, theirs = socket.socketpair()
reactor.add(mine, lambda: None)
begun = threading.Event(); reactor.soon(begun.set); begun.wait()
done, says = os.pipe()
stays, ends = os.pipe()
child = os.fork()
if child == 0:
    os.close(ends)
    listener.close(); reactor.close(); reactor.soon(lambda: None)   # inert: nothing happens, nothing is removed
    os.write(says, b"x")
    os.read(stays, 1)
    os._exit(0)
os.read(done, 1)
assert os.path.exists(sys.argv[1]), "the child removed the parent's path"
reactor.remove(mine, close=True)
theirs.settimeout(30)
assert theirs.recv(1) == b"", "the child's copy kept the connection open"
os.kill(child, 9); os.waitpid(child, 0)
listener.close()
"""


def test_a_forked_child_holds_nothing_and_removes_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "d" / "meet")], check=True, timeout=60)
