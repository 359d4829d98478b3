"""The programs of lab/large, small: they run, and bytes, memory and bits are those of the laws.

That of torch's models runs in tests/frameworks/torch/torch_training/sharded.py, where torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hocket.lab.large import advice, experts, hierarchy, pipelines, sharding
from hocket.system.namespaces.hosts import refusal

WHY_NOT = refusal("100mbit")


Main = Callable[[Sequence[str]], int]


def tables(main: Main, words: str, capsys: pytest.CaptureFixture[str]) -> list[list[list[str]]]:
    """The cells of the rows of each table, which stands below a line about the machine."""
    assert main(words.split()) == 0
    blocks, found = capsys.readouterr().out.strip().split("\n\n"), []
    for machine, block in zip(blocks[::2], blocks[1::2], strict=True):
        head, _, *rows = block.splitlines()
        found.append([[cell.strip() for cell in row.strip("|").split("|")] for row in rows])
        assert "cores, load" in machine and {len(cells) for cells in found[-1]} == {head.count("|") - 1}
    return found


def table(main: Main, words: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    (rows,) = tables(main, words, capsys)
    return rows


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_bytes_memory_and_bits_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(sharding.main, "--ranks 2 --floats 400000 --steps 4", capsys)
    assert [row[0] for row in rows] == ["whole", "stage 1", "stage 2", "stage 3"]
    for row in rows:
        assert float(row[2]) == pytest.approx(float(row[3]), rel=0.04), row
        assert float(row[4]) == pytest.approx(1 if row[0] == "whole" else 0.5, rel=0.01), row
        assert row[8] == "equal"


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_bytes_between_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(hierarchy.main, "--ranks 2 --bytes 400K --rounds 1", capsys)
    assert len(rows) == 6
    for row in rows:
        assert float(row[1]) == pytest.approx(float(row[2]), rel=0.06), row
    assert float(rows[2][5]) > 1 and float(rows[3][5]) > 1


def test_bubbles_and_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    rows, again = tables(pipelines.main, "--ranks 2 --micro 2,4 --pass 15", capsys)
    assert [row[0] for row in rows] == [way for way in pipelines.WAYS for _ in "24"]
    for way, ranks, micro, idle, law, _, kept, gradients in rows:
        assert float(idle) == pytest.approx(float(law), abs=0.15), (way, micro)  # 0.5 if stages took turns
        most = {"gpipe": int(micro), "interleaved": 2 * (int(ranks) - 1) + 2 + 1}.get(way, int(ranks))
        assert int(kept) == min(most, int(micro) * pipelines.WAYS[way]) and gradients == "equal"
    assert [row[0] for row in again] == ["gpipe", "gpipe", "1f1b", "1f1b"]
    for row in again:
        assert 1 < float(row[5]) < 2 and float(row[7]) < float(row[6]) and row[8] == "equal", row


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_rows_of_experts_and_messages_between_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(experts.main, "--ranks 2 --tokens 16 --width 32 --rounds 5", capsys)
    assert len(rows) == 8
    for _, capacity, _, difference, dropped, sent, _, messages in (row[:8] for row in rows):
        assert float(difference) < 1e-6 and int(messages) > 0
        assert (int(dropped) > 0) == (capacity == "1.25")
        assert float(sent) == pytest.approx(1, abs=0.02) if capacity == "" else float(sent) < 1
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        assert float(two[6]) < 0.95 * float(one[6]), "a message to each other host, instead of to each rank there"


@pytest.mark.more  # 13 s; the table is run by hand
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_step_as_advised(capsys: pytest.CaptureFixture[str]) -> None:
    """Not how long it takes, where 8 ranks share cores with other tests: at least as long as it must."""
    ((data, pipe, tensor, micro, predicted, measured, _),) = table(advice.main, "--best 1 --steps 1", capsys)
    assert int(data) * int(pipe) * int(tensor) == 8 and int(micro) >= 1
    assert float(measured) > 0.8 * float(predicted)
