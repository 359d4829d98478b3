"""A process that holds the key does nothing to the others, whatever it says of them, and of itself."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hocket.control.addresses import remove_dead
from hocket.control.elastic.door import Iam
from hocket.control.elastic.lobby import Asks
from hocket.control.elastic.mesh import Mesh
from hocket.control.elastic.proving import ProcessKey, times
from hocket.control.elastic.reaching import LOBBY, PEER, Own, address_of, reach
from hocket.control.link import ControlLink
from hocket.control.protocol.generations import Generation, Leaves
from hocket.control.protocol.messages import pack
from hocket.control.protocol.seats import Seat, makes_sense, uid_of
from hocket.control.reactor import Reactor
from hocket.control.secret import read_text
from support.elastic_ranks import HOST, Newcomer, said
from support.jobs import Job

SECRET = "a secret of the tests of those that lie"
LIAR = """
from hocket.collectives.job.place import addresses_of
from hocket.control.elastic.door import Iam
from hocket.control.elastic.entering import enter
from hocket.control.elastic.lobby import Enter
from hocket.control.elastic.mesh import Mesh
from hocket.control.elastic.reaching import LOBBY, PEER, Own, address_of, reach
from hocket.control.link import ControlLink
from hocket.control.protocol.generations import Dead, Leaves
from hocket.control.protocol.messages import pack
from hocket.control.reactor import Reactor
from hocket.control.secret import read_text
reactor, doors = Reactor(), addresses_of(door.split(",")[0])
own = Own("", read_text(os.environ["HOCKET_SECRET"]), False, [("tcp", "127.0.0.1", 0)])
def come(**lies):
    mesh = Mesh(reactor, own)
    mesh.seat = mesh.seat._replace(**lies)
    return mesh, enter(mesh, lambda: doors, 10.0)
def say(own, address, purpose, *words):
    link = ControlLink(reactor, reach(own, address, purpose, 2.0))
    reactor.soon(link.start)
    for word in words:
        link.send(pack(word))
    return link
"""


PATIENT = HOST + """
import hocket.collectives.elastic.elastic as elastic
elastic.NEWCOMERS = 1.0
"""


def beside(source: str, lies: str, prints: str = "") -> list[dict[str, Any]]:
    """Run `source` on two members while somebody runs `lies`, who prints this: the members' output."""
    with Job(2, PATIENT + source, env={"HOCKET_SECRET": SECRET}) as job:
        liar = Newcomer(job, LIAR + lies, HOCKET_SECRET=SECRET)
        try:
            rows = said(job.wait(), 0, 1)
        finally:
            liar.process.kill()
            out, err = liar.process.communicate()
            print(err)
        assert out == prints
        return rows


def test_what_a_seat_names_is_not_deleted(tmp_path: Path) -> None:
    victims = [tmp_path / "checkpoint.pt", tmp_path / ("a" * 16)]
    for each in victims:
        each.touch()
    source = """
until_waiting(1)
comm = comm.renew()
told(comm, left=comm.previous_lost, gone=len(comm.world.elastic.mesh.generations.gone))
"""
    rows = beside(source, f"""
from hocket.control.elastic.processes import kernel
come(addresses=[["unix", each] for each in {[*map(str, victims)]}], host=kernel(), pid=1, started=1)
time.sleep(60)
""")
    assert [(row["size"], row["gone"]) for row in rows] == [(2, 1)] * 2  # it was as good as dead at once
    assert all(each.exists() for each in victims)


def test_a_dead_ones_socket_is_removed_and_nothing_else(tmp_path: Path) -> None:
    folder, names = str(tmp_path), [letter * 16 for letter in "abcd"]
    dead, living, file, link = (str(tmp_path / name) for name in names)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(dead)
        two.bind(living)
        two.listen()
        one.close()
        (tmp_path / names[2]).touch()
        os.symlink(dead, link)
        other = str(tmp_path / "other")
        os.link(dead, other)
        for path in (living, file, link, other, f"{folder}/../{tmp_path.name}/{names[0]}", f"{folder}/gone"):
            remove_dead(path, folder)
        assert len(os.listdir(folder)) == 5
        remove_dead(dead, "")
        assert os.path.exists(dead)
        remove_dead(dead, folder)
        assert not os.path.exists(dead)


def test_nobody_is_removed_by_another_ones_word() -> None:
    """It says that one is dead, comes as that one to say goodbye, and does so in the lobby."""
    source = """
until_waiting(1)
comm = comm.renew()
for _ in range(20):
    time.sleep(0.05)
    assert not comm.lost and comm.size == 2
    assert comm.allreduce(1) == 2
told(comm, links=len(comm.world.elastic.mesh._links))
"""
    rows = beside(source, """
mesh, admitted = come()
inside, (other, target) = own._replace(job=admitted.job), admitted.seats[:2]
def proven(seat, word):
    link = ControlLink(reactor, reach(inside, address_of(seat.addresses[0]), PEER, 30.0))
    reactor.soon(link.start)
    link.send(pack(Iam(mesh.uid, mesh._identity.proof(seat.public, mesh.uid, seat.uid, link.key))))
    link.send(pack(word))
    return link
while True:
    links = [
        proven(other, Dead(target.uid)),
        say(inside, address_of(other.addresses[0]), PEER, Iam(target.uid, "a key"), Leaves()),
        say(inside, address_of(target.addresses[0]), PEER, Iam(other.uid, "a key"), Leaves()),
        say(own, address_of(other.addresses[0]), LOBBY, Iam(target.uid, "a key"), Leaves())]
    time.sleep(0.1)
""")
    assert [(row["size"], row["lost"]) for row in rows] == [(2, [])] * 2


def test_newcomers_that_never_come_cost_the_members_one_wait() -> None:
    """Also more of them than members, which are silent, and not proven dead: the members are enough."""
    source = """
until_waiting(5)
began = time.monotonic()
told(comm.renew(timeout=40), took=time.monotonic() - began)
"""
    rows = beside(source, """
from hocket.control.protocol.seats import Seat
seats = [Seat(f"{i}", [["tcp", "127.0.0.1", 1]], "no host", 1, 1) for i in range(20)]
links = [say(own, doors[0], LOBBY, Enter(seat)) for seat in seats]
time.sleep(60)
""")
    assert [row["size"] for row in rows] == [2, 2] and all(row["took"] < 15 for row in rows)


def test_what_a_newcomer_says_is_bounded_and_so_are_newcomers() -> None:
    source = """
until_waiting(1)
while comm.waiting < 256:
    time.sleep(0.005)
time.sleep(0.5)
most, big = comm.waiting, [each.uid for each in comm.world.elastic.mesh.lobby() if each.uid.startswith("big")]
told(comm.renew(admit=False), most=most, big=big)
"""
    rows = beside(source, """
from hocket.control.protocol.seats import Seat
links = []
for i in range(300):
    seat = Seat(f"{i}", [["tcp", "127.0.0.1", 1]], "no host", 1, 1, "x" * 100)
    links += [say(own, doors[0], LOBBY, Enter(seat))]
    if i < 10:
        links += [say(own, doors[0], LOBBY, Enter(seat._replace(uid=f"big {i}", info="x" * 20000)))]
time.sleep(60)
""")
    assert [(row["most"], row["big"]) for row in rows] == [(256, [])] * 2


def test_a_seat_that_makes_no_sense_does_not_wait() -> None:
    """Where it listens and which process it is are its own words; nor does one that goes on speaking."""
    source = """
while [each.uid for each in comm.world.elastic.mesh.lobby()] != ["honest"]:
    time.sleep(0.005)
comm.barrier()
told(comm, lobby=[each.uid for each in comm.world.elastic.mesh.lobby()])
"""
    rows = beside(source, """
from hocket.control.protocol.seats import Seat
seat = Seat("honest", [["tcp", "127.0.0.1", 1]], "no host", 1, 1)
tcp = ["tcp", "127.0.0.1"]
lies = [dict(addresses=each) for each in ([], [[]], [["tcp"]], [[*tcp, "x"]], [[*tcp, 1 << 16]], [["unix"]], [[7, {}]])]
lies += [dict(pid=10**30), dict(pid=-1), dict(pid=0), dict(started=10**30)]
lies += [dict(public="\\ud800"), dict(public="5a" * 32), dict(uid=""), dict(uid="x" * 64), dict(uid="\\x1b[2J")]
links = [say(own, doors[0], LOBBY, Enter(seat._replace(**{"uid": str(i), **each}))) for i, each in enumerate(lies)]
once = seat._replace(uid="once")
links += [say(own, doors[0], LOBBY, Enter(once), Enter(once)), say(own, doors[0], LOBBY, Enter(seat))]
time.sleep(60)
""")
    assert [row["lobby"] for row in rows] == [["honest"]] * 2


def test_nobody_is_told_of_the_members_under_a_members_name() -> None:
    source = """
until_waiting(1)
comm = comm.renew()
time.sleep(0.5)
told(comm)
"""
    rows = beside(source, """
from hocket.control.protocol.seats import Seat
_, admitted = come()
for target in admitted.seats[:2]:
    heard = []
    link = ControlLink(reactor, reach(own, doors[0], LOBBY, 30.0))
    link.on_message, link.on_end = heard.append, lambda how: heard.append(how)
    reactor.soon(link.start)
    link.send(pack(Enter(Seat(target.uid, [["tcp", "127.0.0.1", 1]], "no host", 1, 1))))
    while not heard:
        time.sleep(0.01)
    print("TOLD" if isinstance(heard[0], dict) else "not told")
""", "not told\n" * 2)
    assert [row["size"] for row in rows] == [2, 2]  # it never comes to their meeting


def test_who_holds_the_key_takes_few_connections_and_little_memory() -> None:
    """Connections that say nothing, that come to a meeting that never is, and a first word that is long."""
    source = """
until_waiting(1)
files = lambda: len(os.listdir("/proc/self/fd"))
memory = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
before = files(), memory()
note(f"looks {me}")
await_note("came")
held, grown = files() - before[0], memory() - before[1]
note(f"seen {me}")
told(comm, held=held, grown=grown)
"""
    rows = beside(source, """
import resource
from hocket.control.protocol.membership import PURPOSE
from hocket.control.protocol.seats import Seat
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
links = [say(own, doors[0], LOBBY, Enter(Seat("honest", [["tcp", "127.0.0.1", 1]], "no host", 1, 1)))]
for rank in range(2):
    while not os.path.exists(os.path.join(directory, f"looks {rank}")):
        time.sleep(0.01)
for i in range(400):
    links += [say(own, doors[0], LOBBY)]
for i in range(20):
    sock = reach(own, doors[0], LOBBY, 30.0)
    sock.setblocking(True)
    try: sock.sendall((15 << 20).to_bytes(4, "big") + bytes(4 << 20))
    except OSError: pass
    links.append(sock)
open(os.path.join(directory, "came"), "w").close()
time.sleep(60)
""")
    assert rows[0]["held"] < 300 and rows[0]["grown"] < 20 << 20, rows


def test_a_members_first_connection_is_proven() -> None:
    """Nobody has heard of it yet, but for its seat; what it has proven on one connection proves nothing on another."""
    reactor = Reactor()
    own = Own("a job", read_text(SECRET), False, [("tcp", "127.0.0.1", 0)])
    first, second, liar = (Mesh(reactor, own) for _ in range(3))
    try:
        seats = [second.seat, first.seat, liar.seat]
        first.begin(Generation(0, seats, first.uid), met=0)  # it dials the second, which does not know it yet
        here, public = address_of(first.seat.addresses[0]), first.seat.public
        ended: list[str] = []

        def comes(proof: Callable[[ControlLink], str]) -> None:
            link = ControlLink(reactor, reach(own, here, PEER, 30.0))
            link.on_end = ended.append
            reactor.soon(link.start)
            link.send(pack(Iam(second.uid, proof(link))))
            link.send(pack(Leaves()))

        overheard = second._identity.proof(public, second.uid, first.uid, b"another connection")
        wrong: list[Callable[[ControlLink], str]] = [
            lambda link: "", lambda link: "a key", lambda link: "\ud800", lambda link: overheard,
            lambda link: liar._identity.proof(public, second.uid, first.uid, link.key),
            lambda link: second._identity.proof(public, first.uid, second.uid, link.key),
        ]  # fmt: skip
        for each in wrong:
            comes(each)
        until = time.monotonic() + 60
        while len(ended) < len(wrong) and time.monotonic() < until:
            time.sleep(0.01)
        assert first.generations is not None and len(ended) == len(wrong) and not first.generations.gone
        comes(lambda link: second._identity.proof(public, second.uid, first.uid, link.key))
        while not first.generations.gone and time.monotonic() < until:
            time.sleep(0.01)
        assert first.generations.gone == {second.uid: True}
    finally:
        for mesh in (first, second, liar):
            mesh.close()
        reactor.close()


def test_a_word_behind_the_last_one_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Both came at once, and the first one's answer closes the connection."""
    reactor = Reactor()
    own = Own("a job", read_text(SECRET), False, [("tcp", "127.0.0.1", 0)])
    mesh = Mesh(reactor, own)
    try:
        mesh.begin(Generation(0, [mesh.seat], mesh.uid), met=0)
        link = ControlLink(reactor, reach(own, address_of(mesh.seat.addresses[0]), LOBBY, 30.0))
        heard, over = [], Event()
        link.on_message, link.on_end = heard.append, lambda how: over.set()
        reactor.soon(link.start)
        reactor.soon(lambda: [link.send(pack(Asks())) for _ in range(2)])
        assert over.wait(60) and heard == [{"tells": [None]}] and not caplog.records
    finally:
        mesh.close()
        reactor.close()


def test_a_seat_that_is_passed_on_keeps_its_key() -> None:
    one, other = ProcessKey(), ProcessKey()
    seat = Seat(uid_of(one.public), [["tcp", "127.0.0.1", 1]], "a host", 1, 1, None, one.public)
    assert makes_sense(seat) and not makes_sense(seat._replace(public=other.public))


def test_the_keys_are_those_of_rfc_7748() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert times(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    one, other = ProcessKey(), ProcessKey()
    assert one.proof(other.public, "a", "b", b"c") == other.proof(one.public, "a", "b", b"c")
