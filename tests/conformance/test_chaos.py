"""The killer: deaths and pauses end as promised, and what does not is found and told with what repeats it."""

from __future__ import annotations

import pathlib
import shlex
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest

from hocket.conformance.chaos import __main__ as chaos
from hocket.conformance.chaos.judge import LIMIT, MET, TIMEOUT, VERDICT, Observed, judge
from hocket.conformance.chaos.rank import MEETING, PHASES
from hocket.conformance.jobs.trial import EMPTY


def test_deaths(capsys: pytest.CaptureFixture[str]) -> None:
    """Four phases, ways to die, over every transport that this machine has; `make fuzz` goes on from here."""
    code = chaos.main(["--count", "4", "--seed", "118", "--slack", "8"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "| phase | how |" in out and out.count("| 0 |\n") > 2 and out.count("| kill |") >= 1, out


# ------------------------------------------------------------------------------------------------ faults

FAULTY = """
import os, pathlib, sys, time
import hocket
from hocket.conformance.chaos import rank
{fault}
sys.exit(rank.main(sys.argv[1:]))
"""
LATE_AND_LITTER = """
right = rank.failed
def failed(life, error):
    (pathlib.Path(os.environ["TMPDIR"]) / "litter").touch()
    time.sleep(1.6)
    right(life, error)
rank.failed = failed
"""
ANOTHER_NAME = """
right = rank.failed
def failed(life, error):
    right(life, hocket.errors.PeerLostError("it was someone else", [r for r in range(3) if r not in error.ranks]))
rank.failed = failed
"""
OTHER_ERROR = """
def small(life):
    try:
        while True:
            life.world.barrier()
    except hocket.Error:
        raise ZeroDivisionError
rank.PHASES["small"] = small
"""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (LATE_AND_LITTER, ["knew it after ", "left behind: tmp/litter"]),
        (ANOTHER_NAME, ["did not name ["]),
        (OTHER_ERROR, ["ended with 3: ", "ZeroDivisionError"]),
    ],
    ids=["late", "name", "crash"],
)
def test_a_fault_is_found(
    fault: str, told: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(FAULTY.format(fault=fault))
    first = "--seed 4 --count 1 --ranks 3 --transport shm --phase small --how kill"
    assert chaos.main([*first.split(), "--slack", "0.5"], [sys.executable, str(script)]) == 1
    out = capsys.readouterr().out
    assert all(each in out for each in told), out
    again = next(line for line in out.splitlines() if line.startswith("again: "))
    assert again == f"again: python -m hocket.conformance.chaos {first}"


def test_a_seed_is_a_plan() -> None:
    everything: tuple[Any, ...] = (range(2, 6), ["shm", "tcp"], list(PHASES), chaos.HOWS)
    scenarios = [chaos.scenario(seed, *everything) for seed in range(300)]
    assert scenarios == [chaos.scenario(seed, *everything) for seed in range(300)]
    assert {p.phase for p in scenarios} == set(PHASES) and {p.how for p in scenarios} == set(chaos.HOWS)
    assert all(p.late != p.victim and (p.late >= 0) == (p.phase == "meeting") for p in scenarios)
    for p in scenarios[:50]:  # the command that repeats it is for the same scenario
        words = shlex.split(p.again)
        given = dict(zip(words[3::2], words[4::2], strict=True))
        names = [given["--transport"]], [given["--phase"]], [given["--how"]]
        assert chaos.scenario(int(given["--seed"]), [int(given["--ranks"])], *names) == p


# ------------------------------------------------------------------------------------------------ the law

AT = 100.0


def lost(named: int, after: float = 0.05, error: str = "PeerLostError") -> dict[str, Any]:
    return {"error": error, "named": [named], "text": "...", "at": AT + after}


def seen(*of_rank_0: dict[str, Any], how: str = "kill", began: float = 1.0, victim: int = 1, turn: int = 0) -> Observed:
    """A job of two ranks, both in calls, where rank 0 said this after rank 1 was hit."""
    ready = [{"state": state, "turn": 0, "at": AT - began} for state in ("init", "ready")]
    its = [{**each, "turn": turn} for each in ready]
    said = [[*ready, *of_rank_0], its] if victim else [its, [*ready, *of_rank_0]]
    codes = [0, -signal.SIGKILL] if victim else [-signal.SIGKILL, 0]
    return Observed(victim, how, AT, AT, said, codes, ["", ""])


def meeting(late: float) -> Observed:
    """Rank 2 was killed before rank 0, which was held back for so long, had come; rank 1 found nobody."""
    first, coordinator = AT - MEETING, AT - MEETING + late
    said: list[list[dict[str, Any]]] = [[{"state": "init", "turn": 0, "at": at}] for at in (coordinator, first, first)]
    said[0] += [lost(2, late - MEETING), CLOSED]
    said[1] += [lost(0, 0.0, "TimeoutError"), CLOSED]
    return Observed(2, "kill", AT - 1, AT - 1, said, [0, 0, -signal.SIGKILL], ["", "", ""])


def gave_up(after: float) -> Observed:
    """Rank 2 was killed, so rank 0 raised, so long after rank 1 had come (and not yet connected): nobody was there."""
    said: list[list[dict[str, Any]]] = [[{"state": "init", "turn": 0, "at": AT + at}] for at in (-0.5, 0.0, -0.5)]
    said[0] += [lost(2, after), CLOSED]
    said[1] += [lost(0, MEETING, "TimeoutError"), CLOSED]
    return Observed(2, "kill", AT, AT, said, [0, 0, -signal.SIGKILL], ["", "", ""])


LATER = {"second": "refused", "elsewhere": True}
CLOSED = {"closed": 0.1, "how": "", "left": []}
NEXT = [{"state": "closing", "turn": 0, "at": AT + 0.001}, {"state": "init", "turn": 1, "at": AT + 0.01}]


def test_what_is_right() -> None:
    for fine in (
        seen(lost(1), {"second": "refused", "seconds": 0.0}, CLOSED),
        seen(lost(1, TIMEOUT + 0.1, "TimeoutError"), CLOSED, how="stop"),
        seen(lost(2, TIMEOUT + VERDICT, "TimeoutError"), CLOSED, how="stop", victim=0),
        seen(lost(1, TIMEOUT, "TimeoutError"), {**LATER, "seconds": TIMEOUT}, how="stop"),
        seen(lost(1, MEETING, "TimeoutError"), CLOSED, turn=1),  # it was not yet in the meeting that we are in
        seen(*NEXT, lost(1, MEETING, "TimeoutError"), CLOSED),  # rank 1 died when its part in the last call was done
        meeting(MEETING),
        gave_up(0.1),
    ):
        assert judge(fine, 0.5).wrong == []
    paused = replace(seen({"finished": True}, CLOSED, how="pause"), codes=[0, 0])
    paused.said[1] += [{"finished": True}, CLOSED]
    assert judge(paused, 0.5).wrong == [] and judge(paused, 0.5).outcomes == ["finished", "finished"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (seen(lost(1, LIMIT + 0.6)), "knew it after 1.60 s"),
        (seen(lost(0)), "did not name [1]"),
        (seen(*NEXT, lost(1, MEETING + 0.6, "TimeoutError")), "knew it after 4.59 s"),
        (gave_up(0.9), "rank 1 raised after 4.00 s TimeoutError naming [0]"),
        (meeting(1.0), "rank 1 raised after 1.00 s TimeoutError naming [0]"),
        (seen(lost(1, error="MismatchError")), "raised after 0.05 s MismatchError"),
        (seen(lost(1, error="TimeoutError")), "raised after 0.05 s TimeoutError"),
        (seen(), "raised nothing"),
        (seen({"finished": True}), "raised nothing"),
        (seen(lost(1), {"second": "no error"}), "second call without an error"),
        (seen(lost(1), {"second": "refused", "seconds": 0.9}), "second call refused after"),
        (seen(lost(1), {**LATER, "seconds": 0.9}), "second call refused after"),
        (seen(lost(1), {**CLOSED, "closed": 5.0}), "took 5.00 s to close"),
        (seen(lost(1), {**CLOSED, "left": ["socket:[1]"]}), "still holds ['socket:[1]']"),
        (seen(lost(1, 0.1), how="pause"), "though the rank went on"),
        (seen(lost(1, 9.0, "TimeoutError"), how="stop"), "knew it after 9.00 s"),
        (replace(seen(), codes=[None, -9]), "did not end"),
        (replace(seen(lost(1)), codes=[-11, -9], cried=["Segmentation fault", ""]), "Segmentation fault"),
        (replace(seen(lost(1)), left=["tmp/x"]), "left behind: tmp/x"),
        (replace(seen(lost(1)), left=[f"tmp/x{EMPTY}"]), "left behind: tmp/x (a folder with nothing but a socket)"),
    ],
)
def test_what_is_wrong(what: Observed, told: str) -> None:
    wrong = judge(what, 0.5).wrong
    assert len(wrong) >= 1 and told in "; ".join(wrong), wrong


def test_who_is_killed_while_meeting_may_leave_an_empty_folder() -> None:
    meeting = seen(lost(1))
    del meeting.said[1][1]  # it was not ready yet
    assert judge(replace(meeting, left=[f"tmp/x{EMPTY}"]), 0.5).wrong == []
    assert judge(replace(meeting, left=["tmp/x"]), 0.5).wrong == ["left behind: tmp/x"]


def test_who_has_not_met_may_time_out() -> None:
    """A rank that was killed within MET of its init may be taken for one that never came."""
    for began, allowed in ((MET / 2, True), (MET * 2, False)):
        meeting = seen(lost(1, 3.0, "TimeoutError"), began=began)
        for said in meeting.said:
            said[:] = [each for each in said if each.get("state") != "ready"]
        assert (judge(meeting, 0.5).wrong == []) == allowed
        stopped = replace(meeting, how="stop-kill", hit=AT - began + MET / 2)  # long before it was killed
        assert judge(stopped, 0.5).wrong == []
