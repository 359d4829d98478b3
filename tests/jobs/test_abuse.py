"""Strangers knock at every port that a job opens; the job goes on and its results stay right."""

from __future__ import annotations

import contextlib
import math
import pathlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hocket.control.handshake import NONCE, PROOF, START, ClientSide, Hello
from support import ports
from support.faulty import all_ready, facts, job, wait_for
from support.leftovers import descriptors, listening

TLS_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(range(200))
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n"
dice = random.Random(11)


def knock(port: int, *words: bytes, linger: float = 0.0) -> bytes:
    """Say these words, one after the other; what was answered."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
        sock.settimeout(0.3)
        for word in words:
            sock.sendall(word)
            with contextlib.suppress(socket.timeout):
                answer += sock.recv(4096)
            time.sleep(linger)
    return answer


def wrong_key(port: int) -> float:
    """A handshake to the end, with a proof that is made of nothing: the seconds until the door was shut."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        client = ClientSide(b"not the secret of this job", Hello(1, "tcp:00000000", "job"))
        try:
            sock.sendall(client.start)
            challenge = sock.recv(client.missing)
            sock.sendall(dice.randbytes(32))
            answer = challenge and sock.recv(4096)
        except ConnectionError:  # the door was full of others, or shut with our words unread
            return math.inf
        assert answer == b"", answer
    return time.monotonic() - began


def abuse(port: int) -> float:
    """The seconds until the door was shut at once to a wrong key."""
    shut = math.inf
    for _ in range(3):
        assert b"HTTP" not in knock(port, HTTP)
        knock(port, TLS_HELLO)
        knock(port, dice.randbytes(dice.randrange(1, 3000)))
        knock(port, b"")
        shut = min(shut, wrong_key(port))
    idle = []
    for _ in range(200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    for _ in range(100):
        with contextlib.suppress(OSError):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=2))
    knock(port, *[bytes([byte]) for byte in HTTP[:4]], linger=0.05)  # slow loris, a byte at a time
    for sock in idle:
        sock.close()
    return shut


def held_by(pids: list[int]) -> set[tuple[int, int, str]]:
    return {(pid, *what) for pid in pids for what in descriptors(pid)}


BUSY = """
import os, pathlib
comm = hocket.init(transport="tcp")
x = np.arange(20000.0)
end = pathlib.Path(os.environ["FAULTY"]) / "end"
inner = comm.dup()
def check(c):
    assert np.array_equal(c.allreduce(x + c.rank, out=np.empty_like(x)), 3 * x + 3)
check(comm)
ready()
rounds, stop = 0, 0
while not stop:
    check(comm)
    time.sleep(0.002)
    rounds += 1
    stop = comm.allreduce(np.array([end.exists()]).astype(np.int64))[0]
    if rounds == 20:
        ready("warm")
ready("done")
await_file("counted")
check(inner)  # its streams are opened only now: the listeners still work
say(rounds=rounds)
comm.close()
"""


def test_a_live_job(tmp_path: pathlib.Path) -> None:
    with job(3, BUSY, tmp_path) as run:
        pids = [process.pid for process in run.processes]
        all_ready(tmp_path, range(3), "warm")
        before, ports = held_by(pids), listening(pids)
        assert len(ports) == 3, ports
        with ThreadPoolExecutor(len(ports)) as strangers:
            shut = min(strangers.map(abuse, ports, timeout=90))
            assert shut < 1.9, "an unfinished handshake is closed after 2 s"
        (tmp_path / "signs" / "end").touch()
        all_ready(tmp_path, range(3), "done")
        wait_for(lambda: held_by(pids) <= before, 30.0, "closing of all strangers")
        (tmp_path / "signs" / "counted").touch()
        for end in run.wait(60):
            assert facts(end)["rounds"] > 20, end


RELAYED = """
comm = hocket.init(transport="tcp", timeout=60)
x = np.full(4, 1.25, np.float32)
assert comm.allreduce(x, out=np.empty_like(x)).tolist() == [2.5] * 4
ready()
await_file("replayed")
assert comm.allreduce(x, out=np.empty_like(x)).tolist() == [2.5] * 4
say(done=True)
comm.close()
"""


class Relay:
    """Somebody without the secret, first at a port that the ranks dial: carries what they and the coordinator say.

    `heard`: what the ranks said; `answered`: what the coordinator said.
    """

    def __init__(self) -> None:
        self.port, self.to = ports.free(2)
        self.server = socket.create_server(("127.0.0.1", self.port))
        self.heard, self.answered = bytearray(), bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                if (far := self._far()) is None:
                    near.close()
                    continue
                far.settimeout(None)
                threading.Thread(target=self._pass, args=(near, far, self.heard), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, self.answered), daemon=True).start()

    def _far(self) -> socket.socket | None:
        """The coordinator, who may not be there yet: the rank must not find the other way to it meanwhile."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", self.to), timeout=2)
            time.sleep(0.01)
        return None

    def _pass(self, source: Any, target: Any, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_a_relayed_handshake_gets_nobody_in(tmp_path: pathlib.Path) -> None:
    """The coordinator takes a later port, as the first is taken; the ranks' way there is not through who took it.

    Nor does what a rank with the right key said to join let anybody else in, neither to the coordinator nor to a rank.
    """
    for turn in range(8):  # on a busy machine it may come so late that the rank looks elsewhere, and finds it
        place = tmp_path / str(turn)
        place.mkdir()
        if relayed(place):
            return
    raise AssertionError("no rank came by the relay")


def relayed(tmp_path: pathlib.Path) -> bool:
    """False if no rank came by the relay."""
    relay = Relay()
    env = {"HOCKET_RENDEZVOUS": f"tcp:127.0.0.1:{relay.port}-{relay.to}"}
    with job(2, RELAYED, tmp_path, env) as run:
        all_ready(tmp_path, range(2))
        if not relay.heard:
            (tmp_path / "signs" / "replayed").touch()
            assert all(facts(end)["done"] for end in run.wait(60))
            return False
        hellos = len(relay.heard) // START
        assert hellos >= 1 and len(relay.heard) == hellos * START, "a rank said more than its hello"
        assert b"welcome" not in relay.answered and len(relay.answered) <= hellos * (NONCE + PROOF)
        pids = [process.pid for process in run.processes]
        before = held_by(pids)
        for port in listening(pids):
            for cut in (len(relay.heard), START, 100):
                assert len(knock(port, bytes(relay.heard[:cut]))) <= NONCE + PROOF  # a refusal
        wait_for(lambda: held_by(pids) <= before, 30.0, "closing of all strangers")
        (tmp_path / "signs" / "replayed").touch()
        for end in run.wait(60):
            assert facts(end)["done"], end
    relay.server.close()
    return True
