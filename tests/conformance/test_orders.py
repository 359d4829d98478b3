"""Schedulers of declared and agreed orders, over shared memory and TCP, with kills and without one."""

from __future__ import annotations

import random

import pytest

from hocket.conformance import orders


def test_random_orders_with_and_without_a_kill(capsys: pytest.CaptureFixture[str]) -> None:
    assert [orders.settings(random.Random(seed))["order"] for seed in (83, 84, 85)] == ["agreed", "tic", "priority"]
    assert orders.main(["--steps", "60", "--each", "20", "--seed", "83"]) == 0
    out = capsys.readouterr().out
    assert "60 steps in 3 jobs" in out and "2 with a kill" in out, out
