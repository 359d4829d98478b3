"""`hocket.listen` and `hocket.connect`: communicators of two, each a failure domain of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.elastic import pairs as of_two
from hocket.control import secret
from hocket.control.dial import dial
from hocket.control.handshake import AuthError, Hello
from hocket.control.link import ControlLink
from hocket.control.protocol.membership import PURPOSE
from hocket.control.protocol.messages import Join, pack
from hocket.control.reactor import Reactor
from hocket.control.rendezvous import Identity, Meet
from support.worlds import PATH

SECRET = "a secret of the tests of pairs, 12345"
WORKER = """
import os, sys, time
import numpy as np
import hocket
comm = hocket.connect(sys.argv[1], timeout=60, transport=sys.argv[3] or None)
comm.send(np.array([int(sys.argv[2])]), dest=0)
while True:
    x = comm.recv(np.empty(1000, np.int64), 0)
    if x[0] < 0:
        break
    comm.send(x * int(sys.argv[2]), dest=0)
comm.close()
"""


def start(address: str, number: int, transport: str = "") -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": PATH, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", WORKER, address, str(number), transport], env=env,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.parametrize("transport", ["", "tcp"])
def test_a_dead_worker_ends_its_own_pair_alone(transport: str) -> None:
    with hocket.listen(secret=SECRET, transport=transport or None) as pairs:
        processes = [start(pairs.address, number, transport) for number in (1, 2, 3)]
        try:
            comms: dict[int, Any] = {}
            for _ in processes:
                comm = pairs.accept(timeout=60)
                comms[int(comm.recv(np.empty(1, np.int64), 1)[0])] = comm
            assert sorted(comms) == [1, 2, 3] and all((c.rank, c.size) == (0, 2) for c in comms.values())
            processes[1].send_signal(signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(hocket.PeerLostError) as lost:
                comms[2].recv(np.empty(1, np.int64), 1)
            assert lost.value.ranks == (1,) and time.monotonic() - began < 20
            for number in (1, 3):
                comms[number].send(np.arange(1000), dest=1)
                assert (comms[number].recv(np.empty(1000, np.int64), 1) == np.arange(1000) * number).all()
                comms[number].send(np.full(1000, -1), dest=1)
            for comm in comms.values():
                comm.close()
            assert [process.wait(timeout=60) for process in processes] == [0, -signal.SIGKILL, 0]
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def test_one_that_is_gone_before_it_was_accepted_is_passed_over() -> None:
    with hocket.listen(secret=SECRET) as pairs:
        first = start(pairs.address, 1)
        while not pairs._waiting:
            time.sleep(0.01)
        first.kill()
        first.communicate()
        second = start(pairs.address, 2)
        comm = pairs.accept(timeout=60)
        assert comm.recv(np.empty(1, np.int64), 1)[0] == 2
        comm.send(np.full(1000, -1), dest=1)
        comm.close()
        assert second.wait(timeout=60) == 0
        second.communicate()


def test_pairs_leave_nothing_behind() -> None:
    """Threads of one process connect with each other, again and again."""

    def once() -> None:
        with hocket.listen() as pairs:
            thread = threading.Thread(target=lambda: hocket.connect(pairs.address).close())
            thread.start()
            comm = pairs.accept(timeout=60)
            pairs.close()
            comm.close()
            thread.join()

    once()
    before = held()
    for _ in range(3):
        once()
    deadline = time.monotonic() + 30
    while held() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held() <= before


def test_who_does_not_know_the_secret() -> None:
    with hocket.listen(secret=SECRET) as pairs:
        with pytest.raises(AuthError, match="HOCKET_SECRET"):
            hocket.connect(pairs.address, secret="another secret, as long as that 1", timeout=3)
        with pytest.raises(hocket.ArgumentError, match="secret"):
            hocket.connect(pairs.address, timeout=60)
        with pytest.raises(hocket.TimeoutError, match=r"nobody connected to tcp:127\.0\.0\.1:\d+ within 0.1 s"):
            pairs.accept(timeout=0.1)
    with pytest.raises(hocket.ArgumentError, match="closed"):
        pairs.accept()


def test_port_0_is_a_free_one() -> None:
    with hocket.listen("tcp:127.0.0.1:0", secret=SECRET) as pairs:
        assert re.fullmatch(r"tcp:127\.0\.0\.1:[1-9]\d+", pairs.address)
        worker = threading.Thread(target=lambda: hocket.connect(pairs.address, secret=SECRET).close())
        worker.start()
        pairs.accept(timeout=60).close()
        worker.join()
    with pytest.raises(hocket.ArgumentError, match="tcp:host:port"):
        hocket.connect("tcp:127.0.0.1:0", secret=SECRET)


def test_nobody_accepts() -> None:
    with hocket.listen() as pairs, pytest.raises(hocket.TimeoutError):
        hocket.connect(pairs.address, timeout=0.5)
    with pytest.raises(hocket.TimeoutError, match="within 0.3 s"):
        hocket.connect("tcp:127.0.0.1:9", secret=SECRET, timeout=0.3)
    assert json.dumps(repr(pairs)).endswith('closed>"')


def test_who_stalls_or_gave_up_keeps_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that have joined and say no more, one that gave up before: the next ones are accepted beside them."""
    monkeypatch.setattr(of_two, "MEET", 6.0)
    with hocket.listen(secret=SECRET) as pairs:
        with pytest.raises(hocket.TimeoutError):
            hocket.connect(pairs.address, secret=SECRET, timeout=0.3)
        accepted: list[Any] = []
        accepting = threading.Thread(target=lambda: accepted.extend(pairs.accept(timeout=60).close() for _ in range(3)))
        accepting.start()
        reactor, stalling = Reactor(), list[Any]()
        who = Identity(1, 2, of_two.JOB, secret.read_text(SECRET), False)
        for count in (1, 2):
            for _ in range(count):
                places = of_two._where(of_two.addresses_of(pairs.address))
                stalling.append(Meet(who, places, 30.0, reactor).meet())
            began = time.monotonic()
            honest = hocket.connect(pairs.address, secret=SECRET, timeout=60)
            assert time.monotonic() - began < 5, "two of SOON, and what a meeting takes, not MEET"
            honest.close()
        hocket.connect(pairs.address, secret=SECRET, timeout=60).close()
        accepting.join()
        assert len(accepted) == 3
        deadline = time.monotonic() + 3 * of_two.MEET + 30
        while pairs._meetings:
            assert time.monotonic() < deadline, "they are forgotten"
            time.sleep(0.05)
        for session in stalling:
            session.close()
        reactor.close()


def test_a_pair_that_differs_is_its_own_loss() -> None:
    """Another encryption, say: who listens goes on accepting."""
    with hocket.listen(secret=SECRET, encrypt=True) as pairs:
        accepted: list[Any] = []
        accepting = threading.Thread(target=lambda: accepted.append(pairs.accept(timeout=60).close()))
        accepting.start()
        with pytest.raises(hocket.Error):
            hocket.connect(pairs.address, secret=SECRET, timeout=3)
        hocket.connect(pairs.address, secret=SECRET, encrypt=True, timeout=60).close()
        accepting.join()
        assert len(accepted) == 1
    with pytest.raises(hocket.ArgumentError, match="transport 'carrier' is not known"):
        hocket.listen(secret=SECRET, transport="carrier")
    for address, auth in (("tcp:127.0.0.1:1", "secret"), (None, "none")):
        with pytest.raises(hocket.ArgumentError, match="encryption needs a secret"):
            hocket.listen(address, encrypt=True, auth=auth)


def test_connections_that_wait_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link beyond them is turned away, as is who says that it is the listening process."""
    monkeypatch.setattr(of_two, "ARRIVED", 3)
    with hocket.listen(secret=SECRET) as listener:
        place = listener.address
        comms: list[Any] = []
        waiting = [
            threading.Thread(target=lambda: comms.append(hocket.connect(place, secret=SECRET, timeout=60)))
            for _ in range(3)
        ]
        for each in waiting:
            each.start()
        while len(listener._waiting) < 3:
            time.sleep(0.01)
        with pytest.raises(hocket.Error):
            hocket.connect(place, secret=SECRET, timeout=1)
        accepted = [listener.accept(timeout=60) for _ in range(3)]
        for each in waiting:
            each.join()
        reactor, over = Reactor(), threading.Event()
        host, port = place.removeprefix("tcp:").rsplit(":", 1)
        hello = Hello(0, PURPOSE, of_two.JOB)
        link = ControlLink(reactor, dial(("tcp", host, int(port)), secret.read_text(SECRET), hello, 2.0))
        link.on_end = lambda how: over.set()
        reactor.soon(link.start)
        link.send(pack(Join(0, 2, 1, "a host")))
        assert over.wait(60)
        reactor.close()
        last = threading.Thread(target=lambda: comms.append(hocket.connect(place, secret=SECRET, timeout=60)))
        last.start()
        accepted.append(listener.accept(timeout=60))
        last.join()
        for comm in comms:
            threading.Thread(target=comm.close).start()
        for comm in accepted:
            comm.close()
