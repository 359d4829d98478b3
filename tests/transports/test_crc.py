"""A check of bytes is the same on all processors, and however they come: ranks of several kinds compare it."""

from __future__ import annotations

from pathlib import Path

from support import c_rules


def test_a_check_is_the_same_everywhere(tmp_path: Path) -> None:
    c_rules.hold(Path(__file__).parent / "crc_rules.c", tmp_path)
