"""Copies of many bytes: what memcpy copies, no byte more, at each length and offset."""

from __future__ import annotations

from pathlib import Path

from support import c_rules


def test_copies_are_whole_and_stay_inside(tmp_path: Path) -> None:
    c_rules.hold(Path(__file__).parent / "copy_rules.c", tmp_path)
