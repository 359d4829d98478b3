"""Waiting ranks know what they have computed, and learn about the core that they share."""

from __future__ import annotations

from pathlib import Path

from support import c_rules


def test_who_has_computed_sleeps_without_a_yield(tmp_path: Path) -> None:
    c_rules.hold(Path(__file__).parent / "wait_rules.c", tmp_path)


def test_how_long_a_thread_had_no_core_is_read_by_itself(tmp_path: Path) -> None:
    c_rules.hold(Path(__file__).parent / "run_delay_rules.c", tmp_path)
