"""What traces cost, and whether they tell the truth: the commands of bench/observe/, small."""

from __future__ import annotations

import re

import pytest

from hocket.bench.observe import files


def test_a_trace_is_merged_written_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight million slices take less than 15 s on a quiet machine: here 200,000, with four times the room."""
    assert files.main(["--slices", "200000"]) == 0
    said = capsys.readouterr().out
    rows = {name: float(cpu) for name, cpu in re.findall(r"\| (\w+) \| [\d.]+ \| ([\d.]+) \| \d+ \|", said)}
    assert list(rows) == ["merge", "write", "read"] and "\n200184 slices, " in said, said
    assert rows["merge"] + rows["write"] < 4 * 15 * 200_000 / 8_000_000, rows
