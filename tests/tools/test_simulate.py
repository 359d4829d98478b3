"""`hocket simulate`: the table, the files, and what is refused."""

from __future__ import annotations

import json
import pathlib
import re
import sys

import pytest

from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.fabric import Fabric
from hocket.collectives.choice.tuning import Tuning
from hocket.tools import simulate

HOSTS = "hosts:2x4,inside=0.3us/10GB,link=20us/10Gbit"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[list[str]], str]:
    """The cells of the rows that a command line prints, and what it says on stderr."""
    assert simulate.main(words) == 0
    out, err = capsys.readouterr()
    return [text.partition("  <- ")[0].split() for text in out.splitlines() if not text.startswith("#")], err


def test_every_algorithm_size_and_length(capsys: pytest.CaptureFixture[str]) -> None:
    rows, err = run(capsys, "allreduce", "--size", "4,8", "--bytes", "8,1M", "--topology", HOSTS)
    assert sorted(row[0] for row in rows[:7]) == sorted(row[0] for row in rows[7:14])
    assert "ring" in [row[0] for row in rows[:7]]
    assert [row[0] for row in rows].count("hierarchical") == 2, "of 8 ranks only: 4 are on one host"
    assert {(row[1], row[2]) for row in rows} == {(p, n) for p in ("4", "8") for n in ("8", "1048576")}
    assert err == ""


def test_the_fastest_comes_first_and_the_own_choice_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["allreduce", "--size", "4,8", "--bytes", "8,1M", "--topology", HOSTS]) == 0
    lines = [text for text in capsys.readouterr().out.splitlines() if not text.startswith("#")]
    tables: dict[tuple[str, ...], list[str]] = {}
    for text in lines:
        tables.setdefault(tuple(text.split()[1:3]), []).append(text)
    assert len(tables) == 4
    for (size, nbytes), table in tables.items():
        times = [float(text.split()[3]) for text in table]
        assert times == sorted(times)
        assert "<- best" in table[0] and sum("best" in text for text in table) == 1
        (own,) = [text.split()[0] for text in table if "hocket's choice" in text]
        where = Fabric((4,) * (int(size) // 4), "shm", "tcp", 64 << 10)
        assert own == choose(Tuning(), "allreduce", int(nbytes), where).name


def test_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """A broadcast of 1 MiB over 1 Gbit/s: 8.389 ms, in 5 segments of 240 KiB."""
    spec = "flat:latency=0us,bandwidth=1Gbit,overhead=0us"
    words = ("--algorithm", "direct", "--size", "2", "--bytes", "1M", "--topology", spec)
    rows, _ = run(capsys, "broadcast", *words)
    assert rows == [["direct", "2", "1048576", "8389", "0.125", "0.125", "5", "1048576", "rank", "0", "out", "(100%)"]]


def test_what_is_assumed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """It decides on fast links; `--help` says how it is given."""
    words = ("broadcast", "--algorithm", "direct", "--size", "2", "--bytes", "8", "--topology")
    assert simulate.main([*words, HOSTS]) == 0
    assert "\n# assumed: overhead=1us (inside a host 0.3us), reduce=10GB\n" in capsys.readouterr().out
    assert simulate.main([*words, f"{HOSTS},overhead=1us,reduce=1GB"]) == 0
    assert "assumed" not in capsys.readouterr().out
    told = simulate.parser().format_help()
    assert "each with [,overhead=TIME][,reduce=RATE]" in told
    assert "overhead: CPU time of a message, at each end (1us, or the latency if that is less)" in told
    assert "reduce: what a rank adds up in a second (9GB, or what its fastest link carries if that is more)" in told


def test_json_and_plot(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    words = ("--algorithm", "ring,hierarchical", "--bytes", "1M", "--topology", HOSTS)
    file, picture = tmp_path / "rows.json", tmp_path / "time.png"
    table = tmp_path / "table.md"
    rows, _ = run(capsys, "allreduce", "--size", "8", *words, "--json", str(file), "--markdown", str(table))
    wanted = f"| ranks | 8 |\n|---|---|\n| hierarchical | {rows[0][3]} |\n| ring | {rows[1][3]} |\n"
    assert f"\n1 MiB\n\n{wanted}" in table.read_text()
    assert " --size 8 --bytes 1M --algorithm ring,hierarchical --topology " + HOSTS in table.read_text()
    written = json.loads(file.read_text())
    assert written["topology"] == HOSTS
    assert [row["algorithm"] for row in written["rows"]] == ["hierarchical", "ring"]
    for row, cells in zip(written["rows"], rows, strict=True):
        assert round(row["time_us"]) == int(cells[3]) and row["messages"] == int(cells[6]) and row["simulated"] == 4
    pytest.importorskip("matplotlib")
    for sizes in ("8", "6,8"):
        run(capsys, "allreduce", "--size", sizes, *words, "--plot", str(picture))
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


@pytest.mark.parametrize(
    ("sizes", "lengths", "title"),
    [("8", "8,1M", f"allreduce on 8 ranks in {HOSTS}"), ("4,8", "1M", f"allreduce of 1 MiB on {HOSTS}")],
)
def test_a_picture_says_what_is_the_same_everywhere(
    sizes: str, lengths: str, title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("hocket.bench.harness.plot.plot_simulated", lambda path, title, *rows: seen.append(title))
    monkeypatch.setattr(simulate, "find_spec", lambda name: True)
    words = ("--algorithm", "ring", "--size", sizes, "--bytes", lengths, "--plot", str(tmp_path / "x.png"))
    assert simulate.main(["allreduce", *words, "--topology", HOSTS]) == 0
    assert seen == [title]


def test_what_would_take_too_long_is_mentioned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["hocket.algorithms.prediction.simulate"], "MOST_STEPS", 100)
    words = (
        "--algorithm",
        "chain,direct",
        "--size",
        "40",
        "--bytes",
        "8",
        "--topology",
        "flat:latency=1us,bandwidth=1GB",
    )
    assert simulate.main(["broadcast", *words]) == 1
    out, err = capsys.readouterr()
    assert [text.split()[0] for text in out.splitlines() if text[0] != "#"] == ["direct"]
    assert "# not simulated: broadcast chain, 40 ranks, 8 bytes: more than 1,560 steps" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--topology", "ring"], "expected flat:latency=TIME"),
        (["--size", "0"], "--size '0': expected numbers of ranks"),
        (["--size", "4,x"], "--size 'x'"),
        (["--size", "9"], "9 ranks: expected 1 or more, and at most 8, the ranks of this topology"),
        (["--bytes", "1X"], "'1X' is not a size"),
        (["--algorithm", "rung"], "no allreduce algorithm 'rung'; known: one_shot"),
        (["--root", "8"], "--root 8 is not one of 8 ranks"),
        (["--json", "/nowhere/rows.json"], "/nowhere/rows.json cannot be written"),
    ],
)
def test_what_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"--size": "8", "--bytes": "8", "--topology": HOSTS, "--algorithm": "ring"} | {words[0]: words[1]}
    with pytest.raises(SystemExit) as left:
        simulate.main(["allreduce", *(word for pair in good.items() for word in pair)])
    assert left.value.code == 2
    assert re.search(re.escape(why), capsys.readouterr().err)


def test_no_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        simulate.main(["allreduce", "--size", "8", "--bytes", "8", "--topology", HOSTS, "--plot", "x.png"])
    assert "--plot needs matplotlib (pip install matplotlib)" in capsys.readouterr().err
