"""The fuzzer: random programs are right, and whatever is wrong is found and told with what repeats it."""

from __future__ import annotations

import itertools
import pathlib
import random
import re
import shlex
import sys
from collections.abc import Callable

import numpy as np
import pytest

from hocket.algorithms.language.contract import CONTRACTS, takers
from hocket.conformance.fuzz import __main__ as fuzz
from hocket.conformance.fuzz.exchange import Exchange
from hocket.conformance.fuzz.local_call import WrongError
from hocket.conformance.fuzz.program import program
from hocket.conformance.fuzz.rounds import Call, Calls, Drop, Make, Message, Messages, Settle
from hocket.conformance.fuzz.values import ALL, CODECS, ops_for
from hocket.conformance.jobs import options, trial


def test_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """On 2 to 5 ranks, over every transport that this machine has; `make fuzz` goes on with the seeds."""
    code = fuzz.main(["--count", "3", "--seed", "1026", "--rounds", "25"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert int(out.split()[0]) == 3, out


# ------------------------------------------------------------------------------------------------ faults

FAULTY = """
import os, sys, time
import numpy as np
import hocket
from hocket.conformance.fuzz import rank
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.base.groups import open_group

def broken(name):
    right = getattr(Communicator, name)
    def call(self, *args, **how):
        found = right(self, *args, **how)
        under_way = how.get("async_op") or open_group() is not None  # it may end before the spoiling, or after it
        return spoil(self, args, found) if self.world.rank == 1 and not under_way else found
    setattr(Communicator, name, call)

{fault}
sys.exit(rank.main(sys.argv[1:]))
"""
FLIPPED = """
def spoil(comm, args, found):
    if isinstance(found, np.ndarray) and found.nbytes:
        found.view(np.uint8).reshape(-1)[-1] ^= 1
    return found
broken("gather")
"""
OTHER_BITS = """
def spoil(comm, args, found):
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        found[found == 0] = -0.0
    return found
broken("allreduce")
"""
BESIDE = """
def spoil(comm, args, found):
    if isinstance(found, np.ndarray) and found.nbytes and found.base is not None:
        memory = np.ndarray(found.nbytes + 1, np.uint8, found.base, 64)
        memory[-1] = 0
    return found
broken("broadcast")
"""
INPUT = """
def spoil(comm, args, found):
    if found is None and args[0].nbytes:
        args[0].view(np.uint8).reshape(-1)[0] ^= 1
    return found
broken("reduce")
"""
MESSAGE = """
def spoil(comm, args, found):
    if isinstance(found, np.ndarray) and found.nbytes:
        found.view(np.uint8)[0] ^= 1
    return found
broken("recv")
broken("sendrecv")
"""
CRASH = """
def spoil(comm, args, found):
    os.abort()
broken("allreduce")
"""
HANG = """
def spoil(comm, args, found):
    time.sleep(60)
broken("barrier")
"""
ODD_OP = """
from hocket.conformance.fuzz import local_call
right = local_call.FUNCTIONS["first"]
def first(a, b):
    return b if os.environ["HOCKET_RANK"] == "1" else right(a, b)
local_call.FUNCTIONS = {**local_call.FUNCTIONS, "first": first}
"""


def failing(fault: str, where: pathlib.Path, capsys: pytest.CaptureFixture[str], seed: int) -> str:
    """The fuzzer's words about two ranks that have this fault."""
    script = where / "rank.py"
    script.write_text(FAULTY.format(fault=fault))
    words = [sys.executable, str(script)]
    code = fuzz.main(["--ranks", "2", "--transport", "shm", "--count", "1", "--seed", str(seed)], words)
    out = capsys.readouterr().out
    assert code == 1, out
    assert re.match(rf"seed {seed}, 2 ranks over shm:\n(ranks? [\[01]|round )", out), out
    what = f"--seed {seed} --count 1 --ranks 2 --transport shm --rounds 60"
    assert f"again: python -m hocket.conformance.fuzz {what}" in out
    return out


def seed_with(fits: Callable[[Call], bool]) -> int:
    """A program of two ranks, over shm, in which all call such a thing and wait for it."""
    for seed in itertools.count():
        alone = [r.calls[0] for r in program(seed, 2, fuzz.ROUNDS, "shm") if isinstance(r, Calls) and not r.together]
        if any(fits(call) and len(call.later) == 2 and not any(call.later) for call in alone):
            return seed
    raise AssertionError


def result(name: str) -> Callable[[Call], bool]:
    return lambda call: call.collective == name and bool(call.rows)


def gathered(call: Call) -> bool:
    """Hocket itself makes no use of it: what breaks is the caller's."""
    return call.collective == "gather" and call.root == 1 and bool(call.rows)


def with_zeros(call: Call) -> bool:
    return call.collective == "allreduce" and call.dtype == "float64" and call.op == "land" and (call.rows or 0) > 9


def odd_op(call: Call) -> bool:
    return call.collective == "allreduce" and call.op == "first" and (call.rows or 0) > 9


@pytest.mark.parametrize(
    ("fault", "fits", "told"),
    [
        (FLIPPED, gathered, "elements are wrong"),
        (BESIDE, result("broadcast"), "bytes beside an array were written"),
        (INPUT, lambda call: call.collective == "reduce" and call.rows and call.root == 0, "x was changed"),
        (MESSAGE, result("allreduce"), "in Messages("),
        (CRASH, result("allreduce"), "ended with -6"),
        (OTHER_BITS, with_zeros, "hold different bits after an allreduce"),
        (ODD_OP, odd_op, "op='first'"),
    ],
    ids=["flipped", "beside", "input", "message", "crash", "bits", "op"],
)
def test_a_fault_is_found(
    fault: str, fits: Callable[[Call], bool], told: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = failing(fault, tmp_path, capsys, seed_with(fits))
    assert told in out, out


def test_the_command_repeats_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = failing(FLIPPED, tmp_path, capsys, seed_with(gathered))
    again = next(line for line in out.splitlines() if line.startswith("again: "))
    words = [sys.executable, str(tmp_path / "rank.py")]
    assert fuzz.main(shlex.split(again.removeprefix("again: python -m hocket.conformance.fuzz")), words) == 1
    said = capsys.readouterr().out.splitlines()
    wrong = [line for line in out.splitlines() if "rank 1, round" in line]
    assert wrong and wrong[0] in said


def test_who_hangs_is_asked_where(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "TIMEOUT", 3.0)
    out = failing(HANG, tmp_path, capsys, seed_with(result("barrier")))
    assert "ranks [1] did not end" in out and "in spoil" in out and "TimeoutError" in out, out


# ---------------------------------------------------------------------------------------------- messages


class Receiver:
    """A communicator of a rank that receives these messages, whoever sent them."""

    rank = 0

    def __init__(self, arriving: list[bytes]) -> None:
        self.arriving = iter(arriving)

    def recv(self, out: np.ndarray, source: None, tag: int) -> None:
        out.view(np.uint8)[:] = np.frombuffer(next(self.arriving), np.uint8)


def judged(dtype: str, order: str, fits: Callable[[list[bytes]], bool]) -> None:
    """Ranks 1 and 2 send messages a b and A B to rank 0, which gets them from any source in that order."""
    sent = tuple(Message(source, 0, 3, 1, True) for source in (1, 1, 2, 2))
    for seed in itertools.count():
        exchange = Exchange(None, Messages(0, "blocking", dtype, sent), (seed,), random.Random(0))
        made = [exchange.data(number).tobytes() for number in range(4)]
        if fits(made):
            exchange.comm = Receiver([made["abAB".index(each)] for each in order])
            exchange.run()
            return


def ambiguous(made: list[bytes]) -> bool:
    """All but the last are alike: who takes the first for rank 1's, whoever sent it, has no place for rank 2's last."""
    return made[0] == made[1] == made[2] != made[3]


@pytest.mark.parametrize("order", ["abAB", "aAbB", "aABb", "ABab", "AaBb", "AabB"])
def test_messages_that_are_alike_may_be_either_sources(order: str) -> None:
    judged("bool", order, ambiguous)


@pytest.mark.parametrize(("order", "dtype"), [("BabA", "bool"), ("aabB", "int32"), ("abBA", "int32")])
def test_a_wrong_order_is_told(order: str, dtype: str) -> None:
    with pytest.raises(WrongError, match="is not the next message of a rank"):
        judged(dtype, order, ambiguous if dtype == "bool" else lambda made: len(set(made)) == 4)


# ---------------------------------------------------------------------------------------------- programs


def calls(count: int) -> list[Call]:
    rounds = itertools.chain(*(program(seed, size, 60, "shm") for seed in range(count) for size in (2, 3, 5)))
    return [call for each in rounds if isinstance(each, Calls) for call in each.calls]


def test_a_seed_is_a_program() -> None:
    one, same, other = (list(program(seed, 3, 60, "tcp")) for seed in (5, 5, 6))
    assert one == same != other
    assert len(one) == 61


def test_everything_is_called() -> None:
    found = calls(100)
    assert {call.collective for call in found} == {*CONTRACTS, "barrier"}
    assert {call.dtype for call in found} == set(ALL)
    assert {(c.dtype, c.op) for c in found if c.op} == {(d, op) for d in ALL for op in ops_for(d)}
    assert {call.way for call in found} == {"new", "given", "in place"}
    assert {(c.collective, c.codec) for c in found if c.codec} == {(c, k) for c in takers("codec") for k in CODECS}
    kinds = {type(each) for seed in range(5) for each in program(seed, 3, 60, "shm")}
    assert kinds == {Calls, Messages, Make, Drop, Settle}


def test_transports_and_ranks_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (["--ranks", "x"], ["--ranks", "3..2"], ["--ranks", "0"], ["--transport", "pigeon"]):
        with pytest.raises(SystemExit):
            fuzz.main(bad)
    assert "there are shm, tcp, hosts" in capsys.readouterr().err
    assert options.ranks_of("2..5") == range(2, 6) and set(trial.TRANSPORTS) == {"shm", "tcp", "hosts"}
