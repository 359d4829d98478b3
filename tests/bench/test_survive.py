"""The killer of elastic jobs: a small job survives it, and what is wrong is found."""

from __future__ import annotations

import pytest

from hocket.bench import survive


def test_a_job_survives(capsys: pytest.CaptureFixture[str]) -> None:
    code = survive.main(["--seconds", "8", "--mb", "0.5", "--ranks", "3", "--events", "3"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "| again |" in out and ", 0 with a broken law" in out


def test_bits_that_differ_and_two_parts_are_found() -> None:
    line = {"generation": 1, "t": 5, "digest": 7, "size": 3}
    assert survive.differs([line, dict(line), {**line, "t": 6, "digest": 8}]) == []
    assert len(survive.differs([line, {**line, "digest": 8}])) == 1
    assert len(survive.differs([line, {**line, "size": 2}])) == 1
