"""Damaged traces and recordings are read or refused; what is not is told with its seed."""

from __future__ import annotations

import pytest

from hocket.observe.files import reading
from support import hostile

pytestmark = pytest.mark.usefixtures("empty_recorder")


def test_files_are_read_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert hostile.main(["--count", "400"]) == 0
    assert capsys.readouterr().out == "400 files, seeds 0 to 399: 0 failed\n"


def test_what_is_not_refused_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "checked", lambda timeline: 1 / 0)
    assert hostile.main(["--count", "300"]) == 1
    out = capsys.readouterr().out
    assert "ZeroDivisionError" in out and "again: python -m support.hostile --of files --seed" in out
