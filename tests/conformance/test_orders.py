"""Schedulers with random orders, with a kill and without one."""

from __future__ import annotations

import pytest

from hocket.conformance import orders


def test_random_orders_with_and_without_a_kill(capsys: pytest.CaptureFixture[str]) -> None:
    assert orders.main(["--steps", "40", "--each", "20", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "40 steps in 2 jobs" in out and "1 with a kill" in out, out
