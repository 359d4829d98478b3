"""Pairs are as the communicator for which they are made: in an encrypted job nothing of them is to be read."""

from __future__ import annotations

import pytest

import hocket
from support import jobs, ports, worlds

SECRET = "a secret of the tests of encrypted pairs, 12"
TALK = """
import numpy as np, hocket
from support import man_in_the_middle
from hocket.training import Client, Range, serve
from hocket.training.crew import loading
man_in_the_middle.enter()

class State:
    position = 0
    def __init__(self, x):
        self.x = x
    def arrays(self):
        return {"x": self.x}
    def numbers(self):
        return {}
    def load(self, numbers):
        pass

encrypt = {encrypt}
comm = hocket.init(secret={secret!r}, encrypt=encrypt, transport="tcp", elastic=True)
pushed, state, first = (np.full(4096, value, np.float32) for value in (1.2345e-7, 6.54321e8, 3.14159e-21))
tables = {"w": Range(4096, optimizer="put", initial=first)}
crew = loading.Server(comm, State(state)) if comm.rank == 0 else None
if comm.rank == 0:
    pairs = crew._pairs
    comm.share(pairs.address)
    serve(comm, tables, on=[0], clock="async", copies=0).wait()
    crew.close()
else:
    place = comm.share("")[0]
    with hocket.connect(place, like=comm) as pair:
        pair.share({"x": [4096]}, "a state")
        assert (pair.recv(np.zeros(4096, np.float32), 0) == state).all()
    if encrypt:
        for how in ({"secret": {secret!r}}, {"like": comm, "encrypt": False}):
            try:
                hocket.connect(place, timeout=2, **how)
            except hocket.Error as error:
                print(type(error).__name__)
    with Client(comm, tables) as client:
        assert (client.pull("w") == first).all()
        client.push("w", pushed)
        assert (client.pull("w") == pushed).all()
passed = bytes(man_in_the_middle.seen)
print("read:", *(name for name in ("pushed", "state", "first") if globals()[name].tobytes()[:64] in passed))
"""


@pytest.mark.parametrize("encrypt", [True, False])
def test_nothing_of_a_pair_is_to_be_read(encrypt: bool) -> None:
    """No byte of a push, a pull or a newcomer's state is in clear; the environment has no secret and no encryption."""
    source = TALK.replace("{encrypt}", str(encrypt)).replace("{secret!r}", repr(SECRET))
    env = {"HOCKET_RENDEZVOUS": f"tcp:127.0.0.1:{ports.free()[0]}", "PYTHONPATH": worlds.PATH, "HOCKET_SECRET": ""}
    with jobs.Job(2, source, env=env) as job:
        ends = job.wait(40)
    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    said = ends[1].out.splitlines()
    read = {word for end in ends for word in end.out.splitlines()[-1].split()}
    assert read == ({"read:"} if encrypt else {"read:", "pushed", "state", "first"})
    assert not encrypt or (said[0] in ("ArgumentError", "AuthError") and said[1] == "ArgumentError"), said


def test_a_listener_that_would_be_plain_is_an_error() -> None:
    with pytest.raises(hocket.ArgumentError, match="encryption needs a secret"):
        hocket.listen("tcp:127.0.0.1:1", encrypt=True)
    with pytest.raises(hocket.ArgumentError, match="encryption needs a secret"):
        hocket.listen(encrypt=True, auth="none")
