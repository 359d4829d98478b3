"""The cost of traces, and whether they tell the truth: the commands of lab/observe/, small."""

from __future__ import annotations

import re

import pytest

from hocket.lab.observe import files, recorder
from hocket.system.namespaces.hosts import refusal

WHY_NOT = refusal("100mbit")


def test_a_trace_is_merged_written_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight million slices take less than 15 s on a quiet machine: here 200,000, with four times the room."""
    assert files.main(["--slices", "200000"]) == 0
    said = capsys.readouterr().out
    rows = {name: float(cpu) for name, cpu in re.findall(r"\| (\w+) \| [\d.]+ \| ([\d.]+) \| \d+ \|", said)}
    assert list(rows) == ["merge", "write", "read"] and "\n200184 slices, " in said, said
    assert rows["merge"] + rows["write"] < 4 * 15 * 200_000 / 8_000_000, rows


def test_the_recorder_and_a_trace_have_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert recorder.main(["--calls", "0", "--blocks", "2", "--block", "10"]) == 0
    said = capsys.readouterr().out
    number = r"-?[\d.]+%?"
    rows = re.findall(rf"\| (\d+) \| {number} \| {number} \| {number} \| {number} \| {number} \|", said)
    assert rows == ["8", "8192", "65536"], said
