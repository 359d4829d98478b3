"""`make compare`: the judgement, and a real run of a line or two."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.bench.compare import LimitsTeam, Result, line, title
from hocket.bench.harness import others, page
from hocket.bench.harness.result import file_name, read
from hocket.bench.harness.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "bench" / "results").glob("compare-*.json"))


def result(target: Target, **seconds: float) -> Result:
    made = Result(target, seconds, {}, "ring")
    made.judge()
    return made


def test_the_better_thread_level_of_the_best_mpi_counts() -> None:
    target = Target(2, 1024, mpi=0.5)
    met = result(target, hocket=1e-6, mpich=4e-6, openmpi=3e-6, **{"mpich-single": 2e-6}, gloo=1e-9)
    assert met.fastest_mpi == ("mpich-single", 2e-6) and met.verdicts == []
    missed = result(target, hocket=1.1e-6, mpich=4e-6, **{"mpich-single": 2e-6})
    assert missed.verdicts == ["0.55 x MPI > 0.5"]
    assert "| 0.55 |  |  | 0.5 |" in line(missed) and line(missed).endswith("0.55 x MPI > 0.5 |")


def test_beside_an_mpi_the_same_processes_count() -> None:
    """Ratios are taken block by block, to the MPI that hocket is worst against, not to the one that is fastest
    elsewhere."""
    blocks = {
        "mpich": [4.0, 8.0, 4.0], "hocket beside mpich": [2.0, 4.0, 8.0],
        "openmpi": [10.0, 10.0, 10.0], "hocket beside openmpi": [9.0, 9.0, 1.0],
    }  # fmt: skip
    made = Result(Target(2, 8, mpi=0.6), {"hocket": 1.0, "mpich": 4.0, "openmpi": 10.0}, blocks, "ring")
    made.judge()
    assert made.worst_mpi == ("openmpi", 10.0, 0.9) and made.fastest_mpi == ("mpich", 4.0)
    assert made.verdicts == ["0.90 x MPI > 0.6"] and "(openmpi) |  | 0.90 |  |  | 0.6 |" in line(made)


def test_blocks_are_sorted_by_how_far_apart_the_cores_were() -> None:
    blocks = {
        "line beside mpich": [0.10, 0.45, 0.12, 0.11], "mpich": [4.0, 4.0, 4.0, 8.0],
        "hocket beside mpich": [1.0, 8.0, 2.0, 6.0],
    }  # fmt: skip
    made = Result(Target(2, 8), {"hocket": 1.0, "mpich": 4.0}, blocks, "ring")
    assert made.by_distance(page.nearest([made])) == [(0.5, 3), (2.0, 1)]
    assert "| 0.50 (3) | 2.00 (1) |" in line(made, page.nearest([made]))
    outlier = Result(Target(2, 8), {}, {"line beside mpich": [0.04, *[0.1] * 20]}, "ring")  # a rank started late
    assert made.by_distance(page.nearest([made, outlier])) == [(0.5, 3), (2.0, 1)]


def test_what_falls_short_is_said() -> None:
    target = Target(2, 64 << 20, gloo=4, us=100, limit=1.2)
    verdicts = result(target, hocket=150e-6, gloo=300e-6, limits=100e-6).verdicts
    assert verdicts == ["2.0 x faster than Gloo < 4", "150.00 us > 100", "1.50 x the machine > 1.2"]


def test_what_falls_short_of_ourselves_or_beside_a_neighbour_is_said() -> None:
    made = Result(Target(2, 8, own=0.6, busy=True), {"hocket": 7e-6}, {}, "ring")
    made.plain, own = 10e-6, (3e-6, 12e-6)
    made.tails = {"hocket": own, "openmpi": (5e-6, 20e-6), "openmpi-single": (5e-6, 11e-6), "mpich": (None, 1e-6)}
    made.judge()
    assert made.verdicts == ["0.70 x our float32 > 0.6", "p99 12.0 us > openmpi-single's 11.0"]
    assert "| 3.00, 12.00 |" in line(made) and "a busy neighbour" in line(made)


def test_every_line_has_a_title_of_its_own() -> None:
    titles = [title(t) for t in TARGETS]
    assert len(set(titles)) == len(titles) and "allreduce 64 KiB, 4 ranks" in titles


class Heard:
    """A team that remembers its orders."""

    name = about = "heard"
    beside = None

    def order(self, do: str, **fields: object) -> list[dict[str, object]]:
        self.last = do, fields
        return []

    def close(self) -> None: ...


def test_the_machine_moves_what_the_ranks_would() -> None:
    """Over TCP p ranks send 2(p - 1)n bytes in all, and one socket carries n each way."""
    heard = Heard()
    machine = LimitsTeam(heard, Target(4, 1 << 20, transport="tcp"))
    machine.order("prepare", collective="allreduce", size=4, count=1 << 18)
    assert heard.last == ("prepare", {"collective": "duplex", "size": 2, "count": 3 << 18})
    machine.order("time", iterations=3)
    assert heard.last == ("time", {"iterations": 3})


@pytest.mark.timeout(300)  # MPIs wait without yielding: beside another program's they take milliseconds a call
@pytest.mark.parametrize(
    ("only", "peer"),
    [("barrier", "mpich"), pytest.param("1 MiB, 2 ranks, tcp", "openmpi-single", marks=pytest.mark.more)],
)
def test_a_run(only: str, peer: str, tmp_path: Path) -> None:
    """A line beside Gloo, an MPI and the machine."""
    picture, written = tmp_path / "compare.png", tmp_path / "page.md"
    words = [sys.executable, "-m", "hocket.bench.compare", "--only", only, "--peers", f"gloo,{peer}"]
    written.write_text(f"before\n{page.NEXT}\nafter\n")
    words += ["--time", "0.02", "--blocks", "2", "--json", str(tmp_path), "--plot", str(picture)]
    words += ["--page", str(written)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "1 lines, " in done.stdout
    (file,) = tmp_path.glob("compare-*.json")
    about, (pingpong, row) = read(str(file))
    processor = about["machine"]["processor"]
    assert file.name == file_name(processor)
    text = written.read_text()
    assert text.startswith(f"before\n## {processor}\n\n{page.mark(processor)}\n{processor}, ")
    assert text.endswith(f"|\n{page.END}\n\n{page.NEXT}\nafter\n") and f"\n| {only}" in text.replace("allreduce ", "")
    assert pingpong.target.collective == "pingpong" and 0.01e-6 < pingpong.ours < 1e-3
    assert {"hocket", "gloo", peer} <= set(row.seconds), done.stderr
    assert len(row.blocks[f"hocket beside {peer}"]) == len(row.blocks[peer]) == 2
    assert all(0 < p90 <= p99 for p90, p99 in row.tails.values()) and {f"hocket beside {peer}", peer} == set(row.tails)
    assert sum(n for _, n in row.by_distance(min(row.lines))) == 2, "each of them near or far"
    assert row.seconds.get("limits", 1) > 10e-6, "a megabyte takes longer than that"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_page_has_a_section_for_each_kind_of_cpu(tmp_path: Path) -> None:
    """A second run on the same kind replaces the first; what stands around it stays."""
    path = tmp_path / "page.md"
    path.write_text(f"# Measured\n\n{page.NEXT}\n\n## Other costs\n")
    for processor, us in (("One", 1.0), ("Two", 2.0), ("One", 3.0)):
        about = {"machine": {"processor": processor, "usable_cores": 2, "load": [0.0]}, "date": "1 May 2026"}
        page.into_section(str(path), about, [result(Target(2, 8), hocket=us * 1e-6)])
    text = path.read_text()
    assert [each for each in text.splitlines() if each[:2] in ("# ", "##", "| ") and "| what" not in each] == [
        "# Measured", "## One", "| allreduce 8 B, 2 ranks | 3.00 |" + "  |" * 12,
        "## Two", "| allreduce 8 B, 2 ranks | 2.00 |" + "  |" * 12, "## Other costs",
    ]  # fmt: skip


def test_tables_of_other_programs_stand_behind_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, small."""
    small = ["hocket.bench.first_barrier", "PEERS", "-n", "2", "--turns", "1"]
    monkeypatch.setattr(others, "OTHERS", {"Starting": small})
    about = {"others": others.measured(["gloo", "openmpi", "openmpi-single"])}
    about |= {"date": "today", "machine": {"processor": "X", "usable_cores": 2, "load": [0.0]}}
    lines = page.table(about, []).splitlines()
    command = "`python -m hocket.bench.first_barrier openmpi -n 2 --turns 1`"
    assert any(each.startswith(f"**Starting**: {command}, ") for each in lines)
    assert [row.split(" | ")[0] for row in lines[-3:]] == ["| hocket run", "| hocket run --no-fork", "| openmpi"]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_page_shows_what_was_measured(path: Path) -> None:
    about, found = read(str(path))
    processor = about["machine"]["processor"]
    shown = (ROOT / "bench" / "results" / "compare.md").read_text()
    assert f"\n## {processor}\n\n{page.mark(processor)}\n{page.table(about, found)}\n{page.END}\n" in shown
    assert path.name == file_name(processor)


def lines_of(path: Path) -> dict[str, list[str]]:
    """The cells of each measured line on a kind of CPU: hocket's time, its part of the MPI's, how many times faster
    than Gloo."""
    cells = [[cell.strip() for cell in line(each).split("|")[1:-1]] for each in read(str(path))[1]]
    return {what: [us, mpi, gloo] for what, us, _, _, _, mpi, _, _, _, gloo, *_ in cells}


def rows_under(page: Path, *head: str) -> list[list[str]]:
    """The rows of the page's table whose head begins with these cells."""
    text = page.read_text().splitlines()
    first = next(i for i, each in enumerate(text) if each.startswith("| " + " | ".join(head) + " |"))
    rows = itertools.takewhile(lambda each: each.startswith("|"), text[first + 2 :])
    return [[cell.strip() for cell in each.split("|")[1:-1]] for each in rows]


def test_readme_says_what_was_measured() -> None:
    """Its six lines are of one machine, and one of them is where hocket is the slowest beside MPI, on any."""
    said = rows_under(ROOT / "README.md", "what", "hocket us")
    machines = [lines_of(path) for path in KEPT]
    assert len(said) == 6
    assert [all(lines[row[0]] == row[1:] for row in said) for lines in machines].count(True) == 1
    ratios = [float(mpi) for lines in machines for _, mpi, _ in lines.values() if mpi]
    assert max(float(row[2]) for row in said) == max(ratios)


def test_the_page_on_performance_says_what_was_measured() -> None:
    said = rows_under(ROOT / "docs" / "performance.md", "what", "AMD EPYC: us")
    amd, intel = map(lines_of, KEPT)
    assert len(said) > 15
    assert [row for row in said if row[1:] != [*amd[row[0]], *intel[row[0]]]] == []
