"""Spoilt frames, words, seats and snapshots are taken as they are meant, or end their sender's link."""

from __future__ import annotations

import pytest

from hocket.training.server import views
from support import hostile

pytestmark = pytest.mark.usefixtures("empty_recorder")


@pytest.mark.parametrize("what", ["frames", "words", "seats", "snapshots"])
def test_they_are_taken_or_refused(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hostile.main(["--of", what, "--count", "300"]) == 0
    assert capsys.readouterr().out == f"300 {what}, seeds 0 to 299: 0 failed\n"


def test_what_is_not_refused_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_settles", lambda settings, serves: 1 / 0)
    assert hostile.main(["--of", "words", "--count", "50"]) == 1
    assert "again: python -m support.hostile --of words --seed" in capsys.readouterr().out
