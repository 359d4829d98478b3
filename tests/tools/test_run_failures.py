"""`hocket run` when ranks fail: the rank that began is named, with what it said."""

import os
import re
import tempfile

import pytest

import hocket
from hocket.collectives.job import last_words
from support.launcher import START, TIMES, alive, pids


def test_the_first_failure_ends_the_job(run):
    code, out, err = run(3, START + """
if rank == 1:
    while not all(os.path.exists(f"{__file__}.{other}") for other in (0, 2)):
        time.sleep(0.01)
    sys.exit(7)
open(f"{__file__}.{rank}", "w").close()
time.sleep(60)
""", "--timeout-grace", "0.3")
    assert code == 7
    assert re.search(r"hocket run: rank 1 \(pid \d+\) ended with exit code 7", err) and err.count("hocket run:") == 1
    assert len(pids(out)) == 3 and not any(map(alive, pids(out)))


# Every rank computes with the others; rank 1 of three fails in its own way.  (Survivors raise, and may end before it.)
FAILS = """
import os, signal, sys, time
import hocket, numpy as np
comm = hocket.init()
x = np.ones(1000)
HOW
for _ in range(100):
    comm.allreduce(x)
    time.sleep(0.01)
"""
WAYS = {
    "raises": ("if comm.rank == 1: raise ValueError('bad\\nluck')", 1, r"ended with exit code 1 \(ValueError: bad\)"),
    "slow to end": (
        "import atexit\nif comm.rank == 1: atexit.register(time.sleep, 0.5); raise ValueError('bad')",
        1, r"ended with exit code 1 \(ValueError: bad\)",
    ),
    "in with": ("if comm.rank == 1:\n  with comm: raise KeyError('k')", 1, r"exit code 1 \(KeyError: 'k'\)"),
    "exits": ("if comm.rank == 1: sys.exit(7)", 7, "ended with exit code 7;"),
    "leaves": ("if comm.rank == 1: os._exit(9)", 9, "ended with exit code 9;"),
    "is killed": ("if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL;"),
    "survivors catch": (
        "import atexit\nif comm.rank == 1: atexit.register(time.sleep, 0.3); sys.exit(7)\n"
        "try: comm.barrier(); comm.barrier()\nexcept hocket.PeerLostError: sys.exit(5)",
        7, "ended with exit code 7;",
    ),
    "survivors raise their own": (
        "if comm.rank == 1: os._exit(9)\n"
        "try: comm.barrier()\nexcept hocket.PeerLostError as why: raise RuntimeError('no') from why",
        9, "ended with exit code 9;",
    ),
}  # fmt: skip


PATIENT = "--timeout-grace", "30"  # all end by themselves
# Those that others show nearly as well.
MORE = ("slow to end", "in with", "exits", "survivors raise their own")


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.more) if way in MORE else way for way in WAYS])
def test_the_rank_that_began_is_named(run, way):
    how, wanted, words = WAYS[way]
    for _ in range(TIMES):
        code, _, err = run(3, FAILS.replace("HOW", how), *PATIENT, limits={"JUDGE": 30}, env=run.env)
        said = [line for line in err.splitlines() if line.startswith("hocket run:")]
        assert len(said) == 1 and re.match(rf"hocket run: rank 1 \(pid \d+\) .*{words}", said[0]), err
        assert code == wanted, err


def test_ranks_that_disagree_are_named_with_what_they_said(run):
    """No rank is the one that began: the first, and its words."""
    code, _, err = run(2, FAILS.replace("HOW", "comm.broadcast(x, root=comm.rank)"), env=run.env)
    assert code == 1 and re.search(r"hocket run: rank [01] \(pid \d+\) .*\(MismatchError: the ranks called", err), err
    assert err.count("hocket run:") == 1


class Broken(hocket.PeerLostError):
    """The error of a communicator that this rank itself gave up."""


def test_words_of_ranks():
    """Which errors follow from another rank, and what is told of them."""
    said = {}
    errors = [
        ValueError("x\ny"), KeyboardInterrupt(), hocket.PeerLostError("rank 1 is gone", [1]), hocket.ArgumentError("a"),
        hocket.TimeoutError("t"), Broken("this rank failed earlier"), RuntimeError("\x1b[2J" + "z" * 400),
    ]  # fmt: skip
    errors[-1].__context__ = errors[2]
    with tempfile.TemporaryDirectory() as place:
        for error in errors:
            path = os.path.join(place, "words")
            last_words.tell({last_words.PLACE: path}, error, [])
            said[type(error).__name__] = last_words.heard(path)
        last_words.tell({}, errors[0], [])
        last_words.tell({last_words.PLACE: path + "/no/such"}, errors[0], [])
        assert last_words.heard(path + "/no/such") is None
    assert said["ValueError"] == (False, "ValueError: x") and said["KeyboardInterrupt"] == (False, "KeyboardInterrupt")
    assert said["PeerLostError"] == (True, "PeerLostError: rank 1 is gone") and said["TimeoutError"].followed
    assert not said["ArgumentError"].followed and not said["Broken"].followed and said["RuntimeError"].followed
    assert len(said["RuntimeError"].text) == last_words.LONGEST and "\x1b" not in said["RuntimeError"].text


DIFFER = """
import hocket, numpy as np
comm = hocket.init()
def step(n):
    comm.allreduce(np.ones(n))
step(4 if comm.rank == 2 else 3)
"""
LATE = DIFFER.replace("\nstep", """
import time
from hocket.collectives.failures.reporting import Reporter
fail = Reporter._fail
def late(*about):   # it has answered, and notices only when the others have left
    while len(comm.world.gone.left) < 2:
        time.sleep(0.01)
    fail(*about)
if comm.rank == 2:
    Reporter._fail = late
step""")
DIFFER_AT_THE_END = "import hocket, numpy as np\ncomm = hocket.init()\ncomm.broadcast(np.ones(3), comm.rank)\n"


@pytest.mark.parametrize("program", [DIFFER, LATE])
def test_what_all_ranks_raise_is_printed_once(run, program):
    """By one rank, with its own frames and without hocket's; the others print a line, also where they have left."""
    code, _, err = run(3, program, *PATIENT)
    assert code == 1 and "hocket.errors.MismatchError: the ranks called different things" in err, err
    assert err.count("rank 2 called allreduce(float64[4], op='sum')") == err.count("Traceback") == 1, err
    assert "/collectives/" not in err and len(re.findall(r'File ".*program.py", line', err)) == 2, err
    others = re.findall(r"\(rank \d prints the full text\), at .*program.py:5 in step < program.py:\d+ in <mod", err)
    assert len(others) == 2 and len(err.splitlines()) <= 15, err


def test_what_is_wrong_at_the_end_is_printed_once(run):
    code, _, err = run(3, DIFFER_AT_THE_END, *PATIENT)
    assert code == 1 and err.count("rank 2 called broadcast(float64[3], root=2)") == 1, err
    assert err.count("prints the full text") == 2, err


def test_each_survivor_reports_a_dead_rank_once(run):
    """It dies before their call or in it: one error, which no other one caused."""
    how = "if comm.rank == 1: os.abort()\nelse: time.sleep(0.15 * comm.rank)"
    code, _, err = run(3, FAILS.replace("HOW", how), *PATIENT)
    assert code == 134 and err.count("PeerLostError: rank 1 is gone") == err.count("Traceback") == 2, err


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_ended_well_and_is_waited_for_is_named(run, gone):
    """It never came to init, as the launcher knows."""
    code, out, err = run(3, START + """
if rank == GONE:
    sys.exit(0)
import hocket
hocket.init(timeout=60)
""".replace("GONE", str(gone)), limits={"MEET": 0.5})
    assert code == 1
    assert re.search(rf"rank {gone} \(pid \d+\) ended with exit code 0, and others wait for it in hocket.init", err)
    assert not any(map(alive, pids(out)))


def test_ranks_need_not_end_together(run):
    """Nor all be ranks of hocket's."""
    code, out, err = run(3, START + """
if rank == 1:
    sys.exit(0)
time.sleep(1)
""", limits={"MEET": 0.3, "JUDGE": 0.3})
    assert (code, err) == (0, "")
