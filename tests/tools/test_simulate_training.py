"""`hocket simulate training`: which method pays over such links, and how often."""

from __future__ import annotations

import pytest

from hocket.tools import simulate

SLOW = ["training", "--parameters", "1M", "--step", "100ms", "--size", "2", "--topology"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[tuple[str, int], tuple[list[float], bool]]:
    """By method and `every`: kB sent, ms exposed, times as fast; and is it marked?"""
    assert simulate.main(words) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith("#"):
            name, cells = line[:21].strip(), line[21:].replace("%", "").split()
            found[name, int(cells[0])] = ([float(cells[i]) for i in (1, 2, 4)], "<- pays" in line)
    return found


def test_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """4 MB over 100 Mbit/s between two ranks take 320 ms each way, and are reduced in no time."""
    rows = run(capsys, *SLOW, "flat:latency=0us,bandwidth=100Mbit,overhead=0us,reduce=1000TB", "--every", "1,4,16,64")
    sent, exposed, faster = rows["every gradient", 1][0]
    assert sent == 4000 and exposed == pytest.approx(320, rel=0.02) and faster == 1
    for k in (4, 16, 64):
        sent, exposed, faster = rows["LocalSGD, DiLoCo", k][0]
        assert sent == pytest.approx(4000 / k) and exposed == pytest.approx(320 / k, rel=0.03)
        assert faster == pytest.approx(420 / (100 + 320 / k), rel=0.03)
        assert rows["the same, int8", k][0][1] == pytest.approx(exposed * 8.125 / 32, rel=0.1)
        assert rows["NoLoCo", k][0][1] == pytest.approx(640 / k, rel=0.02)
        assert rows["SparseLoCo", k][0][1] < exposed / 100
    assert rows["StreamingDiLoCo", 4][0][1] == pytest.approx(80, rel=0.05), "delay 0 hides nothing"
    assert rows["StreamingDiLoCo", 16][0][1] == 0, "80 ms behind three steps"
    marked = {key for key, (_, pays) in rows.items() if pays}
    assert marked == {
        ("LocalSGD, DiLoCo", 64), ("the same, int8", 16), ("StreamingDiLoCo", 16), ("SparseLoCo", 4), ("NoLoCo", 64)
    }


def test_fast_links_need_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main([*SLOW, "flat:latency=1us,bandwidth=100Gbit", "--every", "4"]) == 0
    out = capsys.readouterr().out
    assert "fast enough to average every gradient" in out and "# assumed: every rank computes" in out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--parameters", "many"), "expected a number such as 85M"),
        (("--step", "5"), "expected a time such as 250ms"),
        (("--size", "1"), "--size must be at least 2"),
        (("--every", "0"), "--every"),
        (("--topology", "flat:speed=3"), "topology"),
    ],
)
def test_what_is_refused(words: tuple[str, str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        simulate.main([*SLOW, "flat:latency=1us,bandwidth=1Gbit", *words])
    assert ended.value.code == 2 and what in capsys.readouterr().err
