"""`hocket bench allreduce --codec ... --link ...`: real hosts, real bytes, and what is refused."""

from __future__ import annotations

import os

import pytest

from hocket.bench.__main__ import main
from hocket.system.namespaces.hosts import PREFIX, ip, refusal

WHY_NOT = refusal("100mbit")


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, list[float]]:
    """The numbers of each codec."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip().rstrip("%") for cell in line.strip("|").split("|")] for line in lines]
    return {name: [float(cell) if cell != "-" else 0.0 for cell in numbers] for name, *numbers in cells}


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_over_a_slow_cable(capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer bytes by the counter of the cable, and so less time.  By a Compressor, too: rank 4 of 256 rows of 1,024,
    and a hundredth of the elements with their places."""
    codecs = "int8,int4,auto,powersgd:4,topk:0.01"
    assert main(["allreduce", "--codec", codecs, "--link", "50mbit", "-e", "1M"]) == 0
    rows = table(capsys)
    for name, share in (("float32", 1), ("fp16", 1 / 2), ("int8", 65 / 256), ("int4", 17 / 128)):
        cable, _, _, _, faster, _, _, _ = rows[name]
        assert share * 0.97 < cable < share * 1.06 + 0.01, (name, cable)
        assert (min(1.2, 0.25 / share) if share < 1 else 0.9) < faster < 1.5 / share, (name, faster)
    # int8, or bf16 if other programs had the cores while codecs were measured.
    assert rows["auto"][0] < 0.52, "float32 over 50 Mbit/s"
    assert rows["int4"][7] > rows["int8"][7] > rows["float32"][7]
    assert 0.02 < rows["powersgd:4"][0] < 0.12 and 0.02 < rows["topk:0.01"][0] < 0.1 < rows["int8"][0], rows
    assert rows["int8"][7] < 0.05 < 0.5 < rows["topk:0.01"][7] < rows["powersgd:4"][7] < 1.1, "normal numbers"
    assert f"{PREFIX}{os.getpid()}" not in ip("netns", "list")


def test_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allreduce", "--codec", "sign", "-n", "2", "-e", "64K", "--transport", "tcp"]) == 0
    assert set(table(capsys)) == {"float32", "fp16", "sign"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["allgather", "--codec", "int8"], "--codec compares allreduces, not allgather"),
        (["allreduce", "--codec", "int9"], "'int9' is unknown"),
        (["allreduce", "--link", "fast"], "--link fast: expected a rate in tc's words, such as 100Mbit, or none"),
        (["allreduce", "--codec", "topk:many"], "'topk:many'"),
    ],
)
def test_what_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_ranks_that_cannot_be_dealt(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["allreduce", "--link", "1gbit", "-n", "3"])
    assert "must be a multiple of the 2 hosts" in capsys.readouterr().err
