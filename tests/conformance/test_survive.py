"""The killer of elastic jobs: a small job survives it, and what is wrong is found."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.conformance.survive import __main__ as survive
from hocket.conformance.survive import judge
from hocket.system.namespaces.hosts import refusal


def survives(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = survive.main(["--mb", "0.5", *words])
    out, err = capsys.readouterr()
    assert code == 0 and ", 0 with a broken law" in out, out + err
    return out


def test_a_job_on_a_mesh_survives(capsys: pytest.CaptureFixture[str]) -> None:
    out = survives(capsys, "--hosts", "0", "--events", "3", "--ranks", "4", "--each", "3", "--life", "mesh")
    assert "| again |" in out and "1 jobs mesh" in out


def test_a_crew_survives_who_does_not_fit_and_who_is_stopped_in_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    """Seed 1413 begins with these two."""
    out = survives(capsys, "--hosts", "0", "--events", "2", "--ranks", "3", "--each", "2", "--seed", "1413",
                   "--life", "crew")  # fmt: skip
    assert "| wrong newcomer | 1 |" in out and "| stop in a sum | 1 |" in out


@pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
def test_a_job_on_hosts_whose_cables_are_pulled_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """Seed 37 begins with a cable that is pulled."""
    assert "| cut | 1 |" in survives(capsys, "--events", "1", "--ranks", "3", "--each", "1", "--seed", "37")


# --- the judge

STEP = {"generation": 1, "t": 1, "digest": 7, "value": 1.5}
"""The step of two ranks, whose parts are 1 and 2."""
MET = {"generation": 1, "who": [0, 2], "before": [0, 1, 2]}
DEEDS = judge.Deeds({1: 5.0}, set())
WELL: dict[int, list[dict[str, Any]]] = {
    0: [MET, {**STEP, "seen": {"lost": {"1": "dead"}}}, {"over": True, "held": []}],
    1: [],
    2: [dict(MET), {**STEP, "seen": {"lost": {"1": "dead"}}}, {"over": True, "held": []}],
}


def wrong(line: dict[str, Any], place: int = 1, deeds: judge.Deeds = DEEDS) -> str:
    """The faults that are found when process 2 says this instead."""
    lines = {**WELL, 2: [*WELL[2][:place], line, *WELL[2][place + 1 :]]}
    return "\n".join(judge.judge(lines, deeds))


def test_a_job_without_faults_is_judged_so() -> None:
    assert judge.judge(WELL, DEEDS) == []
    assert judge.unnamed(WELL, [1], [0, 2]) == []


def test_every_broken_law_is_found() -> None:
    assert "generation 1, step 1" in wrong({**STEP, "digest": 8})
    assert "before it there was {0.0}" in wrong({**STEP, "value": 2.5})
    assert "two generations 1" in wrong({**MET, "who": [0, 1, 2]}, 0)
    assert "without [1], who did nothing" in wrong(STEP, deeds=judge.Deeds({}, {2}))
    assert "was left out" in wrong({"fenced": "the others have gone on"})
    assert "says that process 0 is dead" in wrong({**STEP, "seen": {"lost": {"0": "dead"}}})
    assert "says that process 0 is unreachable" in wrong({**STEP, "seen": {"lost": {"0": "unreachable"}}})
    assert "still has" in wrong({"over": True, "held": ["socket:[1]"]}, 2)
    assert "process 2: Traceback" in wrong({"crash": "Traceback"})
    assert "process 2 waited for 6.0 s" in wrong({"waited": 6.0})
    assert "process 2, which fits, was refused" in wrong({"refused": "every is 5"})
    assert "process 2 took part, and does not fit" in wrong(STEP, deeds=judge.Deeds({1: 5.0}, set(), wrong={2}))
    assert "before it there was {0.0}" in wrong({**STEP, "size": 1})
    said = {**STEP, "seen": {"lost": {"1": "unreachable"}}}
    found = judge.unnamed({**WELL, 2: [said]}, [1], [0, 2])
    assert found == ["process 2 does not say that [1] are dead, but ['unreachable']"]
